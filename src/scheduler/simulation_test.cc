// Random lives of random requests: whatever happens around a request, it gets what it gets alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "scheduler/fake_model.h"
#include "scheduler/scheduler.h"

namespace dormouse {
namespace {

constexpr std::uint32_t kVocabulary = 24;
constexpr TokenId kEos = 3;
constexpr std::uint32_t kContext = 48;

struct Life {
  Request request;
  std::vector<TokenId> expected;  // tokens when nothing interferes
  FinishReason expected_end = FinishReason::kLength;
  std::vector<TokenId> got;
  std::optional<FinishReason> finished;
  std::uint32_t next_position = 0;
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed)
      : random_(seed),
        config_(draw_config()),
        pool_(draw(14, 40)),
        model_(pool_.total(), config_.block_size, kVocabulary),
        scheduler_(config_, pool_) {}

  void run(int num_steps) {
    for (int i = 0; i < num_steps && !::testing::Test::HasFailure(); ++i) {
      if (lives_.size() < 60 && draw(0, 2) > 0)
        submit();
      disturb_between_steps();
      step(/*calm=*/false);
    }
    scheduler_.set_admission(PauseState::kUnpaused);
    for (int i = 0; scheduler_.has_unfinished() && i < 20000; ++i)
      step(/*calm=*/true);
    check_ends();
  }

  const SchedulerCounters& counters() const { return scheduler_.counters(); }

 private:
  std::uint32_t draw(std::uint32_t low, std::uint32_t high) {
    return std::uniform_int_distribution<std::uint32_t>(low, high)(random_);
  }

  SchedulerConfig draw_config() {
    SchedulerConfig config;
    config.max_num_seqs = draw(1, 8);
    config.max_num_batched_tokens = draw(1, 40);
    config.block_size = draw(1, 6);
    config.max_model_len = kContext;
    config.enable_prefix_caching = draw(0, 4) > 0;
    config.end_of_generation = {kEos};
    return config;
  }

  Request draw_request() {
    Request request;
    const TokenId family =
        static_cast<TokenId>(draw(0, 2));  // prompts of a family share a beginning
    const std::uint32_t common = draw(0, 20);
    for (std::uint32_t i = 0; i < common; ++i)
      request.prompt.push_back(static_cast<TokenId>((family * 7 + i * i) % kVocabulary));
    for (std::uint32_t i = draw(1, 8); i > 0; --i)
      request.prompt.push_back(static_cast<TokenId>(draw(0, kVocabulary - 1)));
    request.priority = static_cast<std::int32_t>(draw(0, 2));
    request.cache_salt = draw(0, 3) == 0 ? "salt" : "";
    request.sampling.seed = draw(0, 3);
    request.sampling.max_tokens = draw(1, 30);
    request.sampling.min_tokens = draw(0, 1) * draw(0, request.sampling.max_tokens);
    request.sampling.ignore_eos = draw(0, 2) == 0;
    request.sampling.repetition_penalty = draw(0, 1) == 0 ? 1.0F : 1.2F;
    if (draw(0, 2) == 0)
      request.sampling.stop_token_ids = {5};
    return request;
  }

  // The request's tokens without any scheduler.
  void run_alone(Life& life) const {
    const SamplingParams& sampling = life.request.sampling;
    std::vector<TokenId> history = life.request.prompt;
    while (life.expected.size() < sampling.max_tokens && history.size() < kContext) {
      const auto index = static_cast<std::uint32_t>(life.expected.size());
      const TokenId token = model_.next_after(history, sampling.seed, index);
      history.push_back(token);
      life.expected.push_back(token);
      const bool stops = (token == kEos && !sampling.ignore_eos) ||
                         (token == 5 && !sampling.stop_token_ids.empty());
      if (!stops || life.expected.size() < sampling.min_tokens)
        continue;
      life.expected_end = FinishReason::kStop;
      return;
    }
  }

  void submit() {
    Life life;
    life.request = draw_request();
    run_alone(life);
    const RequestId id = ++last_id_;
    if (const Status status = scheduler_.add(id, life.request)) {
      lives_.emplace(id, std::move(life));
    } else {
      EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
    }
  }

