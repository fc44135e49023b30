// One generated sequence, from the engine's tokens to the text that its reader gets.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dormouse/request.h"
#include "server/openai_request.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace dormouse::server {

class Sequence {
 public:
  Sequence(std::shared_ptr<const text::Tokenizer> tokenizer, const OpenAiRequest& request);

  // What one event added. Tokens after a stop string are dropped.
  struct Delta {
    std::string text;
    std::vector<GeneratedToken> tokens;
    bool matched_stop = false;  // the engine need not go on
  };
  Delta push(const RequestOutput& output);

  bool finished() const { return finish_.has_value(); }
  bool matched_stop() const { return stops_.matched().has_value(); }
  // "stop", "length" or "abort". Valid once finished.
  std::string_view finish_reason() const;
  // The stop string or the id of the stop token that ended it, else null.
  Json stop_reason() const;
  std::uint32_t completion_tokens() const { return count_; }
  std::uint32_t cached_tokens() const { return cached_tokens_; }

 private:
  std::string text_of(const GeneratedToken& token);
  bool is_stop_token(TokenId token) const;

  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const SamplingParams sampling_;
  const bool include_stop_;
  text::Detokenizer detokenizer_;
  text::StopStrings stops_;
  std::optional<FinishReason> finish_;
  std::optional<TokenId> stop_token_;
  std::uint32_t count_ = 0;
  std::uint32_t cached_tokens_ = 0;
};

}  // namespace dormouse::server
