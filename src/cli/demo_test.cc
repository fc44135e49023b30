#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <iterator>

#include "base/json.h"
#include "base/unique_fd.h"
#include "cli/demo_phase.h"
#include "cli/demo_prompts.h"
#include "device/host/host_memory.h"
#include "testing/tiny_model.h"

namespace dormouse::cli {
namespace {

class Demo : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = ::testing::TempDir() + "demo_test.gguf";
    ASSERT_TRUE(testing::write_tiny_model(path, {.context = 2048}));
    EngineConfig config;
    config.model = path;
    config.kv_cache_memory_bytes = 8 << 20;
    config.threads = 2;
    engine = Engine::start(config);
    ASSERT_TRUE(engine->wait_until_loaded());
  }
  std::vector<std::vector<TokenId>> prompts(std::size_t count) {
    return *make_prompts(*engine->tokenizer(), *engine->chat_template(), count);
  }
  Questions questions() {
    Questions some{.prompts = prompts(4), .tokens = 6};
    some.first = *ask(*engine, some.prompts, some.tokens);
    return some;
  }

  std::unique_ptr<Engine> engine;
};

PhaseResult good_result() {
  return {.name = "level 1", .level = 1, .compared = 3, .identical = 3, .freed = 100};
}

TEST_F(Demo, PromptsRunFromLessThanABlockToOver512TokensAndAreTheSameEveryTime) {
  const auto all = prompts(30);
  ASSERT_EQ(all.size(), 30U);
  EXPECT_EQ(all.front().size(), kShortestPrompt);
  EXPECT_LT(all.front().size(), 16U);
  EXPECT_GE(all.back().size(), kLongestPrompt);
  EXPECT_EQ(all, prompts(30));
  for (std::size_t i = 1; i < all.size(); ++i)
    EXPECT_NE(all[i], all[i - 1]);
}

TEST_F(Demo, EveryPhaseAnswersAlikeAndGivesItsBlocksBack) {
  const Questions some = questions();
  for (const Phase& phase : all_phases()) {
    const auto result = run_phase(*engine, phase, some);
    ASSERT_TRUE(result) << phase.name << ": " << result.error().message;
    EXPECT_EQ(result->compared, 4U);
    EXPECT_EQ(result->identical, 4U);
    // Other programs' shared memory may disturb the one measurement; the census it cannot.
    for (const std::string& problem : result->problems)
      EXPECT_TRUE(problem.starts_with("shared memory")) << phase.name << ": " << problem;
    EXPECT_EQ(result->asleep_bytes == 0, phase.gives_back_everything) << phase.name;
  }
}

TEST_F(Demo, AWakeUpThatLeavesTheEngineUnreadyIsAnError) {
  Phase phase = all_phases()[1];
  phase.wake.pop_back();
  EXPECT_FALSE(run_phase(*engine, phase, questions())) << "the weights were not loaded again";
}

TEST_F(Demo, ARequestThatIsAcceptedTooSoonIsAProblem) {
  Phase phase = all_phases()[0];
  phase.wake.push_back(phase.wake[0]);
  const auto result = run_phase(*engine, phase, questions());
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->problems.empty());
}

// A second descriptor of each of this process's blocks.
std::vector<UniqueFd> hold_every_block() {
  std::vector<int> blocks;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code vanished;
    const auto target = std::filesystem::read_symlink(entry.path(), vanished).string();
    if (target.find(kHostBlockName) != std::string::npos)
      blocks.push_back(std::stoi(entry.path().filename()));
  }
  std::vector<UniqueFd> held;
  for (const int block : blocks)
    held.emplace_back(::dup(block));
  return held;
}

// The phase sleeps twice, since less came back than expected: letting go of some block of the first
// sleep during the second would make up for one that is held.
TEST_F(Demo, BlocksThatAreStillHeldWhileAsleepAreAProblem) {
  Phase phase = all_phases()[0];
  std::vector<UniqueFd> held;
  phase.sleep = [&](Engine& sleeper) {
    std::ranges::move(hold_every_block(), std::back_inserter(held));
    return sleeper.sleep({.level = 1});
  };
  const auto result = run_phase(*engine, phase, questions());
  ASSERT_TRUE(result);
  ASSERT_FALSE(held.empty());
  const auto says = [&](std::string_view text) {
    return std::ranges::any_of(result->problems, [&](const std::string& problem) {
      return problem.find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(says("are gone, the engine gave back"));
  EXPECT_TRUE(says("descriptors and 0 mappings of blocks are left"));
  EXPECT_GT(result->asleep_bytes, 0U);
}

TEST(DemoAnswers, OneBitOfOneLogprobMakesTwoAnswersDifferent) {
  const Answer answer{.tokens = {1, 2}, .logprobs = {-0.5F, -0.25F}};
  Answer other = answer;
  EXPECT_TRUE(answer.identical_to(other));
  other.logprobs[1] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(-0.25F) + 1);
  EXPECT_FALSE(answer.identical_to(other));
  other = {.tokens = {1, 3}, .logprobs = answer.logprobs};
  EXPECT_FALSE(answer.identical_to(other));
  EXPECT_EQ(count_identical({answer, other}, {answer, answer}), 1U);
}

TEST(DemoReport, IsGoodOnlyWithoutAWrongAnswerAndWithoutAProblem) {
  DemoReport report{.prompts = 3, .phases = {good_result()}};
  EXPECT_TRUE(report.good());
  report.phases[0].identical = 2;
  EXPECT_FALSE(report.good());
  report.phases[0] = good_result();
  report.phases[0].problems = {"a block is held"};
  EXPECT_FALSE(report.good());
  EXPECT_FALSE(DemoReport{}.good());
}

TEST(DemoReport, FivePercentIsTheLimit) {
  EXPECT_TRUE(agrees(95, 100));
  EXPECT_TRUE(agrees(105, 100));
  EXPECT_FALSE(agrees(94, 100));
  EXPECT_FALSE(agrees(106, 100));
  EXPECT_FALSE(agrees(-100, 100));
}

TEST(DemoReport, IsOneLineOfJson) {
  DemoReport report{.prompts = 3, .phases = {good_result(), good_result()}};
  report.phases[1].identical = 1;
  const std::string line = to_json(report);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = parse_json(line);
  ASSERT_TRUE(json);
  EXPECT_EQ(json->find("compared")->as_unsigned(), 6U);
  EXPECT_EQ(json->find("identical")->as_unsigned(), 4U);
  EXPECT_EQ(json->find("wrong")->as_unsigned(), 2U);
  const Json& phase = json->find("phases")->array()->at(0);
  EXPECT_EQ(*phase.find("instance")->string(), "single");
  EXPECT_TRUE(phase.find("connector")->is_null());
  EXPECT_EQ(phase.find("freed_bytes")->as_integer(), 100);
}

}  // namespace
}  // namespace dormouse::cli