  void disturb_between_steps() {
    switch (draw(0, 60)) {
      case 0:  // a sleep that keeps requests
        scheduler_.preempt_all();
        EXPECT_EQ(pool_.used(), 0U);
        pool_.forget_all();
        model_.poison();
        break;
      case 1:
        EXPECT_EQ(pool_.reset_cached(), pool_.used() == 0);
        break;
      case 2:
        scheduler_.set_admission(static_cast<PauseState>(draw(0, 2)));
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        scheduler_.set_admission(PauseState::kUnpaused);
        break;
      default:
        break;
    }
  }

  void step(bool calm) {
    const StepPlan plan = scheduler_.plan();
    ASSERT_EQ(plan.sequences.empty(), !scheduler_.step_in_flight());
    if (plan.sequences.empty())
      return;
    check_plan(plan);
    const StepResult result = model_.run(plan);
    if (!calm)
      disturb_in_flight();
    for (const ScheduledSequence& sequence : plan.sequences)
      for (const BlockId block : sequence.block_table)
        EXPECT_GT(pool_.holders(block), 0U) << "released while a step refers to it";
    const bool fails = !calm && draw(0, 150) == 0;
    record(fails ? scheduler_.fail_step(plan, Error{}) : scheduler_.complete(plan, result));
    EXPECT_TRUE(pool_.consistent());
  }

  void disturb_in_flight() {
    if (draw(0, 12) == 0)
      record_one(scheduler_.abort(draw(1, static_cast<std::uint32_t>(last_id_) + 1)));
    if (draw(0, 40) == 0)
      record_one(scheduler_.finish_error(draw(1, static_cast<std::uint32_t>(last_id_) + 1), {}));
    if (draw(0, 300) == 0)
      record(scheduler_.abort_all());
    if (draw(0, 10) == 0)
      submit();
  }

  void check_plan(const StepPlan& plan) {
    EXPECT_LE(plan.total_tokens, config_.max_num_batched_tokens);
    EXPECT_LE(plan.sequences.size(), config_.max_num_seqs);
    EXPECT_LE(scheduler_.num_running(), config_.max_num_seqs);
    std::set<RequestId> ids;
    std::uint32_t total = 0;
    for (const ScheduledSequence& sequence : plan.sequences) {
      EXPECT_TRUE(ids.insert(sequence.id).second) << "scheduled twice";
      total += static_cast<std::uint32_t>(sequence.tokens.size());
      check_scheduled(sequence);
    }
    EXPECT_EQ(total, plan.total_tokens);
  }

  void check_scheduled(const ScheduledSequence& sequence) {
    Life& life = lives_.at(sequence.id);
    ASSERT_FALSE(life.finished) << "scheduled after its end";
    ASSERT_FALSE(sequence.tokens.empty());
    std::vector<TokenId> history = life.request.prompt;
    history.insert(history.end(), life.got.begin(), life.got.end());

    const std::uint32_t first = sequence.first_position;
    const auto end = first + static_cast<std::uint32_t>(sequence.tokens.size());
    const std::uint32_t block_size = config_.block_size;
    EXPECT_TRUE(first == life.next_position || first % block_size == 0) << "a gap at " << first;
    life.next_position = end;
    ASSERT_LE(end, history.size());
    EXPECT_TRUE(
        std::equal(sequence.tokens.begin(), sequence.tokens.end(), history.begin() + first));
    EXPECT_EQ(sequence.samples, end == history.size());
    EXPECT_EQ(sequence.sample_index, life.got.size());
    EXPECT_EQ(sequence.sampling != nullptr, sequence.samples);
    const bool wants_history = sequence.samples && life.request.sampling.repetition_penalty != 1.0F;
    EXPECT_EQ(sequence.history, wants_history ? history : std::vector<TokenId>{});

    ASSERT_EQ(sequence.block_table.size(), (end + block_size - 1) / block_size);
    for (std::uint32_t i = first / block_size; i < sequence.block_table.size(); ++i)
      EXPECT_EQ(pool_.holders(sequence.block_table[i]), 1U) << "writable and shared";
  }

  void record_one(std::optional<RequestOutput> output) {
    if (output)
      record({std::move(*output)});
  }

