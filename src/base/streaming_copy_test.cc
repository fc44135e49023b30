#include "base/streaming_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace dormouse {
namespace {

TEST(StreamingCopy, CopiesExactlyTheBytesAskedFor) {
  constexpr std::size_t kRoom = 70'000;
  std::vector<std::byte> from(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i)
    from[i] = static_cast<std::byte>(i * 131 + i / 251);
  for (const std::size_t size : {0, 1, 63, 64, 65, 4096, 16383, 16384, 16385, 50'000}) {
    for (const std::size_t to_offset : {0, 1, 15, 64}) {
      for (const std::size_t from_offset : {0, 3, 64}) {
        std::vector<std::byte> to(kRoom, std::byte{0xEE});
        copy_streaming(to.data() + to_offset, from.data() + from_offset, size);
        for (std::size_t i = 0; i < kRoom; ++i) {
          const bool copied = i >= to_offset && i < to_offset + size;
          ASSERT_EQ(to[i], copied ? from[i - to_offset + from_offset] : std::byte{0xEE})
              << size << " bytes to " << to_offset << " from " << from_offset << ", at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dormouse
