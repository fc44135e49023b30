#include "engine/model_text.h"

#include <fmt/core.h>

#include "base/check.h"

namespace dormouse {
namespace {

Result<std::optional<TokenId>> token_id(const format::GgufFile& file, std::string_view key) {
  if (!file.has(key))
    return std::nullopt;
  DM_TRY_ASSIGN(const std::uint32_t id, file.get_u32(key));
  return static_cast<TokenId>(id);
}

std::string piece(const text::Tokenizer& tokenizer, std::optional<TokenId> token) {
  return token ? tokenizer.piece_bytes(*token) : std::string();
}

Result<text::TokenizerData> read_vocabulary(const format::GgufFile& file) {
  text::TokenizerData data;
  DM_TRY_ASSIGN(data.model, file.get_string("tokenizer.ggml.model"));
  DM_TRY_ASSIGN(data.pre, file.get_string_or("tokenizer.ggml.pre", "gpt-2"));
  DM_TRY_ASSIGN(const auto tokens, file.get_strings("tokenizer.ggml.tokens"));
  data.tokens.assign(tokens.begin(), tokens.end());
  DM_TRY_ASSIGN(const auto types, file.get_i32s("tokenizer.ggml.token_type"));
  data.types.assign(types.begin(), types.end());
  DM_TRY_ASSIGN(const auto merges, file.get_strings("tokenizer.ggml.merges"));
  data.merges.assign(merges.begin(), merges.end());
  DM_TRY_ASSIGN(data.bos, token_id(file, "tokenizer.ggml.bos_token_id"));
  DM_TRY_ASSIGN(data.eos, token_id(file, "tokenizer.ggml.eos_token_id"));
  DM_TRY_ASSIGN(data.eot, token_id(file, "tokenizer.ggml.eot_token_id"));
  DM_TRY_ASSIGN(data.unknown, token_id(file, "tokenizer.ggml.unknown_token_id"));
  DM_TRY_ASSIGN(data.padding, token_id(file, "tokenizer.ggml.padding_token_id"));
  DM_TRY_ASSIGN(data.add_bos, file.get_bool_or("tokenizer.ggml.add_bos_token", false));
  DM_TRY_ASSIGN(data.add_eos, file.get_bool_or("tokenizer.ggml.add_eos_token", false));
  return data;
}

}  // namespace

Result<ModelText> read_model_text(const format::GgufFile& file) {
  ModelText text;
  DM_TRY_ASSIGN(text::TokenizerData data, read_vocabulary(file));
  DM_TRY_ASSIGN(text.tokenizer, text::Tokenizer::create(std::move(data)));
  std::optional<std::string> source;
  if (file.has("tokenizer.chat_template")) {
    DM_TRY_ASSIGN(source, file.get_string("tokenizer.chat_template"));
  }
  DM_TRY_ASSIGN(
      text.chat_template,
      text::ChatTemplate::create(std::move(source), piece(*text.tokenizer, text.tokenizer->bos()),
                                 piece(*text.tokenizer, text.tokenizer->eos())));
  return text;
}

}  // namespace dormouse