  void record(const std::vector<RequestOutput>& outputs) {
    for (const RequestOutput& output : outputs) {
      Life& life = lives_.at(output.id);
      EXPECT_FALSE(life.finished) << "an event after the last";
      EXPECT_EQ(output.prompt_tokens, life.request.prompt.size());
      EXPECT_LT(output.cached_tokens, life.request.prompt.size());
      for (const GeneratedToken& token : output.tokens)
        life.got.push_back(token.token);
      life.finished = output.finished;
    }
  }

  void check_ends() {
    for (const auto& [id, life] : lives_) {
      ASSERT_TRUE(life.finished) << "request " << id << " never ends";
      ASSERT_LE(life.got.size(), life.expected.size());
      EXPECT_TRUE(std::equal(life.got.begin(), life.got.end(), life.expected.begin()));
      if (life.finished == FinishReason::kAbort || life.finished == FinishReason::kError)
        continue;
      EXPECT_EQ(life.got.size(), life.expected.size());
      EXPECT_EQ(life.finished, life.expected_end);
    }
    EXPECT_EQ(pool_.used(), 0U);
    EXPECT_TRUE(pool_.consistent());
    EXPECT_EQ(scheduler_.num_running() + scheduler_.num_waiting(), 0U);
    std::uint64_t ends = 0;
    for (const std::uint64_t count : counters().finished)
      ends += count;
    EXPECT_EQ(ends, lives_.size());
  }

  std::mt19937_64 random_;
  SchedulerConfig config_;
  BlockPool pool_;
  testing::FakeModel model_;
  Scheduler scheduler_;
  std::unordered_map<RequestId, Life> lives_;
  RequestId last_id_ = 0;
};

TEST(SchedulerSimulation, GivesEveryRequestWhatItGetsAlone) {
  SchedulerCounters sum;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Simulation simulation(seed);
    simulation.run(150);
    if (HasFailure())
      return;
    sum.preemptions += simulation.counters().preemptions;
    sum.prefix_cache_hits += simulation.counters().prefix_cache_hits;
    for (std::size_t reason = 0; reason < sum.finished.size(); ++reason)
      sum.finished[reason] += simulation.counters().finished[reason];
  }
  // The simulation reached what it is there for.
  EXPECT_GT(sum.preemptions, 1000U);
  EXPECT_GT(sum.prefix_cache_hits, 10000U);
  for (const std::uint64_t count : sum.finished)
    EXPECT_GT(count, 500U);
}

// Two schedulers that see the same calls plan the same steps, although their hash keys differ.
TEST(SchedulerSimulation, PlansFromItsStateAlone) {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 12;
  config.block_size = 4;
  config.max_model_len = kContext;
  BlockPool pools[2] = {BlockPool(14), BlockPool(14)};
  Scheduler schedulers[2] = {Scheduler(config, pools[0]), Scheduler(config, pools[1])};
  testing::FakeModel model(14, config.block_size, kVocabulary);
  for (RequestId id = 1; id <= 30; ++id) {
    Request request;
    request.prompt.assign(1 + id % 17, static_cast<TokenId>(id % 3));
    request.sampling.max_tokens = 12;
    for (Scheduler& scheduler : schedulers)
      ASSERT_TRUE(scheduler.add(id, request).has_value());
  }
  while (schedulers[0].has_unfinished()) {
    const StepPlan plans[2] = {schedulers[0].plan(), schedulers[1].plan()};
    ASSERT_EQ(plans[0].sequences.size(), plans[1].sequences.size());
    for (std::size_t i = 0; i < plans[0].sequences.size(); ++i) {
      EXPECT_EQ(plans[0].sequences[i].id, plans[1].sequences[i].id);
      EXPECT_EQ(plans[0].sequences[i].tokens, plans[1].sequences[i].tokens);
      EXPECT_EQ(plans[0].sequences[i].block_table, plans[1].sequences[i].block_table);
    }
    const StepResult result = model.run(plans[0]);
    for (std::size_t i = 0; i < 2; ++i)
      schedulers[i].complete(plans[i], result);
  }
  EXPECT_FALSE(schedulers[1].has_unfinished());
  EXPECT_GT(schedulers[0].counters().preemptions, 0U);
}

}  // namespace
}  // namespace dormouse
