// Philox 4x32-10, a random generator without state: the n-th number of a stream is a pure function
// of the stream's key and n (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
#pragma once

#include <array>
#include <cstdint>

namespace dormouse {

constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Number `index` of the stream of `seed`: evenly distributed over [0, 1), 53 bits.
constexpr double philox_uniform(std::uint64_t seed, std::uint32_t index) {
  const auto bits = philox(
      {index, 0, 0, 0}, {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t mantissa = (std::uint64_t{bits[1]} << 32 | bits[0]) >> 11;
  return static_cast<double>(mantissa) * 0x1p-53;
}

}  // namespace dormouse
