#include "cli/serve.h"

#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "base/log.h"
#include "cli/ctl_tables.h"
#include "cli/options.h"
#include "cli/units.h"
#include "cli/version.h"
#include "dormouse/engine.h"
#include "server/engine_json.h"

namespace dormouse::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStopGrace{2'000};  // for answers that are complete but not yet sent
constexpr milliseconds kPoll{100};

sigset_t own_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1})
    sigaddset(&set, signal);
  return set;
}

void log_status(const EngineStatus& status) {
  std::string bytes;
  for (const auto& [tag, usage] : status.memory)
    bytes += fmt::format(" {}_mapped={} {}_asleep={} {}_backed_up={}", tag, usage.mapped, tag,
                         usage.asleep, tag, usage.backed_up);
  log(LogLevel::kInfo, "cli", "status state={} level={} requests_running={} requests_waiting={}{}",
      to_string(status.state), status.sleep_level, status.requests_running, status.requests_waiting,
      bytes);
}

// Whether a signal to stop came within this time; others are answered. All are blocked in every
// thread.
bool stop_requested(const Engine& engine, milliseconds wait) {
  const sigset_t set = own_signals();
  const timespec limit{.tv_sec = wait.count() / 1000, .tv_nsec = wait.count() % 1000 * 1'000'000};
  const int signal = sigtimedwait(&set, nullptr, &limit);
  if (signal == SIGUSR1)
    log_status(engine.status());
  else if (signal == SIGHUP)
    log(LogLevel::kInfo, "cli", "SIGHUP ignored: there is nothing to read again");
  return signal == SIGINT || signal == SIGTERM;
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string url(const ServeOptions& options, std::uint16_t port) {
  const std::string& host = options.api.http.host;
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

// Shows the load until it ends or a signal comes; false for a signal.
bool follow_load(const Engine& engine) {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const auto started = std::chrono::steady_clock::now();
  int shown_seconds = 0;
  while (true) {
    const EngineStatus status = engine.status();
    const bool loading =
        status.state == EngineState::kStarting || status.state == EngineState::kLoading;
    if (terminal && (loading || shown_seconds > 0)) {
      shown_seconds = 1;
      std::fprintf(stderr, "\rloading %s%s", format_bar(loading ? status.load_progress : 1).c_str(),
                   loading ? "" : "\n");
    }
    if (!loading)
      return true;
    const auto elapsed = std::chrono::steady_clock::now() - started;
    if (!terminal && elapsed >= std::chrono::seconds(shown_seconds + 1)) {
      ++shown_seconds;
      log(LogLevel::kInfo, "cli", "loading percent={:.0f} {}", status.load_progress * 100,
          status.cause);
    }
    if (stop_requested(engine, kPoll))
      return false;
  }
}

std::string backup_name(WeightBackup backup) {
  return backup == WeightBackup::kRetain ? "retain"
         : backup == WeightBackup::kFile ? "file"
                                         : "release";
}

void print_banner(const ServeOptions& options, const EngineStatus& status, std::uint16_t port) {
  say(fmt::format("Dormouse {}", kVersion));
  say(fmt::format("  model      {} ({})", status.served_model_name, status.model_path));
  say(fmt::format("  kernels    {}", status.kernel));
  for (const auto& [tag, usage] : status.memory)
    say(fmt::format("  {:<10} {}", tag, format_bytes(static_cast<double>(usage.mapped))));
  say(fmt::format("  context    {} tokens; the KV cache holds {} ({} blocks of {})",
                  format_count(status.max_model_len),
                  format_count(std::uint64_t{status.blocks_total} * status.block_size),
                  format_count(status.blocks_total), status.block_size));
  say(options.engine.enable_sleep_mode
          ? fmt::format("  sleep      levels 0, 1, 2; host copy of the weights: {}",
                        backup_name(options.engine.weight_backup))
          : "  sleep      off: level 0 (pause) only; start with --enable-sleep-mode for more");
  if (!status.kv_connector.empty())
    say(fmt::format("  transfer   {}",
                    transfer_text(server::kv_transfer_json(status, options.engine.kv_transfer))));
  say(options.api.api_key.empty()
          ? "  auth       none: loopback only; --api-key KEY guards every call"
          : "  auth       every call but /health, /ping and /version needs the API key");
  const std::string base = url(options, port);
  say(fmt::format("  API        {}/v1/chat/completions, /v1/completions, /v1/models", base));
  say(fmt::format("  control    {}/status, /health/ready, /sleep, /wake_up; dormouse ctl --url {}",
                  base, base));
}

// Ends every request within the timeout; a second signal cuts it short.
void drain(Engine& engine, milliseconds timeout) {
  log(LogLevel::kInfo, "cli", "shutting down timeout_ms={} requests={}", timeout.count(),
      engine.status().requests_running);
  std::atomic<bool> done = false;
  std::thread shutdown([&] {
    engine.shutdown(timeout);
    done = true;
  });
  std::thread at_once;
  while (!done) {
    if (!stop_requested(engine, kPoll))
      continue;
    if (at_once.joinable())
      std::_Exit(kExitInterrupted);
    log(LogLevel::kWarning, "cli", "second signal: requests under way are aborted");
    at_once = std::thread([&] { engine.shutdown(milliseconds(0)); });
  }
  shutdown.join();
  if (at_once.joinable())
    at_once.join();
}

int serve(const ServeOptions& options) {
  const auto engine = Engine::start(options.engine);
  auto server = server::ApiServer::start(*engine, options.api);
  if (!server) {
    std::fprintf(stderr, "dormouse: %s\n", server.error().message.c_str());
    set_log_level(LogLevel::kOff);  // the load that ends now is not what went wrong
    engine->shutdown(milliseconds(0));
    return kExitFailed;
  }
  log(LogLevel::kInfo, "cli", "listening url={}", url(options, (*server)->port()));
  bool stopped = !follow_load(*engine);
  bool failed = engine->status().state == EngineState::kFailed;
  if (!stopped && !failed)
    print_banner(options, engine->status(), (*server)->port());
  while (!stopped && !failed) {
    stopped = stop_requested(*engine, kPoll);
    failed = engine->status().state == EngineState::kFailed;
  }
  if (failed) {
    std::fprintf(stderr, "dormouse: %s\n", engine->status().cause.c_str());
    set_log_level(LogLevel::kOff);
  }
  (*server)->begin_drain();
  drain(*engine, failed ? milliseconds(0) : options.shutdown_timeout);
  (*server)->stop(kStopGrace);
  return failed ? kExitFailed : kExitOk;
}

}  // namespace

int run_serve(int argc, char** argv) {
  const auto parsed = parse_serve(argc, argv);
  if (const auto* code = std::get_if<ExitCode>(&parsed))
    return *code;
  const auto& options = std::get<ServeOptions>(parsed);
  set_log_level(options.log_level);
  // Blocked before the first thread starts, so that all inherit it and this one alone takes them.
  const sigset_t set = own_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return serve(options);
}

}  // namespace dormouse::cli
