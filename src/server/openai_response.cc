#include "server/openai_response.h"

#include <algorithm>
#include <cmath>

namespace dormouse::server {
namespace {

constexpr double kLowestLogprob = -9999.0;  // JSON has no infinity; vLLM's value

Json logprob_json(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : kLowestLogprob;
}

Json ids_json(const std::vector<TokenId>& ids) {
  return Json(Json::Array(ids.begin(), ids.end()));
}

Json token_ids_json(const std::vector<GeneratedToken>& tokens) {
  Json ids{Json::Array()};
  for (const GeneratedToken& token : tokens)
    ids.push(token.token);
  return ids;
}

std::size_t characters(std::string_view utf8) {
  return static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

Json to_json(const Usage& usage) {
  Json json;
  json.add("prompt_tokens", usage.prompt_tokens);
  json.add("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.add("completion_tokens", usage.completion_tokens);
  json.add("prompt_tokens_details", Json().add("cached_tokens", usage.cached_tokens));
  return json;
}

ResponseFormat::ResponseFormat(const OpenAiRequest& request,
                               std::shared_ptr<const text::Tokenizer> tokenizer, std::string id,
                               std::string model, std::int64_t created_unix_seconds)
    : tokenizer_(std::move(tokenizer)),
      id_(std::move(id)),
      model_(std::move(model)),
      created_(created_unix_seconds),
      chat_(request.chat),
      include_usage_(request.include_usage),
      return_token_ids_(request.return_token_ids),
      logprobs_(request.sampling.logprobs) {}

Json ResponseFormat::envelope(bool streaming) const {
  Json body;
  body.add("id", id_);
  body.add("object", !chat_      ? "text_completion"
                     : streaming ? "chat.completion.chunk"
                                 : "chat.completion");
  body.add("created", created_);
  body.add("model", model_);
  return body;
}

std::string ResponseFormat::token_text(TokenId token) const {
  return tokenizer_->contains(token) ? tokenizer_->piece_bytes(token) : std::string();
}

Json ResponseFormat::completion_logprobs(const Choice& choice) {
  Json offsets{Json::Array()}, values{Json::Array()}, names{Json::Array()}, tops{Json::Array()};
  std::size_t& offset = offsets_[choice.index];
  for (const GeneratedToken& token : choice.tokens) {
    const std::string text = token_text(token.token);
    Json top{Json::Object()};
    const auto add = [&](TokenId id, float logprob) {
      const std::string name =
          Json(token_text(id)).dump();  // what the reader sees: U+FFFD is one name
      const bool known = std::any_of(top.object()->begin(), top.object()->end(),
                                     [&](const auto& m) { return Json(m.first).dump() == name; });
      if (!known)
        top.add(token_text(id), logprob_json(logprob));
    };
    add(token.token, token.logprob);
    for (const TokenLogprob& other : token.top)
      add(other.token, other.logprob);
    offsets.push(offset);
    values.push(logprob_json(token.logprob));
    names.push(text);
    tops.push(std::move(top));
    offset += characters(text);
  }
  Json json;
  json.add("text_offset", std::move(offsets));
  json.add("token_logprobs", std::move(values));
  json.add("tokens", std::move(names));
  json.add("top_logprobs", std::move(tops));
  return json;
}

Json ResponseFormat::chat_logprobs(const Choice& choice) const {
  const auto entry = [this](TokenId token, float logprob) {
    const std::string text = token_text(token);
    Json bytes{Json::Array()};
    for (const char byte : text)
      bytes.push(static_cast<unsigned char>(byte));
    return Json()
        .add("token", text)
        .add("logprob", logprob_json(logprob))
        .add("bytes", std::move(bytes));
  };
  Json content{Json::Array()};
  for (const GeneratedToken& token : choice.tokens) {
    Json tops{Json::Array()};
    const auto count = std::min(token.top.size(), static_cast<std::size_t>(logprobs_));
    for (std::size_t i = 0; i < count; ++i)
      tops.push(entry(token.top[i].token, token.top[i].logprob));
    content.push(entry(token.token, token.logprob).add("top_logprobs", std::move(tops)));
  }
  return Json().add("content", std::move(content));
}

Json ResponseFormat::logprobs(const Choice& choice) {
  if (logprobs_ < 0 || choice.tokens.empty())
    return Json();
  return chat_ ? chat_logprobs(choice) : completion_logprobs(choice);
}

void ResponseFormat::add_ending(Json& json, const Choice& choice) const {
  json.add("finish_reason", choice.finish_reason.empty() ? Json() : Json(choice.finish_reason));
  json.add("stop_reason", choice.stop_reason);
  if (return_token_ids_)
    json.add("token_ids", token_ids_json(choice.tokens));
}

Json ResponseFormat::whole(const std::vector<Choice>& choices, const Usage& usage,
                           Json kv_transfer_params) {
  Json list{Json::Array()};
  for (const Choice& choice : choices) {
    Json json;
    json.add("index", choice.index);
    if (chat_)
      json.add("message", Json().add("role", "assistant").add("content", choice.text));
    else
      json.add("text", choice.text);
    json.add("logprobs", logprobs(choice));
    add_ending(json, choice);
    if (return_token_ids_ && !chat_)
      json.add("prompt_token_ids", ids_json(choice.prompt));
    list.push(std::move(json));
  }
  Json body = envelope(false);
  body.add("choices", std::move(list));
  body.add("usage", to_json(usage));
  if (return_token_ids_ && chat_)
    body.add("prompt_token_ids", ids_json(choices.front().prompt));
  if (!kv_transfer_params.is_null())
    body.add("kv_transfer_params", std::move(kv_transfer_params));
  return body;
}

Json ResponseFormat::transfer_chunk(Json kv_transfer_params) const {
  Json body = envelope(true);
  body.add("choices", Json(Json::Array()));
  body.add("kv_transfer_params", std::move(kv_transfer_params));
  return body;
}

Json ResponseFormat::role_chunk(std::uint32_t index, const std::vector<TokenId>& prompt) const {
  Json json;
  json.add("index", index);
  json.add("delta", Json().add("role", "assistant").add("content", ""));
  json.add("logprobs", nullptr);
  json.add("finish_reason", nullptr);
  Json body = envelope(true);
  body.add("choices", Json().push(std::move(json)));
  if (return_token_ids_)
    body.add("prompt_token_ids", ids_json(prompt));
  add_usage_slot(body, nullptr);
  return body;
}

Json ResponseFormat::chunk(const Choice& choice, const Usage* usage) {
  Json json;
  json.add("index", choice.index);
  if (chat_) {
    Json delta{Json::Object()};
    if (!choice.text.empty() || choice.finish_reason.empty())
      delta.add("content", choice.text);
    json.add("delta", std::move(delta));
  } else {
    json.add("text", choice.text);
  }
  json.add("logprobs", logprobs(choice));
  add_ending(json, choice);
  if (return_token_ids_ && !chat_)
    json.add("prompt_token_ids", choice.prompt.empty() ? Json() : ids_json(choice.prompt));
  Json body = envelope(true);
  body.add("choices", Json().push(std::move(json)));
  add_usage_slot(body, usage);
  return body;
}

void ResponseFormat::add_usage_slot(Json& chunk, const Usage* usage) const {
  if (usage != nullptr)
    chunk.add("usage", to_json(*usage));
  else if (include_usage_)
    chunk.add("usage", nullptr);
}

Json ResponseFormat::usage_chunk(const Usage& usage) const {
  Json body = envelope(true);
  body.add("choices", Json(Json::Array()));
  body.add("usage", to_json(usage));
  return body;
}

}  // namespace dormouse::server
