// A listening Unix socket and its file.
//
// Owns:   the socket and the file, which only this user can connect to. A file that is left over
//         from a process that ended is replaced; two processes that start at once do not replace
//         each other's.
// Errors: kFailedPrecondition (somebody listens there, or the file is no socket).
#pragma once

#include <string>

#include "base/unique_fd.h"
#include "dormouse/result.h"

namespace dormouse::net {

class Listener {
 public:
  static Result<Listener> open(const std::string& path);
  Listener(Listener&& other) noexcept = default;
  ~Listener();

  int fd() const { return socket_.get(); }

 private:
  Listener(UniqueFd socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}

  UniqueFd socket_;
  std::string path_;
};

}  // namespace dormouse::net
