#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <set>
#include <vector>

namespace dormouse {
namespace {

class ThreadPoolTest : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1U, 2U, 5U));

TEST_P(ThreadPoolTest, RunsEachTaskExactlyOnce) {
  ThreadPool pool(GetParam());
  for (const std::size_t count : {0U, 1U, 3U, 1000U}) {
    std::vector<std::atomic<int>> runs(count);
    pool.parallel_for(count, [&](std::size_t i) { runs[i].fetch_add(1); });
    for (const auto& run : runs)
      EXPECT_EQ(run.load(), 1);
  }
}

TEST_P(ThreadPoolTest, RunsTheBodyOnEveryThread) {
  ThreadPool pool(GetParam());
  std::vector<int> seen(GetParam(), 0);
  std::vector<std::thread::id> ids(GetParam());
  pool.run([&](Team& team) {
    seen[team.index()]++;
    ids[team.index()] = std::this_thread::get_id();
  });
  for (const int count : seen)
    EXPECT_EQ(count, 1);
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), GetParam());
  EXPECT_EQ(ids[0], std::this_thread::get_id());
}

// Each phase reads what the one before wrote with plain stores, from other threads' slots.
TEST_P(ThreadPoolTest, SharesArePhasesThatSeeEachOthersWrites) {
  ThreadPool pool(GetParam());
  constexpr std::size_t kCount = 64;
  std::vector<std::uint64_t> even(kCount, 1);
  std::vector<std::uint64_t> odd(kCount, 0);
  pool.run([&](Team& team) {
    for (int phase = 0; phase < 200; ++phase) {
      auto& from = phase % 2 == 0 ? even : odd;
      auto& to = phase % 2 == 0 ? odd : even;
      team.share(kCount, [&](std::size_t i) { to[i] = from[(i + 1) % kCount] + 1; });
    }
  });
  for (const std::uint64_t value : even)
    EXPECT_EQ(value, 201U);
}

TEST_P(ThreadPoolTest, SurvivesManyShortJobs) {
  ThreadPool pool(GetParam());
  std::uint64_t sum = 0;
  std::vector<std::uint64_t> slot(8, 0);
  for (int job = 0; job < 3000; ++job) {
    pool.parallel_for(slot.size(), [&](std::size_t i) { slot[i] += i; });
    sum += slot.size();
  }
  for (std::size_t i = 0; i < slot.size(); ++i)
    EXPECT_EQ(slot[i], 3000 * i);
  EXPECT_EQ(sum, 3000 * slot.size());
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadPool, UsesNoProcessorTimeWhileIdle) {
  ThreadPool pool(4);
  pool.parallel_for(4, [](std::size_t) {});
  constexpr std::chrono::milliseconds kIdle(200);
  const double before = processor_seconds();
  std::this_thread::sleep_for(kIdle);  // allowed: the test is to be idle
  EXPECT_LT(processor_seconds() - before, 0.05);
}

}  // namespace
}  // namespace dormouse
