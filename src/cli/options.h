// The command line of `serve` and `ctl`, read and checked.
#pragma once

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "base/log.h"
#include "dormouse/config.h"
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

enum class CtlAction { kStatus, kSleep, kWake, kTop };

struct CtlOptions {
  CtlAction action = CtlAction::kStatus;
  std::string url;
  std::string api_key;
  bool json = false;
  int level = 1;
  std::string mode;
  std::int64_t timeout_ms = -1;   // sleep: of mode wait; -1: none
  std::vector<std::string> tags;  // wake: empty for all
  double interval_seconds = 1;    // top
  int refreshes = 0;              // top: 0 for ever
};

// The options, or what to exit with after help or an error has been printed.
std::variant<ServeOptions, ExitCode> parse_serve(int argc, char** argv);
std::variant<CtlOptions, ExitCode> parse_ctl(int argc, char** argv);

}  // namespace dormouse::cli
