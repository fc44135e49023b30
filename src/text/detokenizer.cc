#include "text/detokenizer.h"

#include <string_view>

#include "text/utf8.h"

namespace dormouse::text {

std::string Detokenizer::push(TokenId token) {
  const std::string& piece = tokenizer_->piece_bytes(token);
  if (skip_special_ && tokenizer_->is_control(token))
    return {};
  held_ += piece;
  std::string text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Char next = decode_utf8(rest);
    if (next.state == Utf8Char::State::kTruncated)
      break;
    append_utf8(text, next.code_point);
    rest.remove_prefix(next.length);
  }
  held_.erase(0, held_.size() - rest.size());
  return text;
}

std::string Detokenizer::flush() {
  const std::string text = to_valid_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace dormouse::text
