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

class LeaseTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    table.open(5);
    table.add(7, "secret", {30, 10, 20}, now);
  }
  static Pull good() {
    return {.name = {"7", "secret"},
            .incarnation = "first",
            .generation = 5,
            .blocks = {10, 20},
            .consumer = {0, 1}};
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
  LeaseTable table{"first", {.duration = seconds(30), .extension = seconds(20)}};
};

TEST_F(LeaseTableTest, PullIsGrantedConfirmedAndEndsTheLease) {
  const GrantId grant = granted(good());
  EXPECT_THAT(table.take_ended(), IsEmpty());
  EXPECT_TRUE(table.confirm(grant, kReader, now));
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
    LeaseTable fresh("first", {seconds(30), seconds(20)});
    fresh.open(5);
    fresh.add(7, "secret", {10, 20}, now);
    wrong = good();
    wrong.name.token = token;
    EXPECT_EQ(fresh.grant(wrong, kReader, now).error(), Refusal::kToken) << token;
  }
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
  EXPECT_FALSE(table.heartbeat({"7", "secret"}, now));
}

TEST_F(LeaseTableTest, HeartbeatAndGrantExtendAndNeverShorten) {
  EXPECT_TRUE(table.heartbeat({"7", "secret"}, now));
  EXPECT_THAT(table.expire(now + seconds(29)), IsEmpty());
  now += seconds(25);
  EXPECT_TRUE(table.heartbeat({"7", "secret"}, now));
  now += seconds(19);
  EXPECT_THAT(table.expire(now), IsEmpty());
  const GrantId grant = granted(good());
  now += seconds(19);
  EXPECT_THAT(table.expire(now), IsEmpty());
  EXPECT_TRUE(table.confirm(grant, kReader, now));
}

TEST_F(LeaseTableTest, HeartbeatWithoutTheTokenExtendsNothing) {
  EXPECT_FALSE(table.heartbeat({"7", "guess"}, now + seconds(20)));
  EXPECT_EQ(table.expire(now + seconds(30)).size(), 1U);
}

TEST_F(LeaseTableTest, ReadWhoseLeaseExpiredIsNotConfirmed) {
  const GrantId early = granted(good());
  now += seconds(31);
  EXPECT_FALSE(table.confirm(early, kReader, now)) << "due, though nobody has looked yet";
  table.expire(now);
  EXPECT_FALSE(table.confirm(early, kReader, now));
  table.add(8, "secret", {1}, now);
  Pull pull = good();
  pull.name.lease = "8";
  pull.blocks = {1};
  const GrantId late = granted(pull);
  table.expire(now + seconds(60));
  EXPECT_FALSE(table.confirm(late, kReader, now));
}

TEST_F(LeaseTableTest, OnlyTheReaderConfirmsItsGrant) {
  const GrantId grant = granted(good());
  EXPECT_FALSE(table.confirm(grant, kReader + 1, now));
  EXPECT_FALSE(table.confirm(grant + 1, kReader, now));
  EXPECT_TRUE(table.confirm(grant, kReader, now));
  EXPECT_FALSE(table.confirm(grant, kReader, now));
}

TEST_F(LeaseTableTest, LeaseEndsWhenEveryConsumerHasPulledOrReleased) {
  Pull pull = good();
  pull.consumer = {0, 3};
  EXPECT_TRUE(table.confirm(granted(pull), kReader, now));
  EXPECT_TRUE(table.confirm(granted(pull), kReader, now)) << "the same rank again";
  EXPECT_TRUE(table.release({"7", "secret"}, {2, 3}, now));
  EXPECT_THAT(table.take_ended(), IsEmpty());
  pull.consumer = {1, 3};
  EXPECT_TRUE(table.confirm(granted(pull), kReader, now));
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
}

TEST_F(LeaseTableTest, ReleaseNeedsTheToken) {
  EXPECT_FALSE(table.release({"7", "guess"}, {0, 1}, now));
  EXPECT_THAT(table.take_ended(), IsEmpty());
  EXPECT_TRUE(table.release({"7", "secret"}, {0, 1}, now));
  EXPECT_FALSE(table.release({"7", "secret"}, {0, 1}, now));
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
}

TEST_F(LeaseTableTest, ClosingKeepsWhatIsReadUntilItHasBeenRead) {
  table.add(8, "other", {40}, now);
  const GrantId grant = granted(good());
  table.close();
  EXPECT_THAT(table.take_ended(), ElementsAre(8));
  EXPECT_EQ(table.grants(), 1U);
  EXPECT_TRUE(table.confirm(grant, kReader, now));
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
}

