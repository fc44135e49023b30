// The text side of a model file: its vocabulary and its chat template.
#pragma once

#include <memory>

#include "dormouse/result.h"
#include "format/gguf.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace dormouse {

struct ModelText {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;
};

Result<ModelText> read_model_text(const format::GgufFile& file);

}  // namespace dormouse
