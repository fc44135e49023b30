// The replies of /v1/completions and /v1/chat/completions, whole and in chunks.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "dormouse/request.h"
#include "server/openai_request.h"
#include "text/tokenizer.h"

namespace dormouse::server {

struct Usage {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t completion_tokens = 0;
  std::uint64_t cached_tokens = 0;
};
Json to_json(const Usage& usage);

// A part of one choice, or all of it.
struct Choice {
  std::uint32_t index = 0;
  std::string text = {};
  std::vector<GeneratedToken> tokens = {};
  std::vector<TokenId> prompt = {};  // given once for each choice, if token ids are asked for
  std::string finish_reason = {};    // empty: goes on
  Json stop_reason = {};
};

class ResponseFormat {
 public:
  ResponseFormat(const OpenAiRequest& request, std::shared_ptr<const text::Tokenizer> tokenizer,
                 std::string id, std::string model, std::int64_t created_unix_seconds);

  const std::string& id() const { return id_; }
  // `kv_transfer_params` for the next engine, or null.
  Json whole(const std::vector<Choice>& choices, const Usage& usage, Json kv_transfer_params);

  // Chat: the chunk that opens a choice.
  Json role_chunk(std::uint32_t index, const std::vector<TokenId>& prompt) const;
  // `usage` goes with it if it is not null.
  Json chunk(const Choice& choice, const Usage* usage);
  Json usage_chunk(const Usage& usage) const;
  Json transfer_chunk(Json kv_transfer_params) const;

 private:
  Json envelope(bool streaming) const;
  Json logprobs(const Choice& choice);
  Json completion_logprobs(const Choice& choice);
  Json chat_logprobs(const Choice& choice) const;
  void add_ending(Json& choice_json, const Choice& choice) const;
  void add_usage_slot(Json& chunk, const Usage* usage) const;
  std::string token_text(TokenId token) const;

  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const std::string id_;
  const std::string model_;
  const std::int64_t created_;
  const bool chat_;
  const bool include_usage_;
  const bool return_token_ids_;
  const std::int32_t logprobs_;
  std::map<std::uint32_t, std::size_t> offsets_;  // by choice: characters before its next token
};

}  // namespace dormouse::server
