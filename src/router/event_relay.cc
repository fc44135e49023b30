#include "router/event_relay.h"

#include <algorithm>

namespace dormouse::router {
namespace {

constexpr std::string_view kDone = "data: [DONE]";
constexpr std::string_view kLongestMark = "\r\n\r\n";

std::size_t end_after(std::string_view text, std::string_view mark) {
  const std::size_t found = text.rfind(mark);
  return found == std::string_view::npos ? 0 : found + mark.size();
}

}  // namespace

std::string EventRelay::take(std::string_view bytes) {
  // What was kept has no mark, but may end with the beginning of one.
  const std::size_t begin = pending_.size() - std::min(pending_.size(), kLongestMark.size() - 1);
  pending_ += bytes;
  const std::string_view fresh = std::string_view(pending_).substr(begin);
  const std::size_t found = std::max(end_after(fresh, "\n\n"), end_after(fresh, kLongestMark));
  if (found == 0)
    return {};
  std::string events = pending_.substr(0, begin + found);
  pending_.erase(0, begin + found);
  done_ = done_ || events.starts_with(kDone) ||
          events.find("\n" + std::string(kDone)) != std::string::npos;
  return events;
}

}  // namespace dormouse::router
