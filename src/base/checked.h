// A size that knows when it has overflowed. Every sum and product of numbers read from a file or a
// request goes through this type: once a result does not fit, the value is invalid and stays so.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <optional>

namespace dormouse {

class Checked {
 public:
  constexpr Checked() = default;
  constexpr Checked(std::unsigned_integral auto value) : value_(value) {}
  static constexpr Checked invalid() {
    Checked result;
    result.valid_ = false;
    return result;
  }

  constexpr bool valid() const { return valid_; }
  constexpr std::optional<std::uint64_t> value() const {
    return valid_ ? std::optional(value_) : std::nullopt;
  }
  // False for an invalid size: what overflowed fits nowhere.
  constexpr bool fits(std::uint64_t limit) const { return valid_ && value_ <= limit; }

  friend constexpr Checked operator+(Checked a, Checked b) {
    std::uint64_t sum = 0;
    const bool overflow = __builtin_add_overflow(a.value_, b.value_, &sum);
    return a.valid_ && b.valid_ && !overflow ? Checked(sum) : invalid();
  }
  friend constexpr Checked operator-(Checked a, Checked b) {
    return a.valid_ && b.valid_ && a.value_ >= b.value_ ? Checked(a.value_ - b.value_) : invalid();
  }
  friend constexpr Checked operator*(Checked a, Checked b) {
    std::uint64_t product = 0;
    const bool overflow = __builtin_mul_overflow(a.value_, b.value_, &product);
    return a.valid_ && b.valid_ && !overflow ? Checked(product) : invalid();
  }
  constexpr Checked& operator+=(Checked other) { return *this = *this + other; }
  constexpr Checked& operator*=(Checked other) { return *this = *this * other; }

  // The next multiple of `alignment`; invalid if that is no power of two or the result too large.
  constexpr Checked align_up(std::uint64_t alignment) const {
    if (!std::has_single_bit(alignment))
      return invalid();
    const Checked raised = *this + Checked(alignment - 1);
    return raised.valid_ ? Checked(raised.value_ & ~(alignment - 1)) : invalid();
  }

 private:
  std::uint64_t value_ = 0;
  bool valid_ = true;
};

}  // namespace dormouse
