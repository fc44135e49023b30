// A fast fingerprint of bytes (XXH3, 128 bits): for noticing change, not for security.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace dormouse {

std::string hash128_hex(std::span<const std::byte> bytes);

}  // namespace dormouse
