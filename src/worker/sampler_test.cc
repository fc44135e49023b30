#include "worker/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "worker/philox.h"

namespace dormouse {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> logits(size);
  for (float& logit : logits)
    logit = static_cast<float>(random() >> 40) * 0x1p-21F - 4;
  return logits;
}

// How often each token comes up over `draws` positions of one stream.
std::map<TokenId, int> histogram(std::span<const float> logits, const SamplingParams& params,
                                 int draws = 20'000) {
  Sampler sampler;
  std::map<TokenId, int> counts;
  for (int i = 0; i < draws; ++i)
    ++counts[sampler
                 .sample({.logits = logits, .sample_index = static_cast<std::uint32_t>(i)}, params)
                 .token];
  return counts;
}

std::set<TokenId> support(std::span<const float> logits, const SamplingParams& params) {
  std::set<TokenId> tokens;
  for (const auto& [token, count] : histogram(logits, params, 5'000))
    tokens.insert(token);
  return tokens;
}

double chi_square(const std::map<TokenId, int>& counts, const std::vector<double>& probabilities) {
  double draws = 0;
  for (const auto& [token, count] : counts)
    draws += count;
  double sum = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    const auto found = counts.find(static_cast<TokenId>(i));
    const double expected = probabilities[i] * draws;
    const double seen = found == counts.end() ? 0 : found->second;
    sum += (seen - expected) * (seen - expected) / expected;
  }
  return sum;
}

TokenId greedy(const SampleInput& input, SamplingParams params = {}) {
  params.temperature = 0;
  return Sampler().sample(input, params).token;
}

TEST(Philox, AgreesWithThePublishedExamples) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IsEvenlyDistributedBelowOne) {
  std::vector<int> bins(16, 0);
  for (std::uint32_t i = 0; i < 16'000; ++i)
    ++bins[static_cast<std::size_t>(philox_uniform(5, i) * 16)];
  double sum = 0;
  for (const int seen : bins)
    sum += (seen - 1000.0) * (seen - 1000.0) / 1000;
  EXPECT_LT(sum, 37.7);  // 15 degrees of freedom, p = 0.001
}

TEST(Sampler, GreedyTakesTheLargestAndOfEqualsTheLowestId) {
  const std::vector<float> logits = {1, 3, 2, 3};
  EXPECT_EQ(greedy({.logits = logits}), 1);
  SamplingParams almost_zero;
  almost_zero.temperature = 1e-6F;
  EXPECT_EQ(Sampler().sample({.logits = logits}, almost_zero).token, 1);
}

TEST(Sampler, DrawsByTheSoftmaxOfLogitsOverTemperature) {
  const std::vector<double> probabilities = {0.5, 0.25, 0.125, 0.125};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    std::vector<float> logits;
    for (const double p : probabilities)
      logits.push_back(static_cast<float>(std::log(p)) * temperature);
    SamplingParams params;
    params.temperature = temperature;
    params.seed = 11;
    EXPECT_LT(chi_square(histogram(logits, params), probabilities), 16.3);  // 3 degrees, p = 0.001
  }
}

TEST(Sampler, StreamsOfDifferentSeedsAreIndependent) {
  const std::vector<float> logits(4, 0.0F);
  std::map<TokenId, int> pairs;
  Sampler sampler;
  for (std::uint64_t seed = 0; seed < 16'000; ++seed) {
    SamplingParams params;
    params.seed = seed;
    const TokenId a = sampler.sample({.logits = logits, .sample_index = 0}, params).token;
    params.seed = seed + 1;
    const TokenId b = sampler.sample({.logits = logits, .sample_index = 0}, params).token;
    ++pairs[a * 4 + b];
  }
  EXPECT_LT(chi_square(pairs, std::vector<double>(16, 1.0 / 16)), 37.7);
}

