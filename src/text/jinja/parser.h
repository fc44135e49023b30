// Tokens to a tree.
#pragma once

#include <string_view>

#include "dormouse/result.h"
#include "text/jinja/ast.h"

namespace dormouse::text::jinja {

inline constexpr std::size_t kMaxSourceBytes = 256U << 10;
inline constexpr int kMaxNesting = 64;  // of expressions, and of blocks

// Errors: kInvalidArgument with the line; kUnsupported for a statement outside the subset.
Result<Body> parse(std::string_view source);

}  // namespace dormouse::text::jinja
