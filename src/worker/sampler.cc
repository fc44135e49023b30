#include "worker/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "worker/philox.h"

namespace dormouse {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5F;
constexpr std::size_t kFirstSorted = 64;

// The position of the largest; a NaN is never larger.
TokenId largest(std::span<const float> logits) {
  std::size_t best = 0;
  float best_logit = kMinusInfinity;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best_logit) {
      best = i;
      best_logit = logits[i];
    }
  }
  return static_cast<TokenId>(best);
}

bool forbids_end(const SampleInput& input, const SamplingParams& params) {
  return input.sample_index < params.min_tokens;
}

bool changes_logits(const SampleInput& input, const SamplingParams& params) {
  return !params.logit_bias.empty() || forbids_end(input, params) || needs_history(params);
}

}  // namespace

bool needs_history(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

GeneratedToken Sampler::sample(const SampleInput& input, const SamplingParams& params) {
  DM_CHECK(!input.logits.empty(), "no logits");
  DM_CHECK(!needs_history(params) || input.prompt_length <= input.history.size(),
           "the prompt is longer than the history");
  const std::span<const float> logits =
      changes_logits(input, params) ? adjust(input, params) : input.logits;
  GeneratedToken result;
  result.token = params.temperature < kGreedyBelow ? largest(logits)
                                                   : draw(logits, params, input.sample_index);
  if (params.logprobs >= 0)
    add_logprobs(input.logits, params.logprobs, result);
  return result;
}

std::span<const float> Sampler::adjust(const SampleInput& input, const SamplingParams& params) {
  adjusted_.assign(input.logits.begin(), input.logits.end());
  const auto known = [&](TokenId token) {
    return token >= 0 && static_cast<std::size_t>(token) < adjusted_.size();
  };
  for (const auto& [token, bias] : params.logit_bias)
    if (known(token))
      adjusted_[static_cast<std::size_t>(token)] += bias;
  if (forbids_end(input, params)) {
    for (const auto tokens : {input.end_tokens, std::span<const TokenId>(params.stop_token_ids)})
      for (const TokenId token : tokens)
        if (known(token))
          adjusted_[static_cast<std::size_t>(token)] = kMinusInfinity;
  }
  if (needs_history(params))
    apply_penalties(input, params);
  return adjusted_;
}

void Sampler::apply_penalties(const SampleInput& input, const SamplingParams& params) {
  constexpr std::uint32_t kSeen = 1;  // one for having occurred at all, then two for each output
  constexpr std::uint32_t kGenerated = 2;
  counts_.resize(adjusted_.size(), 0);
  for (std::size_t i = 0; i < input.history.size(); ++i) {
    const auto token = static_cast<std::size_t>(input.history[i]);
    if (token < counts_.size())
      counts_[token] = (counts_[token] | kSeen) + (i < input.prompt_length ? 0 : kGenerated);
  }
  for (const TokenId id : input.history) {
    const auto token = static_cast<std::size_t>(id);
    if (token >= counts_.size() || counts_[token] == 0)
      continue;
    const std::uint32_t generated = counts_[token] / kGenerated;
    counts_[token] = 0;
    float logit = adjusted_[token];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.frequency_penalty * static_cast<float>(generated);
    logit -= generated > 0 ? params.presence_penalty : 0;
    adjusted_[token] = logit;
  }
}

bool Sampler::more_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

TokenId Sampler::draw(std::span<const float> logits, const SamplingParams& params,
                      std::uint32_t sample_index) {
  const TokenId best = largest(logits);
  const double best_logit = logits[static_cast<std::size_t>(best)];
  const double temperature = params.temperature;
  const auto log_weight = [&](float logit) { return (logit - best_logit) / temperature; };
  const double least = params.min_p > 0 ? std::log(static_cast<double>(params.min_p))
                                        : -std::numeric_limits<double>::infinity();
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > kMinusInfinity && log_weight(logits[i]) >= least)
      candidates_.push_back({0, logits[i], static_cast<TokenId>(i)});
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < candidates_.size()) {
    sort_next(0, static_cast<std::size_t>(params.top_k));
    candidates_.resize(static_cast<std::size_t>(params.top_k));
  }
  for (Candidate& candidate : candidates_)
    candidate.weight = std::exp(log_weight(candidate.logit));
  if (params.top_p < 1)
    keep_top_p(params.top_p);

  double total = 0;
  for (const Candidate& candidate : candidates_)
    total += candidate.weight;
  double left = philox_uniform(params.seed, sample_index) * total;
  for (const Candidate& candidate : candidates_) {
    if (left < candidate.weight)
      return candidate.token;
    left -= candidate.weight;
  }
  return best;
}

void Sampler::sort_next(std::size_t from, std::size_t to) {
  const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(from);
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(to);
  if (end != candidates_.end())
    std::nth_element(begin, end, candidates_.end(), more_likely);
  std::sort(begin, end, more_likely);
}

void Sampler::keep_top_p(double top_p) {
  double total = 0;
  for (const Candidate& candidate : candidates_)
    total += candidate.weight;
  double mass = 0;
  std::size_t sorted = 0;
  for (std::size_t kept = 0; kept < candidates_.size(); ++kept) {
    if (kept > 0 && mass >= top_p * total) {
      candidates_.resize(kept);
      return;
    }
    if (kept == sorted) {
      sorted = std::min(candidates_.size(), kFirstSorted + 4 * sorted);
      sort_next(kept, sorted);
    }
    mass += candidates_[kept].weight;
  }
}

void Sampler::add_logprobs(std::span<const float> logits, std::int32_t count,
                           GeneratedToken& result) {
  const double best_logit = logits[static_cast<std::size_t>(largest(logits))];
  const auto wanted = static_cast<std::size_t>(count);
  double total = 0;
  candidates_.clear();  // the most likely so far, in order
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = std::isnan(logits[i]) ? kMinusInfinity : logits[i];
    total += logit > kMinusInfinity ? std::exp(logit - best_logit) : 0;
    const Candidate candidate{0, logit, static_cast<TokenId>(i)};
    if (candidates_.size() == wanted) {
      if (wanted == 0 || !more_likely(candidate, candidates_.back()))
        continue;
      candidates_.pop_back();
    }
    candidates_.insert(
        std::upper_bound(candidates_.begin(), candidates_.end(), candidate, more_likely),
        candidate);
  }
  const double log_total = best_logit + std::log(total);
  const auto logprob = [&](TokenId token) {
    const double value = logits[static_cast<std::size_t>(token)] - log_total;
    return std::isnan(value) ? kMinusInfinity : static_cast<float>(value);
  };
  result.logprob = logprob(result.token);
  for (const Candidate& candidate : candidates_)
    result.top.push_back({candidate.token, logprob(candidate.token)});
}

}  // namespace dormouse
