// Passes a stream of server-sent events on, whole events only: an instance that dies in the middle
// of one leaves nothing behind that a client would stumble over.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dormouse::router {

class EventRelay {
 public:
  static constexpr std::size_t kMaxEventBytes = 1 << 20;

  // Takes what arrived; returns the events that are complete with it.
  std::string take(std::string_view bytes);
  // Whether what is left is too much for one event: no end of it is to be expected.
  bool is_too_long() const { return pending_.size() > kMaxEventBytes; }
  // Whether the stream has said that it is complete.
  bool done() const { return done_; }

 private:
  std::string pending_;
  bool done_ = false;
};

}  // namespace dormouse::router
