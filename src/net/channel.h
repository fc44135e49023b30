// Framed messages over a connected Unix socket, with descriptors, in blocking calls.
//
// A frame is a length of four bytes, little endian, and that many bytes; descriptors travel with
// its first bytes, at most 250 with each. Bytes of a peer are data: a frame beyond the limits ends
// the connection.
//
// Owns:    one socket.
// Threads: one sender and one receiver at a time; shut_down from any.
// Errors:  kUnavailable (refused, reset, closed), kDeadlineExceeded, kDataLoss (no such frame).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "dormouse/result.h"

namespace dormouse::net {

using Deadline = std::chrono::steady_clock::time_point;

inline constexpr std::size_t kMaxFrameBytes = 4 << 20;
inline constexpr std::size_t kMaxDescriptors = 4096;  // of one message

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
  explicit Channel(UniqueFd socket);
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();

  // kInvalidArgument: beyond the limits, nothing was sent. After any other error the channel is
  // shut down, since part of the message may be out.
  Status send(Message message, Deadline deadline);
  // After kDeadlineExceeded the next call goes on where this one stopped.
  Result<Message> receive(Deadline deadline);

  // Ends blocked and later calls with kUnavailable.
  void shut_down();
  int fd() const { return socket_.get(); }

 private:
  struct Incoming;

  UniqueFd socket_;
  std::unique_ptr<Incoming> incoming_;
};

}  // namespace dormouse::net