TEST(Sampler, IsAFunctionOfItsInputAlone) {
  const std::vector<float> a = random_logits(1000, 1);
  const std::vector<float> b = random_logits(700, 2);
  SamplingParams params;
  params.seed = 3;
  params.top_p = 0.9F;
  params.logprobs = 5;
  params.frequency_penalty = 0.5F;
  const std::vector<TokenId> history = {1, 2, 3, 2};
  const auto run = [&](Sampler& sampler, std::span<const float> logits, std::uint32_t index) {
    return sampler.sample(
        {.logits = logits, .history = history, .prompt_length = 1, .sample_index = index}, params);
  };
  Sampler busy;
  for (std::uint32_t index = 0; index < 50; ++index) {
    Sampler fresh;
    const GeneratedToken alone = run(fresh, a, index);
    run(busy, b, index);
    const GeneratedToken among_others = run(busy, a, index);
    EXPECT_EQ(alone.token, among_others.token);
    EXPECT_EQ(alone.logprob, among_others.logprob);
    ASSERT_EQ(alone.top.size(), 5U);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(alone.top[i].token, among_others.top[i].token);
      EXPECT_EQ(alone.top[i].logprob, among_others.top[i].logprob);
    }
  }
}

TEST(Sampler, TopKKeepsTheKMostLikelyAndOfEqualsTheLowestIds) {
  const std::vector<float> logits = {0, 1, 1, 1, 0.5F};
  EXPECT_EQ(support(logits, {.top_k = 1}), (std::set<TokenId>{1}));
  EXPECT_EQ(support(logits, {.top_k = 2}), (std::set<TokenId>{1, 2}));
  EXPECT_EQ(support(logits, {.top_k = 4}), (std::set<TokenId>{1, 2, 3, 4}));
  EXPECT_EQ(support(logits, {.top_k = 0}).size(), 5U);
  EXPECT_EQ(support(logits, {.top_k = 1000}).size(), 5U);
}

TEST(Sampler, TopPKeepsTheFewestThatReachTheMass) {
  std::vector<float> logits;
  for (const double p : {0.1, 0.4, 0.3, 0.2})
    logits.push_back(static_cast<float>(std::log(p)));
  EXPECT_EQ(support(logits, {.top_p = 1e-6F}), (std::set<TokenId>{1}));
  EXPECT_EQ(support(logits, {.top_p = 0.39F}), (std::set<TokenId>{1}));
  EXPECT_EQ(support(logits, {.top_p = 0.41F}), (std::set<TokenId>{1, 2}));
  EXPECT_EQ(support(logits, {.top_p = 0.71F}), (std::set<TokenId>{1, 2, 3}));
  EXPECT_EQ(support(logits, {.top_p = 1.0F}).size(), 4U);
}

