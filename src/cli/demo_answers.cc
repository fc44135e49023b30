#include "cli/demo_answers.h"

#include <fmt/core.h>

#include <bit>
#include <condition_variable>
#include <mutex>

namespace dormouse::cli {
namespace {

// What arrives for one set of prompts; shared with the sinks, which may outlive the caller's wait.
struct Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Answer> answers;
  std::size_t unfinished = 0;
  Status status;

  void take(std::size_t index, const RequestOutput& output) {
    const std::lock_guard lock(mutex);
    for (const GeneratedToken& token : output.tokens) {
      answers[index].tokens.push_back(token.token);
      answers[index].logprobs.push_back(token.logprob);
    }
    if (!output.finished)
      return;
    if (*output.finished != FinishReason::kLength)
      keep_first(status, fail(ErrorCode::kInternal,
                              fmt::format("prompt {} ended with \"{}\": {}", index,
                                          to_string(*output.finished), output.error.message)));
    --unfinished;
    changed.notify_all();
  }
};

}  // namespace

bool Answer::identical_to(const Answer& other) const {
  if (tokens != other.tokens || logprobs.size() != other.logprobs.size())
    return false;
  for (std::size_t i = 0; i < logprobs.size(); ++i)
    if (std::bit_cast<std::uint32_t>(logprobs[i]) !=
        std::bit_cast<std::uint32_t>(other.logprobs[i]))
      return false;
  return true;
}

std::size_t count_identical(const std::vector<Answer>& answers, const std::vector<Answer>& first) {
  std::size_t identical = 0;
  for (std::size_t i = 0; i < std::min(answers.size(), first.size()); ++i)
    identical += answers[i].identical_to(first[i]) ? 1 : 0;
  return identical;
}

Request greedy_request(std::vector<TokenId> prompt, std::uint32_t tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 0;
  return request;
}

Result<std::vector<Answer>> ask(Engine& engine, const std::vector<std::vector<TokenId>>& prompts,
                                std::uint32_t tokens) {
  const auto inbox = std::make_shared<Inbox>();
  inbox->answers.resize(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    {
      const std::lock_guard lock(inbox->mutex);
      ++inbox->unfinished;
    }
    const auto accepted =
        engine.submit(greedy_request(prompts[i], tokens),
                      [inbox, i](RequestOutput output) { inbox->take(i, output); });
    if (accepted)
      continue;
    const std::lock_guard lock(inbox->mutex);
    --inbox->unfinished;
    keep_first(inbox->status, tl::unexpected(accepted.error()));
    break;
  }
  std::unique_lock lock(inbox->mutex);
  inbox->changed.wait(lock, [&] { return inbox->unfinished == 0; });
  if (!inbox->status)
    return tl::unexpected(inbox->status.error());
  return std::move(inbox->answers);
}

}  // namespace dormouse::cli
