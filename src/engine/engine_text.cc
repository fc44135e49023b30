#include "base/check.h"
#include "dormouse/engine.h"
#include "text/chat_template.h"
#include "text/loaded_tokenizer.h"

namespace dormouse {
Result<std::vector<TokenId>> Engine::encode(std::string_view prompt) const {
  DM_TRY_ASSIGN(const auto tokenizer, text::loaded_tokenizer(*this));
  return tokenizer->encode_prompt(prompt, true);
}

Result<std::vector<TokenId>> Engine::encode_chat(std::span<const ChatMessage> messages) const {
  DM_TRY_ASSIGN(const auto tokenizer, text::loaded_tokenizer(*this));
  const auto chat = chat_template();
  if (chat == nullptr)
    return fail(ErrorCode::kUnsupported, "this model has no chat template; use encode");
  std::vector<text::ChatTemplate::Message> turns;
  for (const ChatMessage& message : messages)
    turns.push_back({.role = message.role, .content = message.content, .name = ""});
  DM_TRY_ASSIGN(const auto pieces, chat->render(turns, true));
  return tokenizer->encode(pieces);
}

Result<std::string> Engine::decode(std::span<const TokenId> tokens) const {
  DM_TRY_ASSIGN(const auto tokenizer, text::loaded_tokenizer(*this));
  for (const TokenId token : tokens)
    if (!tokenizer->contains(token))
      return fail(ErrorCode::kInvalidArgument, "a token that the vocabulary does not have",
                  "tokens");
  return tokenizer->decode(tokens, true);
}

}  // namespace dormouse
