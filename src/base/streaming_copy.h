// Copies past the caches, for more bytes than they hold: spares reading what is overwritten.
#pragma once

#include <cstddef>

namespace dormouse {

// Four pages at a time, line by line in turn, so that as many of them are on their way; twice as
// fast as memcpy for parts of a large copy, which takes such ways only when it is told of all of
// it.
void copy_streaming(std::byte* to, const std::byte* from, std::size_t size);

}  // namespace dormouse
