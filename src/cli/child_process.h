// A program started beside this one, its output in a file.
//
// Owns:    the process, killed when this is destroyed, and the file.
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dormouse/result.h"
#include "server/http_client.h"

namespace dormouse::cli {

class ChildProcess {
 public:
  // words[0] is the program. kNotFound: it cannot be started.
  static Result<std::unique_ptr<ChildProcess>> start(std::vector<std::string> words);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool ended();
  std::string log() const;
  std::string last_log_line() const;

 private:
  explicit ChildProcess(std::string log) : log_(std::move(log)) {}

  std::string log_;
  pid_t pid_ = -1;
};

// A port of loopback that nobody listens on now.
Result<std::uint16_t> free_port();

// Waits until GET `path` answers 200. kUnavailable: the process ended, with its last line, or a
// minute has passed.
Status wait_until_healthy(ChildProcess& process, const server::Address& address,
                          const std::string& path);

}  // namespace dormouse::cli
