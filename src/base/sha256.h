// SHA-256, for what must match exactly: model files and their pinned checksums.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dormouse/result.h"

namespace dormouse {

// 64 lower-case hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);

// The same of a whole file, read piece by piece. kNotFound if it cannot be opened, kDataLoss if a
// read fails.
Result<std::string> sha256_file_hex(const std::string& path);

}  // namespace dormouse
