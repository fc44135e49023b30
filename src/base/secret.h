// Names that nobody can guess, and how to compare them.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dormouse {

// Twice as many lower-case hexadecimal digits as `bytes`, which are drawn from the kernel; at most
// 256, so that it gives them all at once.
std::string random_hex(std::size_t bytes);

// Takes as long for every wrong secret of the right length.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace dormouse
