// Reads every value and every tensor byte of a model file in every way there is, so that a
// sanitizer or the end of the mapping shows a view that reaches too far.
#pragma once

#include <cstdint>

#include "format/gguf.h"

namespace dormouse::testing {

// A checksum of what was read. Ends the program if a tensor's view is not as large as its type and
// dimensions say.
std::uint64_t read_everything(const format::GgufFile& file);

}  // namespace dormouse::testing
