#include "cli/router.h"

#include <fmt/core.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "cli/options.h"
#include "cli/version.h"
#include "router/pd_router.h"

namespace dormouse::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPoll{100};

sigset_t own_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    sigaddset(&set, signal);
  return set;
}

// Whether a signal to stop came within this time. All are blocked in every thread.
bool stop_requested(milliseconds wait) {
  const sigset_t set = own_signals();
  const timespec limit{.tv_sec = wait.count() / 1000, .tv_nsec = wait.count() % 1000 * 1'000'000};
  const int signal = sigtimedwait(&set, nullptr, &limit);
  return signal == SIGINT || signal == SIGTERM;
}

void print_banner(const router::PdRouterOptions& options, std::uint16_t port) {
  const std::string& host = options.http.host;
  const bool is_v6 = host.find(':') != std::string::npos;
  const std::string base =
      fmt::format("http://{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
  std::string text = fmt::format("Dormouse {} router\n", kVersion);
  for (const std::string& url : options.prefill)
    text += fmt::format("  prefill    {}\n", url);
  for (const std::string& url : options.decode)
    text += fmt::format("  decode     {}\n", url);
  text += options.api_key.empty()
              ? "  auth       none: loopback only; --api-key KEY guards every call\n"
              : "  auth       every call but /health needs the API key\n";
  text += fmt::format("  API        {}/v1/chat/completions, /v1/completions, /v1/models\n", base);
  text += fmt::format("  status     {}/status, /health/ready, /metrics\n", base);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Ends every request within the timeout; a second signal cuts it short.
void drain(router::PdRouter& router, milliseconds timeout) {
  log(LogLevel::kInfo, "cli", "shutting down timeout_ms={}", timeout.count());
  std::atomic<bool> done = false;
  std::thread stopper([&] {
    router.stop(timeout);
    done = true;
  });
  while (!done) {
    if (stop_requested(kPoll))
      std::_Exit(kExitInterrupted);
  }
  stopper.join();
}

}  // namespace

int run_router(int argc, char** argv) {
  const auto parsed = parse_router(argc, argv);
  if (const auto* code = std::get_if<ExitCode>(&parsed))
    return *code;
  const auto& options = std::get<RouterOptions>(parsed);
  set_log_level(options.log_level);
  // Blocked before the first thread starts, so that all inherit it and this one alone takes them.
  const sigset_t set = own_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  const auto router = router::PdRouter::start(options.router);
  if (!router) {
    std::fprintf(stderr, "dormouse: %s\n", router.error().message.c_str());
    return router.error().code == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailed;
  }
  print_banner(options.router, (*router)->port());
  while (!stop_requested(kPoll)) {
  }
  drain(**router, options.shutdown_timeout);
  return kExitOk;
}

}  // namespace dormouse::cli
