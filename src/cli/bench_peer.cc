#include "cli/bench_peer.h"

#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/json.h"
#include "cli/child_process.h"
#include "server/http_client.h"

namespace dormouse::cli {
namespace {

using server::HttpClient;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(5);

// A running llama-server; ended when destroyed.
class PeerProcess {
 public:
  static Result<std::unique_ptr<PeerProcess>> start(const BenchOptions& options,
                                                    std::uint32_t threads) {
    auto peer = std::unique_ptr<PeerProcess>(new PeerProcess());
    DM_TRY_ASSIGN(peer->address_.port, free_port());
    DM_TRY_ASSIGN(
        peer->process_,
        ChildProcess::start({options.peer_server, "--model", options.engine.model, "--host",
                             "127.0.0.1", "--port", std::to_string(peer->address_.port),
                             "--threads", std::to_string(threads), "--threads-batch",
                             std::to_string(threads), "--parallel", std::to_string(kSequences),
                             "--ctx-size", std::to_string(kSequences * 1024)}));
    return peer;
  }

  const server::Address& address() const { return address_; }
  Status wait_until_ready() { return wait_until_healthy(*process_, address_, "/health"); }

  std::string features() const {
    const std::string log = process_->log();
    const std::size_t at = log.find("system_info:");
    return at == std::string::npos ? "prints no system_info"
                                   : log.substr(at, log.find('\n', at) - at);
  }

 private:
  PeerProcess() = default;
  server::Address address_;
  std::unique_ptr<ChildProcess> process_;
};

// The server's timings of one request.
struct Timings {
  double decode_per_s = 0;
  double prefill_per_s = 0;
};

Result<Timings> complete(const server::Address& address, const std::vector<TokenId>& prompt,
                         std::uint32_t tokens) {
  Json::Array ids;
  for (const TokenId token : prompt)
    ids.emplace_back(token);
  const Json body = Json::Object{{"prompt", std::move(ids)},
                                 {"n_predict", tokens},
                                 {"temperature", 0.0},
                                 {"ignore_eos", true},
                                 {"cache_prompt", false}};
  DM_TRY_ASSIGN(HttpClient client, HttpClient::connect(address, kPatience));
  DM_TRY_ASSIGN(const auto response, client.call("POST", "/completion", body.dump()));
  if (response.status != 200)
    return fail(ErrorCode::kInternal,
                fmt::format("the peer answered {}: {}", response.status, response.body));
  DM_TRY_ASSIGN(const Json answer, parse_json(response.body));
  const Json* generated = answer.find("tokens_predicted");
  const Json* timings = answer.find("timings");
  if (timings == nullptr || generated == nullptr || generated->as_unsigned() != tokens)
    return fail(ErrorCode::kInternal, "the peer answered without timings, or too few tokens");
  const auto rate = [&](std::string_view name) {
    const Json* value = timings->find(name);
    return value == nullptr ? 0 : value->as_double();
  };
  return Timings{rate("predicted_per_second"), rate("prompt_per_second")};
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Result<double> decode_together(const server::Address& address, const Workload& workload) {
  std::vector<Status> statuses(kSequences);
  const auto start = Clock::now();
  std::vector<std::jthread> clients;
  for (std::uint32_t i = 0; i < kSequences; ++i)
    clients.emplace_back([&, i] {
      const auto done = complete(address, workload.prompt(kShortPrompt, i), kAnswerTokens);
      if (!done)
        statuses[i] = tl::unexpected(done.error());
    });
  clients.clear();
  for (const Status& status : statuses)
    DM_TRY(status);
  return kSequences * kAnswerTokens / seconds_since(start);
}

}  // namespace

std::vector<TokenId> Workload::prompt(std::size_t length, std::uint32_t number) const {
  DM_CHECK(vocab_size > 0, "the vocabulary is not known yet");
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < length; ++i)
    tokens.push_back(static_cast<TokenId>((1000 + i * 7919 + number * 104729) % vocab_size));
  return tokens;
}

Result<ServeFigures> measure_peer(const BenchOptions& options, const Workload& workload) {
  const auto start = Clock::now();
  DM_TRY_ASSIGN(const auto peer, PeerProcess::start(options, workload.threads));
  DM_TRY(peer->wait_until_ready());
  const server::Address& address = peer->address();
  DM_TRY(complete(address, workload.prompt(kShortPrompt, 0), 1));
  ServeFigures figures{.name = "llama.cpp", .features = peer->features()};
  figures.first_token_ms = 1e3 * seconds_since(start);
  for (std::uint32_t i = 0; i < options.rounds; ++i) {
    DM_TRY_ASSIGN(const Timings single,
                  complete(address, workload.prompt(kShortPrompt, 0), kAnswerTokens));
    figures.decode.push_back(single.decode_per_s);
    DM_TRY_ASSIGN(const double eight, decode_together(address, workload));
    figures.eight.push_back(eight);
    DM_TRY_ASSIGN(const Timings prefill, complete(address, workload.prompt(kLongPrompt, i), 1));
    figures.prefill.push_back(prefill.prefill_per_s);
  }
  return figures;
}

}  // namespace dormouse::cli
