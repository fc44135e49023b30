// Text that remembers who wrote it.
#pragma once

#include <string>

namespace dormouse::text {

// A stretch of a prompt. Special tokens are recognised in `trusted` text alone, so that
// "<|im_end|>" typed by a user stays text.
struct MarkedPiece {
  std::string text;
  bool trusted = false;  // written by the template, not by a user

  bool operator==(const MarkedPiece&) const = default;
};

}  // namespace dormouse::text