TEST(Sampler, TopPOverALargeVocabularyKeepsWhatAFullSortWouldKeep) {
  const std::vector<float> logits = random_logits(2'000, 4);
  std::vector<std::pair<double, TokenId>> sorted;
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    sorted.push_back({-logits[i], static_cast<TokenId>(i)});
    total += std::exp(logits[i]);
  }
  std::sort(sorted.begin(), sorted.end());
  std::set<TokenId> expected;
  double mass = 0;
  for (const auto& [negated, token] : sorted) {
    if (mass >= 0.8 * total)
      break;
    expected.insert(token);
    mass += std::exp(-negated);
  }
  ASSERT_GT(expected.size(), 320U);
  std::set<TokenId> seen;
  for (const auto& [token, count] : histogram(logits, {.top_p = 0.8F}, 5'000))
    seen.insert(token);
  for (const TokenId token : seen)
    EXPECT_TRUE(expected.contains(token)) << token;
  EXPECT_GT(seen.size(), expected.size() * 8 / 10);
}

TEST(Sampler, TopPCountsTheMassThatTopKLeft) {
  std::vector<float> logits;
  for (const double p : {0.4, 0.3, 0.2, 0.1})
    logits.push_back(static_cast<float>(std::log(p)));
  EXPECT_EQ(support(logits, {.top_p = 0.5F}), (std::set<TokenId>{0, 1}));
  EXPECT_EQ(support(logits, {.top_p = 0.5F, .top_k = 2}), (std::set<TokenId>{0}));
}

TEST(Sampler, MinPKeepsWhatIsLikelyBesideTheMostLikely) {
  std::vector<float> logits;
  for (const double p : {0.5, 0.26, 0.14, 0.1})
    logits.push_back(static_cast<float>(std::log(p)));
  EXPECT_EQ(support(logits, {.min_p = 0.5F}), (std::set<TokenId>{0, 1}));
  EXPECT_EQ(support(logits, {.min_p = 0.25F}), (std::set<TokenId>{0, 1, 2}));
  EXPECT_EQ(support(logits, {.min_p = 1.0F}), (std::set<TokenId>{0}));
  EXPECT_EQ(support(logits, {.min_p = 0.0F}).size(), 4U);
  const std::vector<float> equals = {1, 1, 0.9F};
  EXPECT_EQ(support(equals, {.min_p = 1.0F}), (std::set<TokenId>{0, 1}));
}

TEST(Sampler, WithoutPenaltiesThePromptNeedNotBeThere) {
  const std::vector<float> logits = {1, 3, 2};
  EXPECT_EQ(greedy({.logits = logits, .prompt_length = 7}, {}), 1);
}

TEST(Sampler, LogitBiasIsAddedAndUnknownIdsAreIgnored) {
  const std::vector<float> logits = {1, 2, 3};
  EXPECT_EQ(greedy({.logits = logits}, {.logit_bias = {{0, 2.5F}}}), 0);
  EXPECT_EQ(greedy({.logits = logits}, {.logit_bias = {{2, -100.0F}}}), 1);
  EXPECT_EQ(greedy({.logits = logits}, {.logit_bias = {{3, 100.0F}, {-1, 100.0F}}}), 2);
}

TEST(Sampler, RepetitionPenaltyActsOnPromptAndOutputTowardsLess) {
  const std::vector<TokenId> history = {0, 2};
  const std::vector<float> positive = {4, 3, 4.5F};
  EXPECT_EQ(greedy({.logits = positive, .history = history, .prompt_length = 1},
                   {.repetition_penalty = 2.0F}),
            1);
  const std::vector<float> negative = {-1, -1.5F, -0.9F};
  EXPECT_EQ(greedy({.logits = negative, .history = history, .prompt_length = 1},
                   {.repetition_penalty = 2.0F}),
            1);
  EXPECT_EQ(greedy({.logits = negative, .history = history, .prompt_length = 1}), 2);
}

TEST(Sampler, PresenceAndFrequencyPenaltiesActOnTheOutputOnly) {
  // Token 0 stands in the prompt twice, token 1 in the output three times.
  const std::vector<TokenId> history = {0, 0, 1, 1, 1};
  const std::vector<float> close = {2.0F, 2.1F, 1.9F};
  for (const SamplingParams& params :
       {SamplingParams{.presence_penalty = 1.0F}, SamplingParams{.frequency_penalty = 1.0F}})
    EXPECT_EQ(greedy({.logits = close, .history = history, .prompt_length = 2}, params), 0);

  const std::vector<float> logits = {2.0F, 1.9F, 1.0F};
  const std::vector<TokenId> output = {0, 1, 0, 0};
  const auto with = [&](SamplingParams params) {
    return greedy({.logits = logits, .history = output, .prompt_length = 0}, params);
  };
  EXPECT_EQ(with({.presence_penalty = 0.5F}), 0);                              // 1.5, 1.4, 1.0
  EXPECT_EQ(with({.presence_penalty = 1.5F}), 2);                              // 0.5, 0.4, 1.0
  EXPECT_EQ(with({.frequency_penalty = 0.1F}), 1);                             // 1.7, 1.8, 1.0
  EXPECT_EQ(with({.frequency_penalty = 1.0F}), 2);                             // -1, 0.9, 1.0
  EXPECT_EQ(with({.presence_penalty = -1.0F}), 0);                             // 3.0, 2.9, 1.0
  EXPECT_EQ(with({.presence_penalty = 0.95F, .frequency_penalty = 0.0F}), 0);  // 1.05, 0.95, 1.0
}

TEST(Sampler, PenaltiesForgetTheHistoryOfTheCallBefore) {
  const std::vector<float> logits = {2.0F, 1.9F};
  const std::vector<TokenId> first = {0};
  const std::vector<TokenId> second = {1};
  SamplingParams params{.temperature = 0, .presence_penalty = 1.0F};
  Sampler sampler;
  EXPECT_EQ(sampler.sample({.logits = logits, .history = first}, params).token, 1);
  EXPECT_EQ(sampler.sample({.logits = logits, .history = second}, params).token, 0);
}

TEST(Sampler, EndTokensWaitForMinTokens) {
  const std::vector<float> logits = {1, 5, 4};
  const std::vector<TokenId> end_tokens = {1};
  SamplingParams params{.min_tokens = 3, .stop_token_ids = {2}};
  for (std::uint32_t index = 0; index < 3; ++index)
    EXPECT_EQ(greedy({.logits = logits, .sample_index = index, .end_tokens = end_tokens}, params),
              0);
  EXPECT_EQ(greedy({.logits = logits, .sample_index = 3, .end_tokens = end_tokens}, params), 1);
}

TEST(Sampler, LogprobsAreThoseOfTheRawLogits) {
  std::vector<float> logits;
  for (const double p : {0.125, 0.5, 0.125, 0.25})
    logits.push_back(static_cast<float>(std::log(p)) + 30);
  SamplingParams params{.temperature = 0, .logit_bias = {{0, 50.0F}}, .logprobs = 3};
  const GeneratedToken result = Sampler().sample({.logits = logits}, params);
  EXPECT_EQ(result.token, 0);
  EXPECT_NEAR(result.logprob, std::log(0.125), 1e-5);
  ASSERT_EQ(result.top.size(), 3U);
  EXPECT_EQ(result.top[0].token, 1);
  EXPECT_NEAR(result.top[0].logprob, std::log(0.5), 1e-5);
  EXPECT_EQ(result.top[1].token, 3);
  EXPECT_EQ(result.top[2].token, 0);  // as likely as 2
}

TEST(Sampler, LogprobsAreAsManyAsAskedFor) {
  const std::vector<float> logits = {0, 1, 2};
  SamplingParams params{.temperature = 0};
  EXPECT_TRUE(Sampler().sample({.logits = logits}, params).top.empty());
  params.logprobs = 0;
  EXPECT_TRUE(Sampler().sample({.logits = logits}, params).top.empty());
  EXPECT_NEAR(Sampler().sample({.logits = logits}, params).logprob, -0.4076, 1e-4);
  params.logprobs = 20;
  EXPECT_EQ(Sampler().sample({.logits = logits}, params).top.size(), 3U);
}

TEST(Sampler, NumbersThatAreNoneAreNeverChosen) {
  const std::vector<float> logits = {kNan, -kInfinity, 1, kNan, 0};
  EXPECT_EQ(greedy({.logits = logits}), 2);
  EXPECT_EQ(support(logits, {}), (std::set<TokenId>{2, 4}));
  EXPECT_EQ(support(logits, {.top_p = 0.99F, .top_k = 4}), (std::set<TokenId>{2, 4}));
  const GeneratedToken result =
      Sampler().sample({.logits = logits}, {.temperature = 0, .logprobs = 5});
  EXPECT_NEAR(result.logprob, -0.3133, 1e-4);
  EXPECT_EQ(result.top[0].token, 2);
  EXPECT_EQ(result.top[1].token, 4);
  EXPECT_EQ(result.top[2].logprob, -kInfinity);

  const std::vector<float> nothing(3, kNan);
  EXPECT_EQ(greedy({.logits = nothing}), 0);
  EXPECT_EQ(support(nothing, {.logprobs = 3}), (std::set<TokenId>{0}));
}

TEST(Sampler, SurvivesTheExtremesThatValidationAdmits) {
  const std::vector<float> logits = random_logits(300, 9);
  const std::vector<TokenId> history = {1, 299, 300, -1, 1};
  std::mt19937_64 random(10);
  const auto pick = [&](std::initializer_list<float> values) {
    return values.begin()[random() % values.size()];
  };
  Sampler sampler;
  for (int i = 0; i < 2'000; ++i) {
    SamplingParams params;
    params.temperature = pick({0, 1e-5F, 1, 100});
    params.top_p = pick({1e-30F, 0.5F, 1});
    params.top_k = static_cast<std::int32_t>(pick({0, 1, 299, 300, 2e9F}));
    params.min_p = pick({0, 1e-30F, 1});
    params.repetition_penalty = pick({1e-38F, 1, 3e38F});
    params.presence_penalty = pick({-2, 0, 2});
    params.logit_bias = {{5, pick({-100, 100})}};
    params.logprobs = static_cast<std::int32_t>(pick({-1, 0, 20}));
    ASSERT_TRUE(validate(params));
    const GeneratedToken result =
        sampler.sample({.logits = logits, .history = history, .prompt_length = 2}, params);
    ASSERT_GE(result.token, 0);
    ASSERT_LT(result.token, 300);
    ASSERT_LE(result.logprob, 0);
  }
}

}  // namespace
}  // namespace dormouse
