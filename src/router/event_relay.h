// Passes a stream of server-sent events on, whole events only: an instance that dies in the middle
// of one leaves nothing behind that a client would stumble over.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <string_view>

namespace dormouse::router {

class EventRelay {
 public:
  // Takes what arrived; returns the events that are complete with it.
  std::string take(std::string_view bytes);
  // Whether the stream has said that it is complete.
  bool done() const { return done_; }

 private:
  std::string pending_;
  bool done_ = false;
};

}  // namespace dormouse::router
