// What one rendering may use. Templates come from model files, which nobody has read.
#pragma once

#include <cstddef>

#include "dormouse/result.h"

namespace dormouse::text::jinja {

class Budget {
 public:
  static constexpr std::size_t kMaxSteps = 1'000'000;
  static constexpr std::size_t kMaxStringBytes = 1U << 20;  // any string, the output among them
  static constexpr int kMaxDepth = 64;                      // of nested expressions, blocks, calls

  // Errors: kResourceExhausted when the steps are used up.
  Status spend(std::size_t steps = 1) {
    if (steps > kMaxSteps - used_) {
      used_ = kMaxSteps;
      return fail(ErrorCode::kResourceExhausted, "the template does not end within 1000000 steps");
    }
    used_ += steps;
    return {};
  }

  // For a string of `size` bytes that was made: work and memory stay in proportion to the steps.
  Status spend_string(std::size_t size) {
    if (size > kMaxStringBytes)
      return fail(ErrorCode::kResourceExhausted, "the template makes a text of more than 1 MiB");
    return spend(size / kBytesPerStep);
  }

 private:
  static constexpr std::size_t kBytesPerStep = 64;
  std::size_t used_ = 0;
};

}  // namespace dormouse::text::jinja
