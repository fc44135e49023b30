// The one clock of deadlines and leases.
#pragma once

#include <chrono>
#include <cstdint>

namespace dormouse::pull {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

inline std::int64_t count_milliseconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

}  // namespace dormouse::pull
