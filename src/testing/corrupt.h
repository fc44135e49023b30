// Damages files on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dormouse::testing {

// Each ends the test program if the file is not there: that is a mistake in the test.
void truncate_file(const std::string& path, std::uint64_t bytes);
void overwrite(const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes);
void flip_bit(const std::string& path, std::uint64_t offset, unsigned bit = 0);
// Where `text` stands in the file for the first time.
std::uint64_t offset_of(const std::string& path, std::string_view text);

}  // namespace dormouse::testing
