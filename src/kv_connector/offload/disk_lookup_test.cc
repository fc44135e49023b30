#include "kv_connector/offload/disk_lookup.h"

#include <gmock/gmock.h>

#include <thread>

#include "kv_connector/offload/offload_fixture.h"

namespace dormouse {
namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

DiskLookup::Keys answer(DiskLookup& lookup, RequestId request, std::vector<std::string> keys) {
  for (;;) {
    if (const auto found = lookup.find(request, keys))
      return *found;
    std::this_thread::yield();
  }
}

TEST(DiskLookup, FindsWhatComesBeforeTheFirstGap) {
  DiskLookup lookup([](const std::string& key) { return key != "c"; }, 1h);
  EXPECT_THAT(answer(lookup, 1, {"a", "b", "c", "d"}), UnorderedElementsAre("a", "b"));
  EXPECT_THAT(answer(lookup, 2, {"c", "d"}), IsEmpty());
}

TEST(DiskLookup, AsksOnceForEachRequest) {
  std::atomic<int> asked = 0;
  DiskLookup lookup([&](const std::string&) { return ++asked > 0; }, 1h);
  answer(lookup, 1, {"a"});
  answer(lookup, 1, {"a"});
  EXPECT_EQ(asked, 1);
  lookup.forget(1);
  answer(lookup, 1, {"a"});
  EXPECT_EQ(asked, 2);
}

TEST(DiskLookup, NobodyWaitsForAFileSystemThatNeverAnswers) {
  auto gate = std::make_shared<CopyGate>();
  gate->close();
  {
    DiskLookup lookup([gate](const std::string&) { return gate->pass(), true; }, 50ms);
    EXPECT_EQ(lookup.find(1, {"a"}), std::nullopt);
    gate->wait_for(1);
    EXPECT_THAT(answer(lookup, 1, {"a"}), IsEmpty()) << "too late is a miss";
    EXPECT_EQ(lookup.timeouts(), 1U);
    EXPECT_THAT(answer(lookup, 5, {"a"}), IsEmpty());
    const auto next = lookup.find(2, {"b"});
    ASSERT_TRUE(next) << "while it hangs nobody asks";
    EXPECT_THAT(*next, IsEmpty());
    EXPECT_EQ(lookup.timeouts(), 3U);
    gate->open();
    while (answer(lookup, 3, {"c"}).empty())
      lookup.forget(3);
    gate->close();
    EXPECT_EQ(lookup.find(4, {"d"}), std::nullopt);
  }
  gate->open();
  while (gate.use_count() > 1)
    std::this_thread::yield();
}

}  // namespace
}  // namespace dormouse
