// A model's chat template: messages to the text that the model was trained on.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dormouse/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/value.h"
#include "text/marked_text.h"

namespace dormouse::text {

// The subset of Jinja that chat templates use, with Hugging Face's settings: trim_blocks,
// lstrip_blocks, loop controls, tojson without HTML escapes.
//
// Owns:    the parsed template.
// Threads: any; immutable.
class ChatTemplate {
 public:
  struct Message {
    std::string role;
    std::string content;
    std::optional<std::string> name = std::nullopt;
    // Further members as the template sees them: tool_calls, tool_call_id, ... They may replace
    // those above.
    std::vector<std::pair<std::string, jinja::Value>> extra = {};
  };

  // Without a source, ChatML. The tokens are what the template sees as bos_token and eos_token.
  // Errors: kInvalidArgument or kUnsupported, with the template's line.
  static Result<std::shared_ptr<const ChatTemplate>> create(std::optional<std::string> source,
                                                            std::string bos_token,
                                                            std::string eos_token);

  // Everything that messages and `variables` contain is marked as a user's, the rest as trusted.
  // Variables override what the template would see otherwise.
  // Errors: kInvalidArgument with the template's line, also where the template itself refuses the
  // messages; kResourceExhausted beyond 1,000,000 steps or 1 MiB of text.
  Result<std::vector<MarkedPiece>> render(
      const std::vector<Message>& messages, bool add_generation_prompt,
      const std::vector<std::pair<std::string, jinja::Value>>& variables = {}) const;

  const std::string& source() const { return source_; }

 private:
  ChatTemplate() = default;

  std::string source_;
  jinja::Body body_;
  std::string bos_token_;
  std::string eos_token_;
};

}  // namespace dormouse::text
