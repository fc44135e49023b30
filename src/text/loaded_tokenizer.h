// The tokenizer of an engine for whoever cannot do without.
#pragma once

#include <memory>

#include "dormouse/engine.h"
#include "text/tokenizer.h"

namespace dormouse::text {

// kUnavailable until the engine is loaded.
inline Result<std::shared_ptr<const Tokenizer>> loaded_tokenizer(const Engine& engine) {
  auto tokenizer = engine.tokenizer();
  if (tokenizer == nullptr)
    return fail(ErrorCode::kUnavailable, "the model is still being loaded");
  return tokenizer;
}

}  // namespace dormouse::text
