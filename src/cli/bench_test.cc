#include <gtest/gtest.h>

#include "cli/bench_copy.h"
#include "cli/bench_peer.h"
#include "cli/bench_report.h"
#include "cli/bench_serve.h"
#include "cli/bench_sleep.h"
#include "testing/tiny_model.h"

namespace dormouse::cli {
namespace {

TEST(Bench, TheMedianOfAnEvenNumberLiesBetweenTheTwoInTheMiddle) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(best({3, 1, 2}), 1);
}

TEST(Bench, EveryBareCopyTakesTime) {
  const std::vector<std::byte> from((1 << 20) + 5, std::byte{3});
  for (const BareCopy kind : {BareCopy::kAllocated, BareCopy::kMapped, BareCopy::kWritten})
    for (const std::uint32_t threads : {1U, 3U})
      EXPECT_GT(*time_bare_copy(kind, from, threads), 0);
}

TEST(Bench, PromptsDifferAndStayInTheVocabulary) {
  const Workload workload{.vocab_size = 259};
  EXPECT_EQ(workload.prompt(512, 0).size(), 512U);
  EXPECT_NE(workload.prompt(16, 0), workload.prompt(16, 1));
  for (const TokenId token : workload.prompt(512, 3))
    EXPECT_LT(token, 259);
}

TEST(Bench, SleepCopiesOutOnceAndNeverAgain) {
  BenchOptions options{.rounds = 2, .bytes = 8 << 20};
  options.engine.threads = 2;
  const auto report = bench_sleep(options);
  ASSERT_TRUE(report) << report.error().message;
  const auto& copied = *report->json.find("copied_out_bytes")->array();
  ASSERT_EQ(copied.size(), 3U);
  EXPECT_EQ(copied[0].as_unsigned(), 8U << 20);
  EXPECT_EQ(copied[1].as_unsigned(), 0U);
  EXPECT_EQ(copied[2].as_unsigned(), 0U);
  EXPECT_GT(report->json.find("ratio")->as_double(), 0);
}

TEST(Bench, ServeMeasuresTheEngineAndSaysThatThePeerWasNotRun) {
  BenchOptions options{.kind = BenchKind::kServe, .rounds = 1};
  options.engine.model = ::testing::TempDir() + "bench_test.gguf";
  options.engine.threads = 2;
  options.engine.kv_cache_memory_bytes = 8 << 20;
  ASSERT_TRUE(testing::write_tiny_model(options.engine.model, {.context = 2048}));
  const auto report = bench_serve(options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->json.find("peer")->is_null());
  EXPECT_GT(report->json.find("dormouse")->find("decode_tokens_per_s")->as_double(), 0);
  EXPECT_NE(report->text.find("peer was not run"), std::string::npos);
}

TEST(Bench, APeerThatIsNotThereIsAnErrorThatNamesIt) {
  const BenchOptions options{.kind = BenchKind::kServe, .peer_server = "/no/such/server"};
  const auto figures = measure_peer(options, {.vocab_size = 259});
  ASSERT_FALSE(figures);
  EXPECT_NE(figures.error().message.find("/no/such/server"), std::string::npos);
}

}  // namespace
}  // namespace dormouse::cli
