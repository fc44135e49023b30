// The command line of every subcommand, read and checked.
#pragma once

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "base/log.h"
#include "dormouse/config.h"
#include "router/pd_router.h"
#include "server/api_server.h"

namespace dormouse::cli {

// What every subcommand exits with.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // it was tried, and failed
  kExitUsage = 2,        // the command line is wrong; nothing was done
  kExitUnreachable = 3,  // ctl: no server answers at this address
  kExitRefused = 4,      // ctl: the server refused the call
  kExitInterrupted = 130,
};

struct ServeOptions {
  EngineConfig engine;
  server::ApiServerOptions api;
  std::chrono::milliseconds shutdown_timeout{0};
  LogLevel log_level = LogLevel::kInfo;
};

struct RouterOptions {
  router::PdRouterOptions router;
  std::chrono::milliseconds shutdown_timeout{0};
  LogLevel log_level = LogLevel::kInfo;
};

struct CtlOptions {
  std::string route;  // of the call; empty: look at the status
  std::string url;
  std::string api_key;
  bool json = false;
  int level = 1;
  std::string mode;               // sleep, pause
  std::int64_t timeout_ms = -1;   // sleep: of mode wait; -1: none
  bool force = false;             // sleep
  std::vector<std::string> tags;  // wake: empty for all
  double interval_seconds = 1;
  int refreshes = 1;  // looks at the status; 0 for ever
};

struct DemoOptions {
  EngineConfig engine;
  bool json = false;
  std::uint32_t prompts = 30;
  std::uint32_t tokens = 48;  // of each answer
  std::uint32_t cycles = 2;   // of each phase
  bool full = false;          // every level and two cycles for prefill and decode instances, too
};

enum class BenchKind { kSleep, kServe, kTransfer };

struct BenchOptions {
  BenchKind kind = BenchKind::kSleep;
  EngineConfig engine;
  bool json = false;
  std::uint32_t rounds = 5;
  std::uint64_t bytes = 0;  // sleep: of an allocation instead of a model; 0: the model
  std::string peer_server;  // serve: path of llama.cpp's llama-server; empty: none
};

// The options, or what to exit with after help or an error has been printed.
std::variant<ServeOptions, ExitCode> parse_serve(int argc, char** argv);
std::variant<RouterOptions, ExitCode> parse_router(int argc, char** argv);
std::variant<CtlOptions, ExitCode> parse_ctl(int argc, char** argv);
std::variant<DemoOptions, ExitCode> parse_demo(int argc, char** argv);
std::variant<BenchOptions, ExitCode> parse_bench(int argc, char** argv);

}  // namespace dormouse::cli
