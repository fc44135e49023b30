// Fails the n-th call that asks. Shared by every faulty decorator of one test, so that a sweep over
// n visits each failure point of an operation in order.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "dormouse/result.h"

namespace dormouse::testing {

class FaultPlan {
 public:
  // Fails call number `n`, counted from 0 since this call; negative: none.
  void fail_at(std::int64_t n) {
    calls_ = 0;
    fail_at_ = n;
    fired_ = false;
  }

  // Asked by a decorator before it forwards a call.
  [[nodiscard]] Status check(std::string_view what) {
    if (calls_++ != fail_at_)
      return {};
    fired_ = true;
    return fail(ErrorCode::kInternal, "injected fault: " + std::string(what));
  }

  bool fired() const { return fired_; }
  std::int64_t calls() const { return calls_; }

 private:
  std::atomic<std::int64_t> calls_ = 0;
  std::atomic<std::int64_t> fail_at_ = -1;
  std::atomic<bool> fired_ = false;
};

}  // namespace dormouse::testing
