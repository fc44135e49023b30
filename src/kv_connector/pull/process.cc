#include "kv_connector/pull/process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace dormouse::pull {

Process::Process(pid_t pid)
    : pid_(pid),
      handle_(std::make_shared<UniqueFd>(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))) {}

bool Process::has_ended() const {
  pollfd entry{handle_->get(), POLLIN, 0};
  return *handle_ && ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
}

}  // namespace dormouse::pull
