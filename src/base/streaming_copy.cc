#include "base/streaming_copy.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace dormouse {

#ifdef __SSE2__
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 4;
constexpr std::size_t kAhead = 4 * kLine;

void copy_line(std::byte* to, const std::byte* from) {
  const auto load = [from](std::size_t at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
  };
  const __m128i parts[] = {load(0), load(16), load(32), load(48)};
  for (std::size_t i = 0; i < 4; ++i)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 16 * i), parts[i]);
}

}  // namespace

void copy_streaming(std::byte* to, const std::byte* from, std::size_t size) {
  std::size_t at = std::min(size, -reinterpret_cast<std::uintptr_t>(to) % kLine);
  std::memcpy(to, from, at);
  for (; at + kPages * kPage <= size; at += kPages * kPage) {
    for (std::size_t line = 0; line < kPage; line += kLine) {
      for (std::size_t i = at + line; i < at + kPages * kPage; i += kPage) {
        _mm_prefetch(reinterpret_cast<const char*>(from + i + kAhead), _MM_HINT_T0);
        copy_line(to + i, from + i);
      }
    }
  }
  for (; at + kLine <= size; at += kLine)
    copy_line(to + at, from + at);
  _mm_sfence();
  std::memcpy(to + at, from + at, size - at);
}
#else
void copy_streaming(std::byte* to, const std::byte* from, std::size_t size) {
  std::memcpy(to, from, size);
}
#endif

}  // namespace dormouse
