// Fast fingerprints of bytes (XXH3): for noticing change, not for security.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dormouse {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Hash128&) const = default;
};

Hash128 hash128(std::span<const std::byte> bytes, std::uint64_t seed = 0);
std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);

}  // namespace dormouse
