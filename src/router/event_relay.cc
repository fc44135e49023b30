#include "router/event_relay.h"

#include <algorithm>

namespace dormouse::router {
namespace {

constexpr std::string_view kDone = "data: [DONE]";

std::size_t end_after(const std::string& text, std::string_view mark) {
  const std::size_t found = text.rfind(mark);
  return found == std::string::npos ? 0 : found + mark.size();
}

}  // namespace

std::string EventRelay::take(std::string_view bytes) {
  pending_ += bytes;
  const std::size_t end = std::max(end_after(pending_, "\n\n"), end_after(pending_, "\r\n\r\n"));
  std::string events = pending_.substr(0, end);
  pending_.erase(0, end);
  done_ = done_ || events.starts_with(kDone) ||
          events.find("\n" + std::string(kDone)) != std::string::npos;
  return events;
}

}  // namespace dormouse::router
