#include "cli/bench_peer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/json.h"
#include "base/unique_fd.h"
#include "server/http_client.h"

namespace dormouse::cli {
namespace {

using server::HttpClient;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(5);

Result<std::uint16_t> free_port() {
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (!probe || ::bind(probe.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return fail(ErrorCode::kInternal, "no free port on loopback");
  return ntohs(address.sin_port);
}

// A running llama-server with its log in a file; ended when destroyed.
class PeerProcess {
 public:
  static Result<std::unique_ptr<PeerProcess>> start(const BenchOptions& options,
                                                    std::uint32_t threads) {
    auto peer = std::unique_ptr<PeerProcess>(new PeerProcess());
    DM_TRY_ASSIGN(peer->address_.port, free_port());
    std::vector<std::string> words = {options.peer_server,
                                      "--model",
                                      options.engine.model,
                                      "--host",
                                      "127.0.0.1",
                                      "--port",
                                      std::to_string(peer->address_.port),
                                      "--threads",
                                      std::to_string(threads),
                                      "--threads-batch",
                                      std::to_string(threads),
                                      "--parallel",
                                      std::to_string(kSequences),
                                      "--ctx-size",
                                      std::to_string(kSequences * 1024)};
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);

    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, peer->log_.c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
    const int error = ::posix_spawn(&peer->pid_, argv[0], &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
      return fail(ErrorCode::kNotFound,
                  fmt::format("{}: {}", options.peer_server, std::strerror(error)));
    return peer;
  }
  ~PeerProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    std::error_code ignored;
    std::filesystem::remove(log_, ignored);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const server::Address& address() const { return address_; }

  Status wait_until_ready() {
    const auto deadline = Clock::now() + std::chrono::minutes(1);
    while (Clock::now() < deadline) {
      if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
        pid_ = -1;
        return fail(ErrorCode::kUnavailable, "the peer ended: " + last_log_line());
      }
      if (auto client = HttpClient::connect(address_, std::chrono::seconds(5))) {
        const auto health = client->call("GET", "/health");
        if (health && health->status == 200)
          return {};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return fail(ErrorCode::kUnavailable, "the peer did not come up within a minute");
  }

  std::string features() const {
    std::ifstream file(log_);
    for (std::string line; std::getline(file, line);)
      if (const std::size_t at = line.find("system_info:"); at != std::string::npos)
        return line.substr(at);
    return "prints no system_info";
  }

 private:
  PeerProcess()
      : log_(std::filesystem::temp_directory_path() /
             fmt::format("dormouse-bench-peer-{}.log", ::getpid())) {}

  std::string last_log_line() const {
    std::ifstream file(log_);
    std::string last;
    for (std::string line; std::getline(file, line);)
      last = line;
    return last;
  }

  std::string log_;
  server::Address address_;
  pid_t pid_ = -1;
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
