// Framed messages over a connected Unix socket, with descriptors, in blocking calls.
//
// A frame is a length of four bytes, little endian, and that many bytes; descriptors travel with
// its first byte. Bytes of a peer are data: a frame beyond the limit ends the connection.
//
// Owns:    one socket.
// Threads: one sender and one receiver at a time; shut_down from any.
// Errors:  kUnavailable (refused, reset, closed), kDeadlineExceeded, kDataLoss (no such frame).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "dormouse/result.h"

namespace dormouse::net {

using Deadline = std::chrono::steady_clock::time_point;

inline constexpr std::size_t kMaxFrameBytes = 4 << 20;
inline constexpr std::size_t kMaxDescriptors = 250;  // the kernel takes 253 in one message

struct Message {
  std::string bytes;
  std::vector<UniqueFd> descriptors = {};
};

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

class Channel {
 public:
  static Result<Channel> connect(const std::string& path, Deadline deadline);
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}

  // More than kMaxDescriptors descriptors go in several frames' worth of control messages; the
  // receiver sees one message.
  Status send(const Message& message, Deadline deadline);
  Result<Message> receive(Deadline deadline);

  // Who connected or listens, as the kernel knows it.
  Result<PeerCredentials> peer() const;
  // Ends blocked and later calls with kUnavailable.
  void shut_down();
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

}  // namespace dormouse::net
