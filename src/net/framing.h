// Frames on a socket that must not block: what is there is read, what fits is written.
//
// A reader takes no byte beyond the frame it is at, since descriptors arrive with the first bytes
// that they were sent with.
//
// Threads: one at a time.
// Errors:  kUnavailable (closed, reset), kDataLoss (a frame or descriptors beyond the limit).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "net/channel.h"

namespace dormouse::net {

inline constexpr std::size_t kHeaderBytes = 4;

// The next message, in as many calls as it takes.
class FrameReader {
 public:
  // Nothing: the rest is not there yet. Reads at most one frame of at most `max_bytes`.
  Result<std::optional<Message>> read(int socket, std::size_t max_bytes = kMaxFrameBytes,
                                      std::size_t max_descriptors = kMaxDescriptors);

 private:
  Result<bool> fill(int socket, std::string& to, std::size_t size, std::size_t max_descriptors);

  std::string header_;
  Message message_;
};

// Messages on their way out, in order.
class FrameWriter {
 public:
  // kInvalidArgument: beyond kMaxFrameBytes or kMaxDescriptors.
  Status push(Message message);
  // True: everything is sent.
  Result<bool> write(int socket);
  // Bytes in memory, and a page for each descriptor.
  std::size_t unsent() const { return unsent_; }

 private:
  struct Frame {
    std::string bytes;  // with the header
    std::vector<UniqueFd> descriptors;
    std::size_t bytes_sent = 0;
    std::size_t descriptors_sent = 0;

    std::size_t cost() const { return bytes.size() + 4096 * descriptors.size(); }
  };
  static Result<bool> write(int socket, Frame& frame);

  std::deque<Frame> frames_;
  std::size_t unsent_ = 0;
};

}  // namespace dormouse::net
