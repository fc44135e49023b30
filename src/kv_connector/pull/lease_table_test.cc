#include "kv_connector/pull/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace dormouse::pull {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ReaderId kReader = 1;
const LeaseName kName{"7", "secret"};

class LeaseTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    table.open(5);
    table.add({7, "secret", "weights", {30, 10, 20}}, now);
  }
  static Pull good() {
    return {.name = kName,
            .incarnation = "first",
            .generation = 5,
            .model_hash = "weights",
            .blocks = {10, 20},
            .first_block = 1,
            .heads = {0, 4}};
  }
  GrantId granted(const Pull& pull, ReaderId reader = kReader) {
    const auto grant = table.grant(pull, reader, now);
    EXPECT_TRUE(grant);
    return grant.value_or(0);
  }
  void expect_refused(const Pull& pull, Refusal refusal) {
    const auto grant = table.grant(pull, kReader, now);
    ASSERT_FALSE(grant);
    EXPECT_EQ(grant.error(), refusal);
    EXPECT_EQ(table.counters().refused[static_cast<std::size_t>(refusal)], 1U);
  }

  Time now = Time() + seconds(100);
  LeaseTable table{"first", {0, 4}, {.duration = seconds(30), .extension = seconds(20)}};
};

TEST_F(LeaseTableTest, PullIsGrantedConfirmedAndEndsTheLease) {
  const GrantId grant = granted(good());
  EXPECT_THAT(table.take_ended(), IsEmpty());
  EXPECT_TRUE(table.confirm(kName, grant, kReader, now));
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
  EXPECT_THAT(table.take_ended(), IsEmpty());
  EXPECT_EQ(table.leases(), 0U);
}

TEST_F(LeaseTableTest, EveryWrongReferenceIsRefusedForItsReason) {
  Pull wrong = good();
  wrong.incarnation = "second";
  expect_refused(wrong, Refusal::kIncarnation);
  wrong = good();
  wrong.generation = 4;
  expect_refused(wrong, Refusal::kGeneration);
  wrong = good();
  wrong.name.lease = "8";
  expect_refused(wrong, Refusal::kExpired);
  for (const char* token : {"secreT", "secre", "secret ", ""}) {
    LeaseTable fresh("first", {0, 4}, {seconds(30), seconds(20)});
    fresh.open(5);
    fresh.add({7, "secret", "weights", {10, 20}}, now);
    wrong = good();
    wrong.name.token = token;
    EXPECT_EQ(fresh.grant(wrong, kReader, now).error(), Refusal::kToken) << token;
  }
  wrong = good();
  wrong.model_hash = "others";
  expect_refused(wrong, Refusal::kModel);
  wrong = good();
  wrong.blocks = {10, 11};
  expect_refused(wrong, Refusal::kBlocks);
  table.close();
  expect_refused(good(), Refusal::kUnavailable);
}

TEST_F(LeaseTableTest, LeaseExpiresAtItsTimeAndNotBefore) {
  EXPECT_THAT(table.expire(now + seconds(30) - Clock::duration(1)), IsEmpty());
  const auto expired = table.expire(now + seconds(30));
  ASSERT_EQ(expired.size(), 1U);
  EXPECT_EQ(expired[0].request, 7U);
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
  EXPECT_EQ(table.counters().expired, 1U);
}

TEST_F(LeaseTableTest, LeaseThatIsDueIsNotServedEvenIfNobodyHasLookedYet) {
  now += seconds(30);
  expect_refused(good(), Refusal::kExpired);
  EXPECT_FALSE(table.heartbeat(kName, now));
}

TEST_F(LeaseTableTest, HeartbeatAndGrantExtendAndNeverShorten) {
  EXPECT_TRUE(table.heartbeat(kName, now));
  EXPECT_THAT(table.expire(now + seconds(29)), IsEmpty());
  now += seconds(25);
  EXPECT_TRUE(table.heartbeat(kName, now));
  now += seconds(19);
  EXPECT_THAT(table.expire(now), IsEmpty());
  const GrantId grant = granted(good());
  now += seconds(19);
  EXPECT_THAT(table.expire(now), IsEmpty());
  EXPECT_TRUE(table.confirm(kName, grant, kReader, now));
}

TEST_F(LeaseTableTest, HeartbeatWithoutTheTokenExtendsNothing) {
  EXPECT_FALSE(table.heartbeat({"7", "guess"}, now + seconds(20)));
  EXPECT_EQ(table.expire(now + seconds(30)).size(), 1U);
}

