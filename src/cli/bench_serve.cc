#include "cli/bench_serve.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "cli/bench_peer.h"
#include "cli/demo_answers.h"
#include "dormouse/engine.h"
#include "text/tokenizer.h"

namespace dormouse::cli {
namespace {

using Clock = std::chrono::steady_clock;

// When the tokens of some requests that were sent at once arrived. Must live until wait returns.
class Timeline {
 public:
  void expect_one_more() {
    const std::lock_guard lock(mutex_);
    ++unfinished_;
  }
  void take(const RequestOutput& output) {
    const std::lock_guard lock(mutex_);
    if (!output.tokens.empty()) {
      last_ = Clock::now();
      first_ = first_.value_or(last_);
      tokens_ += output.tokens.size();
    }
    if (!output.finished)
      return;
    Status status;
    if (*output.finished != FinishReason::kLength)
      status = fail(ErrorCode::kInternal,
                    fmt::format("a request ended with \"{}\": {}", to_string(*output.finished),
                                output.error.message));
    end_one_locked(std::move(status));
  }
  void end_one(Status status) {
    const std::lock_guard lock(mutex_);
    end_one_locked(std::move(status));
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return unfinished_ == 0; });
    return status_;
  }

  // After wait.
  std::size_t tokens() const { return tokens_; }
  Clock::time_point first() const { return *first_; }
  Clock::time_point last() const { return last_; }

 private:
  void end_one_locked(Status status) {
    keep_first(status_, std::move(status));
    --unfinished_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t unfinished_ = 0;
  std::size_t tokens_ = 0;
  std::optional<Clock::time_point> first_;
  Clock::time_point last_;
  Status status_;
};

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Sends `sequences` requests at once and waits until all have ended.
Status send(Engine& engine, const Workload& workload, std::uint32_t sequences,
            std::size_t prompt_length, std::uint32_t tokens, Timeline& timeline) {
  for (std::uint32_t i = 0; i < sequences; ++i) {
    Request request = greedy_request(workload.prompt(prompt_length, i), tokens);
    request.sampling.logprobs = -1;
    timeline.expect_one_more();
    const auto accepted = engine.submit(
        std::move(request), [&timeline](RequestOutput output) { timeline.take(output); });
    if (!accepted)
      timeline.end_one(tl::unexpected(accepted.error()));
  }
  return timeline.wait();
}

Status measure_round(Engine& engine, const Workload& workload, ServeFigures& figures) {
  Timeline single;
  DM_TRY(send(engine, workload, 1, kShortPrompt, kAnswerTokens, single));
  figures.decode.push_back((kAnswerTokens - 1) / seconds(single.last() - single.first()));

  Timeline eight;
  auto start = Clock::now();
  DM_TRY(send(engine, workload, kSequences, kShortPrompt, kAnswerTokens, eight));
  figures.eight.push_back(static_cast<double>(eight.tokens()) / seconds(eight.last() - start));

  Timeline prefill;
  start = Clock::now();
  DM_TRY(send(engine, workload, 1, kLongPrompt, 1, prefill));
  figures.prefill.push_back(kLongPrompt / seconds(prefill.first() - start));
  return {};
}

Result<ServeFigures> measure_engine(const BenchOptions& options, Workload& workload) {
  EngineConfig config = options.engine;
  config.enable_prefix_caching = false;
  const auto start = Clock::now();
  const auto engine = Engine::start(config);
  DM_TRY(engine->wait_until_loaded());
  workload.vocab_size = engine->tokenizer()->vocab_size();
  Timeline first;
  DM_TRY(send(*engine, workload, 1, kShortPrompt, 1, first));
  ServeFigures figures{.name = "dormouse", .features = "kernels " + engine->status().kernel};
  figures.first_token_ms = 1e3 * seconds(first.first() - start);
  for (std::uint32_t i = 0; i < options.rounds; ++i)
    DM_TRY(measure_round(*engine, workload, figures));
  return figures;
}

std::string row(std::string_view what, const std::vector<double>& ours,
                const std::vector<double>& peer) {
  std::string text = fmt::format("{:<44} {:>10.1f}", what, median(ours));
  if (!peer.empty())
    text += fmt::format(" {:>10.1f} {:>8.2f}", median(peer), median(ours) / median(peer));
  return text + "\n";
}

std::string to_text(const ServeFigures& ours, const std::optional<ServeFigures>& peer) {
  const ServeFigures& other = peer ? *peer : ServeFigures{};
  std::string text = fmt::format("{}: {}\n", ours.name, ours.features);
  if (peer)
    text += fmt::format("{}: {}\n", other.name, other.features);
  text += fmt::format("\n{:<44} {:>10} {:>10} {:>8}\n", "median, tokens per second", ours.name,
                      other.name, peer ? "ratio" : "");
  text += row("decode, 1 sequence", ours.decode, other.decode);
  text +=
      row(fmt::format("decode, {} sequences, of wall clock", kSequences), ours.eight, other.eight);
  text += row(fmt::format("prefill, {} tokens", kLongPrompt), ours.prefill, other.prefill);
  text += fmt::format("{:<44} {:>10.0f}", "start to first token, ms", ours.first_token_ms);
  if (peer)
    return text + fmt::format(" {:>10.0f}", other.first_token_ms);
  return text + "\n\nThe peer was not run: name its server with --peer-server (bench/README.md).";
}

Json figures_json(const ServeFigures& figures) {
  return Json::Object{{"features", figures.features},
                      {"decode_tokens_per_s", median(figures.decode)},
                      {"decode_8_tokens_per_s", median(figures.eight)},
                      {"prefill_512_tokens_per_s", median(figures.prefill)},
                      {"start_to_first_token_ms", figures.first_token_ms}};
}

Json to_json(const BenchOptions& options, const Workload& workload, const ServeFigures& ours,
             const std::optional<ServeFigures>& peer) {
  Json json = Json::Object{{"bench", "serve"},
                           {"model", options.engine.model},
                           {"threads", workload.threads},
                           {"rounds", options.rounds},
                           {"dormouse", figures_json(ours)}};
  json.add("peer", peer ? figures_json(*peer) : Json());
  if (peer)
    json.add("ratio", Json::Object{{"decode", median(ours.decode) / median(peer->decode)},
                                   {"decode_8", median(ours.eight) / median(peer->eight)},
                                   {"prefill_512", median(ours.prefill) / median(peer->prefill)}});
  return json;
}

}  // namespace

Result<BenchReport> bench_serve(const BenchOptions& options) {
  Workload workload;
  workload.threads = options.engine.threads > 0 ? options.engine.threads
                                                : std::max(1U, std::thread::hardware_concurrency());
  DM_TRY_ASSIGN(const ServeFigures ours, measure_engine(options, workload));
  std::optional<ServeFigures> peer;
  if (!options.peer_server.empty()) {
    DM_TRY_ASSIGN(peer, measure_peer(options, workload));
  }
  return BenchReport{to_text(ours, peer), to_json(options, workload, ours, peer)};
}

}  // namespace dormouse::cli
