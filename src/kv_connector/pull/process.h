// A process as whoever talked to it knows it: its number, and whether it has ended.
//
// Told of its end by the system, also while nobody has waited for it, and when its number has
// become another's. Where the system does not tell, it is not known to have ended.
//
// Threads: any; copies share what they own.
#pragma once

#include <sys/types.h>

#include <memory>

#include "base/unique_fd.h"

namespace dormouse::pull {

class Process {
 public:
  // While it is certainly there, as one whose connection was just made.
  explicit Process(pid_t pid = 0);
  pid_t pid() const { return pid_; }
  bool has_ended() const;

 private:
  pid_t pid_ = 0;
  std::shared_ptr<const UniqueFd> handle_;
};

}  // namespace dormouse::pull