TEST_F(LeaseTableTest, ReadWhoseLeaseExpiredIsNotConfirmed) {
  const GrantId early = granted(good());
  now += seconds(31);
  EXPECT_FALSE(table.confirm(kName, early, kReader, now)) << "due, though nobody has looked yet";
  table.expire(now);
  EXPECT_FALSE(table.confirm(kName, early, kReader, now));
  table.add({8, "secret", "weights", {1}}, now);
  Pull pull = good();
  pull.name.lease = "8";
  pull.blocks = {1};
  pull.first_block = 0;
  const GrantId late = granted(pull);
  table.expire(now + seconds(60));
  EXPECT_FALSE(table.confirm(pull.name, late, kReader, now));
}

TEST_F(LeaseTableTest, OnlyTheReaderConfirmsItsGrant) {
  const GrantId grant = granted(good());
  EXPECT_FALSE(table.confirm(kName, grant, kReader + 1, now));
  EXPECT_FALSE(table.confirm(kName, grant + 1, kReader, now));
  EXPECT_TRUE(table.confirm(kName, grant, kReader, now));
  EXPECT_FALSE(table.confirm(kName, grant, kReader, now));
}

TEST_F(LeaseTableTest, LeaseEndsWhenAllHeadsArePulledOrReleasedWhoeverHasThem) {
  const auto pulled = [&](HeadRange heads) {
    Pull pull = good();
    pull.heads = heads;
    EXPECT_TRUE(table.confirm(kName, granted(pull), kReader, now));
  };
  pulled({1, 3});
  pulled({1, 3});
  pulled({4, 9});
  pulled({3, 0});
  EXPECT_TRUE(table.release(kName, {3, 40}, now));
  EXPECT_THAT(table.take_ended(), IsEmpty());
  pulled({0, 2});
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
}

TEST_F(LeaseTableTest, RanksWithoutHeadsAreNotWaitedFor) {
  LeaseTable half("first", {0, 2}, {seconds(30), seconds(20)});
  half.open(5);
  half.add({7, "secret", "weights", {10}}, now);
  EXPECT_TRUE(half.release(kName, {0, 1}, now));
  EXPECT_TRUE(half.release(kName, {1, 2}, now));
  EXPECT_THAT(half.take_ended(), ElementsAre(7)) << "of four ranks two have none of its heads";
}

TEST_F(LeaseTableTest, NoLeaseLivesLongerThanFourTimesItsDurationHoweverItIsExtended) {
  const Time began = now;
  for (; now < began + seconds(119); now += seconds(10))
    EXPECT_TRUE(table.heartbeat(kName, now));
  now = began + seconds(119);
  const GrantId grant = granted(good());
  EXPECT_THAT(table.expire(now), IsEmpty());
  now = began + seconds(120);
  EXPECT_FALSE(table.heartbeat(kName, now));
  EXPECT_FALSE(table.confirm(kName, grant, kReader, now));
  expect_refused(good(), Refusal::kExpired);
  EXPECT_EQ(table.expire(now).size(), 1U);
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
}

TEST_F(LeaseTableTest, NamesThatAreNoRequestAreUnknown) {
  for (const char* lease : {"", "7x", " 7", "-7", "0x7", "99999999999999999999"}) {
    Pull wrong = good();
    wrong.name.lease = lease;
    EXPECT_EQ(table.grant(wrong, kReader, now).error(), Refusal::kExpired) << lease;
  }
}

TEST_F(LeaseTableTest, ReleaseNeedsTheToken) {
  EXPECT_FALSE(table.release({"7", "guess"}, {0, 4}, now));
  EXPECT_THAT(table.take_ended(), IsEmpty());
  EXPECT_TRUE(table.release(kName, {0, 4}, now));
  EXPECT_FALSE(table.release(kName, {0, 4}, now));
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
}

TEST_F(LeaseTableTest, ClosingKeepsWhatIsReadUntilItHasBeenRead) {
  table.add({8, "other", "weights", {40}}, now);
  const GrantId grant = granted(good());
  table.close();
  EXPECT_THAT(table.take_ended(), ElementsAre(8));
  EXPECT_EQ(table.leases(), 1U);
  EXPECT_TRUE(table.confirm(kName, grant, kReader, now));
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
}

TEST_F(LeaseTableTest, ClosedItEndsAReadLeaseWithItsLastReader) {
  Pull pull = good();
  pull.heads = {0, 2};
  const GrantId first = granted(pull, 1);
  pull.heads = {2, 4};
  granted(pull, 2);
  table.close();
  EXPECT_TRUE(table.confirm(kName, first, 1, now));
  EXPECT_THAT(table.take_ended(), IsEmpty());
  table.reader_gone(2);
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
}

