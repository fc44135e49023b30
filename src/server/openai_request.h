// What /v1/completions and /v1/chat/completions are asked, read from JSON and checked.
//
// Fields and defaults are those of the OpenAI API with vLLM's additions. A field that is known but
// that this server cannot honour is refused by name; unknown fields are ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "dormouse/request.h"
#include "dormouse/result.h"

namespace dormouse::server {

struct ChatTurn {
  std::string role;
  std::string content;
  std::optional<std::string> name = std::nullopt;
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct OpenAiRequest {
  bool chat = false;
  std::string model;               // empty: whichever is served
  std::vector<Prompt> prompts;     // completions: at least one
  std::vector<ChatTurn> messages;  // chat: at least one
  bool add_special_tokens = true;
  bool add_generation_prompt = true;

  std::uint32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool echo = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;
  std::vector<std::string> stop;

  SamplingParams sampling;
  bool max_tokens_given = false;  // otherwise chat takes the rest of the context
  std::string cache_salt;
  std::int32_t priority = 0;
  std::string kv_transfer_params;  // JSON object; empty: none

  std::vector<std::string> unknown_fields = {};  // ignored; the server says so once
};

// Errors: kInvalidArgument and kUnsupported, the field in `param`.
Result<OpenAiRequest> read_completion(const Json& body);
Result<OpenAiRequest> read_chat(const Json& body);

// The "messages" of a chat, as /tokenize takes them, too.
Result<std::vector<ChatTurn>> read_messages(const Json& messages);

}  // namespace dormouse::server