TEST_F(LeaseTableTest, ClosedItEndsAReadLeaseWithItsLastReader) {
  Pull pull = good();
  pull.consumer = {0, 2};
  const GrantId first = granted(pull, 1);
  pull.consumer = {1, 2};
  granted(pull, 2);
  table.close();
  EXPECT_TRUE(table.confirm(first, 1, now));
  EXPECT_THAT(table.take_ended(), IsEmpty());
  table.reader_gone(2);
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
}

TEST_F(LeaseTableTest, DeathOfAReaderEndsItsGrantsAlone) {
  const GrantId of_one = granted(good(), 1);
  const GrantId of_two = granted(good(), 2);
  table.reader_gone(1);
  EXPECT_FALSE(table.confirm(of_one, 1, now));
  EXPECT_THAT(table.take_ended(), IsEmpty());
  EXPECT_TRUE(table.confirm(of_two, 2, now));
}

TEST_F(LeaseTableTest, AnotherGenerationEndsEverythingOfTheOldOne) {
  const GrantId grant = granted(good());
  table.open(6);
  EXPECT_THAT(table.take_ended(), ElementsAre(7));
  EXPECT_FALSE(table.confirm(grant, kReader, now));
  expect_refused(good(), Refusal::kGeneration);
}

TEST_F(LeaseTableTest, SameGenerationOpenedAgainServesNewLeases) {
  table.close();
  table.open(5);
  table.add(9, "secret", {10, 20}, now);
  Pull pull = good();
  pull.name.lease = "9";
  EXPECT_TRUE(table.confirm(granted(pull), kReader, now));
}

TEST_F(LeaseTableTest, LeaseThatComesWhenItIsClosedEndsAtOnce) {
  table.close();
  table.add(9, "secret", {1}, now);
  EXPECT_THAT(table.take_ended(), ElementsAre(7, 9));
}

// Any order of events: each lease ends exactly once, and a confirmed read had its lease all along.
TEST(LeaseTableSequences, EveryLeaseEndsOnceAndConfirmedReadsHadTheirLease) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](unsigned below) { return random() % below; };
    LeaseTable table("i", {seconds(10), seconds(6)});
    Time now = Time() + seconds(1000);
    std::uint64_t generation = 1;
    table.open(generation);
    std::map<RequestId, int> ended;
    struct Read {
      GrantId grant;
      ReaderId reader;
      RequestId lease;
    };
    std::vector<Read> reads;
    RequestId last = 0;
    const auto settle = [&] {
      for (const RequestId request : table.take_ended())
        ++ended[request];
    };
    for (int i = 0; i < 200; ++i) {
      const RequestId lease = last == 0 ? 0 : 1 + pick(static_cast<unsigned>(last));
      const LeaseName name{std::to_string(lease), "t"};
      switch (pick(9)) {
        case 0:
          table.add(++last, "t", {1, 2}, now);
          break;
        case 1:
        case 2: {
          const ReaderId reader = pick(3);
          const auto grant = table.grant(
              {.name = name, .incarnation = "i", .generation = generation, .blocks = {1}}, reader,
              now);
          if (grant) {
            EXPECT_EQ(ended[lease], 0);
            reads.push_back({*grant, reader, lease});
          }
          break;
        }
        case 3:
          if (!reads.empty()) {
            const Read read = reads[pick(static_cast<unsigned>(reads.size()))];
            settle();
            const bool was_over = ended[read.lease] > 0;
            EXPECT_FALSE(table.confirm(read.grant, read.reader, now) && was_over);
          }
          break;
        case 4:
          now += seconds(pick(5));
          break;
        case 5:
          table.expire(now);
          break;
        case 6:
          table.heartbeat(name, now);
          break;
        case 7:
          pick(2) == 0 ? table.reader_gone(pick(3)) : void(table.release(name, {}, now));
          break;
        case 8:
          if (pick(4) == 0)
            table.close();
          else
            table.open(generation += pick(2));
          break;
      }
      settle();
      for (const auto& [request, times] : ended)
        ASSERT_LE(times, 1) << "seed " << seed;
    }
    table.end_all();
    settle();
    for (RequestId request = 1; request <= last; ++request)
      ASSERT_EQ(ended[request], 1) << "seed " << seed;
    EXPECT_EQ(table.grants(), 0U);
  }
}

}  // namespace
}  // namespace dormouse::pull