TEST_F(LeaseTableTest, DeathOfAReaderEndsItsGrantsAlone) {
  const GrantId of_one = granted(good(), 1);
  const GrantId of_two = granted(good(), 2);
  table.reader_gone(1);
  EXPECT_FALSE(table.confirm(kName, of_one, 1, now));
  EXPECT_THAT(table.take_ended(), IsEmpty());
  EXPECT_TRUE(table.confirm(kName, of_two, 2, now));
}

TEST_F(LeaseTableTest, AnotherGenerationEndsEverythingOfTheOldOne) {
  const GrantId grant = granted(good());
  table.open(6);
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
  EXPECT_FALSE(table.confirm(kName, grant, kReader, now));
  expect_refused(good(), Refusal::kGeneration);
}

TEST_F(LeaseTableTest, SameGenerationOpenedAgainServesNewLeases) {
  table.close();
  table.open(5);
  table.add({9, "secret", "weights", {10, 20}}, now);
  Pull pull = good();
  pull.name.lease = "9";
  pull.first_block = 0;
  EXPECT_TRUE(table.confirm(pull.name, granted(pull), kReader, now));
}

TEST_F(LeaseTableTest, LeaseThatComesWhenItIsClosedEndsAtOnce) {
  table.close();
  table.add({9, "secret", "weights", {1}}, now);
  EXPECT_THAT(table.take_ended(), ElementsAre(7, 9));
}

// Any order of events: each lease ends exactly once, and a confirmed read had its lease all along.
class RandomEvents {
 public:
  explicit RandomEvents(unsigned seed) : random_(seed) { table_.open(generation_); }

  void run() {
    for (int i = 0; i < 200; ++i) {
      one();
      settle();
    }
    table_.end_all();
    settle();
    for (RequestId request = 1; request <= last_; ++request)
      EXPECT_EQ(ended_[request], 1);
    EXPECT_EQ(table_.leases(), 0U);
  }

 private:
  struct Read {
    GrantId grant = 0;
    ReaderId reader = 0;
    RequestId lease = 0;
  };

  std::size_t pick(std::size_t below) { return random_() % below; }

  void settle() {
    for (const RequestId request : table_.take_ended())
      EXPECT_EQ(++ended_[request], 1);
  }

  void one() {
    const RequestId lease = last_ == 0 ? 0 : 1 + pick(last_);
    const LeaseName name{std::to_string(lease), "t"};
    switch (pick(9)) {
      case 0:
        return table_.add({++last_, "t", "", {1, 2}}, now_);
      case 1:
      case 2:
        return read(lease, name);
      case 3:
        return confirm();
      case 4:
        now_ += seconds(pick(5));
        return;
      case 5:
        table_.expire(now_);
        return;
      case 6:
        table_.heartbeat(name, now_);
        return;
      case 7:
        return pick(2) == 0 ? table_.reader_gone(pick(3))
                            : void(table_.release(name, {0, 2}, now_));
      default:
        return pick(4) == 0 ? table_.close() : table_.open(generation_ += pick(2));
    }
  }

  void read(RequestId lease, const LeaseName& name) {
    const ReaderId reader = pick(3);
    const Pull pull{.name = name,
                    .incarnation = "i",
                    .generation = generation_,
                    .blocks = {1},
                    .heads = {0, 2}};
    const auto grant = table_.grant(pull, reader, now_);
    if (!grant)
      return;
    EXPECT_EQ(ended_[lease], 0);
    reads_.push_back({*grant, reader, lease});
  }

  void confirm() {
    if (reads_.empty())
      return;
    const Read read = reads_[pick(reads_.size())];
    const bool was_over = ended_[read.lease] > 0;
    EXPECT_FALSE(table_.confirm({std::to_string(read.lease), "t"}, read.grant, read.reader, now_) &&
                 was_over);
  }

  std::mt19937 random_;
  LeaseTable table_{"i", {0, 2}, {seconds(10), seconds(6)}};
  Time now_ = Time() + seconds(1000);
  std::uint64_t generation_ = 1;
  RequestId last_ = 0;
  std::map<RequestId, int> ended_;
  std::vector<Read> reads_;
};

TEST(LeaseTableSequences, EveryLeaseEndsOnceAndConfirmedReadsHadTheirLease) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomEvents(seed).run();
  }
}

}  // namespace
}  // namespace dormouse::pull
