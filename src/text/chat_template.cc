#include "text/chat_template.h"

#include "base/check.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace dormouse::text {
namespace {

using jinja::MarkedString;
using jinja::Value;

constexpr std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

Value value_of(const ChatTemplate::Message& message) {
  jinja::Map members;
  members.set(MarkedString::trusted("role"), Value::untrusted(message.role));
  members.set(MarkedString::trusted("content"), Value::untrusted(message.content));
  if (message.name)
    members.set(MarkedString::trusted("name"), Value::untrusted(*message.name));
  for (const auto& [name, value] : message.extra)
    members.set(MarkedString::untrusted(name), value);
  return Value::map(std::move(members));
}

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::create(std::optional<std::string> source,
                                                                 std::string bos_token,
                                                                 std::string eos_token) {
  std::shared_ptr<ChatTemplate> created(new ChatTemplate);
  created->source_ = source ? *std::move(source) : std::string(kChatMl);
  DM_TRY_ASSIGN(created->body_, jinja::parse(created->source_));
  created->bos_token_ = std::move(bos_token);
  created->eos_token_ = std::move(eos_token);
  return created;
}

Result<std::vector<MarkedPiece>> ChatTemplate::render(
    const std::vector<Message>& messages, bool add_generation_prompt,
    const std::vector<std::pair<std::string, Value>>& variables) const {
  std::vector<Value> values;
  for (const Message& message : messages)
    values.push_back(value_of(message));
  jinja::Map seen;
  const auto set = [&](std::string name, Value value) {
    seen.set(MarkedString::trusted(std::move(name)), std::move(value));
  };
  set("messages", Value::list(std::move(values)));
  set("add_generation_prompt", Value::boolean(add_generation_prompt));
  set("bos_token", Value::trusted(bos_token_));
  set("eos_token", Value::trusted(eos_token_));
  for (const auto& [name, value] : variables)
    set(name, value);
  DM_TRY_ASSIGN(const MarkedString text, jinja::render(body_, seen, std::time(nullptr)));
  return text.pieces();
}

}  // namespace dormouse::text
