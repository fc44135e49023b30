#include "server/prompt.h"

#include <fmt/core.h>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/loaded_tokenizer.h"

namespace dormouse::server {
namespace {

Status check_ids(const text::Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                 const char* param) {
  for (const TokenId id : ids) {
    if (!tokenizer.contains(id))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: token id {} is not in the vocabulary of {} tokens", param, id,
                              tokenizer.vocab_size()),
                  param);
  }
  return {};
}

// Tokenizing takes time, so what cannot fit by its bytes alone is refused before.
Status check_bytes(const Engine& engine, const text::Tokenizer& tokenizer, std::size_t bytes,
                   const char* param) {
  const std::size_t context = engine.status().max_model_len;
  if (context == 0 || bytes / context <= tokenizer.longest_piece())
    return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("This model's maximum context length is {} tokens. However, your request "
                          "has {} bytes of text, more than they can hold. Please shorten the {}.",
                          context, bytes, param),
              param);
}

Status check_length(const OpenAiRequest& request, std::size_t tokens, std::uint32_t context) {
  const char* param = request.chat ? "messages" : "prompt";
  if (tokens == 0)
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} must not be empty", param), param);
  const bool given = request.max_tokens_given || !request.chat;
  const std::size_t output = given ? request.sampling.max_tokens : 1;
  if (tokens + output <= context)
    return {};
  if (tokens >= context || !given)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("This model's maximum context length is {} tokens. However, your request "
                    "has {} input tokens. Please shorten the {}.",
                    context, tokens, param),
        param);
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("This model's maximum context length is {} tokens. However, you requested "
                  "{} tokens ({} in the {}, {} in the completion). Please reduce max_tokens.",
                  context, tokens + output, tokens, param, output),
      "max_tokens");
}

}  // namespace

Result<std::vector<TokenId>> tokenize_text(const Engine& engine, const std::string& text,
                                           bool add_special_tokens) {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  DM_TRY_ASSIGN(tokenizer, text::loaded_tokenizer(engine));
  DM_TRY(check_bytes(engine, *tokenizer, text.size(), "prompt"));
  return add_special_tokens ? tokenizer->encode_prompt(text, true) : tokenizer->encode(text, true);
}

Result<std::vector<TokenId>> tokenize_chat(const Engine& engine,
                                           const std::vector<ChatTurn>& messages,
                                           bool add_generation_prompt) {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  DM_TRY_ASSIGN(tokenizer, text::loaded_tokenizer(engine));
  const auto chat_template = engine.chat_template();
  if (chat_template == nullptr)
    return fail(ErrorCode::kInvalidArgument, "this model has no chat template; use /v1/completions",
                "messages");
  std::vector<text::ChatTemplate::Message> turns;
  for (const ChatTurn& turn : messages)
    turns.push_back({.role = turn.role, .content = turn.content, .name = turn.name});
  auto pieces = chat_template->render(turns, add_generation_prompt);
  if (!pieces)
    return fail(pieces.error().code, pieces.error().message, "messages");
  std::size_t bytes = 0;
  for (const text::MarkedPiece& piece : *pieces)
    bytes += piece.text.size();
  DM_TRY(check_bytes(engine, *tokenizer, bytes, "messages"));
  return tokenizer->encode(*pieces);
}

Result<std::vector<std::vector<TokenId>>> tokenize_prompts(const Engine& engine,
                                                           const OpenAiRequest& request) {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  DM_TRY_ASSIGN(tokenizer, text::loaded_tokenizer(engine));
  DM_TRY(check_ids(*tokenizer, request.sampling.stop_token_ids, "stop_token_ids"));
  for (const auto& [id, bias] : request.sampling.logit_bias)
    DM_TRY(check_ids(*tokenizer, {id}, "logit_bias"));
  const std::uint32_t context = engine.status().max_model_len;

  std::vector<std::vector<TokenId>> prompts;
  if (request.chat) {
    DM_TRY_ASSIGN(prompts.emplace_back(),
                  tokenize_chat(engine, request.messages, request.add_generation_prompt));
  }
  for (const Prompt& prompt : request.prompts) {
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
      DM_TRY(check_ids(*tokenizer, *ids, "prompt"));
      prompts.push_back(*ids);
    } else {
      DM_TRY_ASSIGN(prompts.emplace_back(), tokenize_text(engine, std::get<std::string>(prompt),
                                                          request.add_special_tokens));
    }
  }
  for (const auto& prompt : prompts)
    DM_TRY(check_length(request, prompt.size(), context));
  return prompts;
}

}  // namespace dormouse::server
