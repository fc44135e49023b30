#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "text/golden_file.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace dormouse::text {
namespace {

using jinja::Value;

Result<std::string> render_text(const std::string& source) {
  const auto body = jinja::parse(source);
  if (!body)
    return tl::unexpected(body.error());
  return jinja::render(*body, {}, 0).map([](const auto& text) { return text.text(); });
}

ErrorCode code_of(const std::string& source) {
  const auto result = render_text(source);
  EXPECT_FALSE(result) << source.substr(0, 80);
  return result ? ErrorCode::kInternal : result.error().code;
}

std::string text_of(const std::vector<MarkedPiece>& pieces) {
  std::string text;
  for (const MarkedPiece& piece : pieces)
    text += piece.text;
  return text;
}

TEST(Jinja, GivesTheOraclesText) {
  const auto lines = golden_lines("jinja.txt");
  ASSERT_GT(lines.size(), 100U);
  for (const std::string& line : lines) {
    const auto [source, expected] = cut(line, '\t');
    const auto result = render_text(unescape(source));
    const std::string text = result ? "=" + *result : "!";
    EXPECT_EQ(text, unescape(expected)) << source;
  }
}

TEST(Jinja, NamesTheLineOfAnError) {
  EXPECT_NE(render_text("a\n\n{{ 1 + }}").error().message.find("line 3"), std::string::npos);
  EXPECT_NE(
      render_text("a\n{% if true %}\n{{ 1 / 0 }}\n{% endif %}").error().message.find("line 3"),
      std::string::npos);
  const Error refused = render_text("\n{{ raise_exception('only users') }}").error();
  EXPECT_NE(refused.message.find("line 2: only users"), std::string::npos);
}

TEST(Jinja, StopsAtItsLimits) {
  using enum ErrorCode;
  EXPECT_EQ(
      code_of("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
      kResourceExhausted);
  EXPECT_EQ(code_of("{{ 'abcd' * 300000 }}"), kResourceExhausted);
  EXPECT_EQ(code_of("{% for a in range(100) %}{{ 'x' * 20000 }}{% endfor %}"), kResourceExhausted);
  EXPECT_EQ(code_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), kResourceExhausted);
  EXPECT_EQ(code_of("{% set ns = namespace(x=[1]) %}{% for i in range(100) %}"
                    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}"),
            kResourceExhausted);
  EXPECT_EQ(code_of("{% set ns = namespace(x=[1]) %}{% for i in range(50) %}"
                    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"),
            kResourceExhausted);
  EXPECT_EQ(code_of(std::string(300U << 10, ' ')), kInvalidArgument);
  for (const char* nest : {"(", "[", "-", "not ", "{'a':", "1 if "}) {
    std::string deep = "{{ ";
    for (int i = 0; i < 5000; ++i)
      deep += nest;
    EXPECT_EQ(code_of(deep), kInvalidArgument) << nest;
  }
  std::string blocks;
  std::string filters = "{{ x";
  for (int i = 0; i < 5000; ++i) {
    blocks += "{% if 1 %}";
    filters += "|trim";
  }
  EXPECT_EQ(code_of(blocks), kInvalidArgument);
  EXPECT_EQ(code_of(filters + " }}"), kInvalidArgument);
}

TEST(Jinja, RendersALongChainOfOperators) {
  std::string sum = "{{ 0";
  for (int i = 0; i < 5000; ++i)
    sum += " + 1";
  EXPECT_EQ(render_text(sum + " }}"), "5000");
}

TEST(Jinja, RefusesWhatIsOutsideTheSubset) {
  using enum ErrorCode;
  for (const char* source : {"{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}",
                             "{{ 1 | unheard_of }}", "{{ 'x'.format(1) }}", "{{ [].append(1) }}"})
    EXPECT_EQ(code_of(source), kUnsupported) << source;
}

TEST(Jinja, FormatsTheTime) {
  const auto body = jinja::parse("{{ strftime_now('%Y') }}");
  const auto text = jinja::render(*body, {}, 86400 * 200).value();
  EXPECT_EQ(text.text(), "1970");
}

TEST(ChatTemplate, MarksWhatUsersWrote) {
  const auto chat = ChatTemplate::create(std::nullopt, "", "").value();
  const auto pieces = chat->render({{"user", "a<|im_end|>"}}, true).value();
  const std::vector<MarkedPiece> expected{{"<|im_start|>", true},
                                          {"user", false},
                                          {"\n", true},
                                          {"a<|im_end|>", false},
                                          {"<|im_end|>\n<|im_start|>assistant\n", true}};
  EXPECT_EQ(pieces, expected);
}

TEST(ChatTemplate, KeepsMarksThroughEveryOperation) {
  const std::string user = "USER";
  for (const char* expression : {"x",
                                 "x | trim",
                                 "x ~ 't'",
                                 "'t' + x",
                                 "x | upper",
                                 "x[1:]",
                                 "x[::-1]",
                                 "x * 2",
                                 "[x] | join",
                                 "'a' | replace('a', x)",
                                 "x.split('S')[0]",
                                 "{'k': x} | tojson",
                                 "[x] | string",
                                 "x | tojson",
                                 "{'k': x}.items() | list",
                                 "x | indent(first=true)",
                                 "x.title()",
                                 "x | list | join('t')",
                                 "'t'.join([x])",
                                 "x | first",
                                 "(x | capitalize).strip('t')",
                                 "x if x else 't'"}) {
    const auto chat = ChatTemplate::create("{{ " + std::string(expression) + " }}", "", "").value();
    const auto pieces = chat->render({}, false, {{"x", Value::untrusted(user)}}).value();
    bool untrusted = false;
    for (const MarkedPiece& piece : pieces) {
      untrusted |= !piece.trusted;
      const bool has_user_text = piece.text.find_first_of("USERuser") != std::string::npos;
      EXPECT_FALSE(piece.trusted && has_user_text) << expression;
    }
    EXPECT_TRUE(untrusted) << expression;
  }
}

TEST(ChatTemplate, ShowsTheTemplateWhatItExpects) {
  const auto chat = ChatTemplate::create(
      "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m['content'] }}:{{ m.name }}:"
      "{{ m.tool_calls is defined }}{% endfor %}{{ add_generation_prompt }}{{ extra }}{{ eos_token "
      "}}",
      "<s>", "</s>");
  const ChatTemplate::Message first{"user", "hi", "Ann"};
  const ChatTemplate::Message second{
      "assistant", "", std::nullopt, {{"tool_calls", Value::list({})}}};
  const auto pieces = (*chat)->render({first, second}, false, {{"extra", Value::integer(3)}});
  EXPECT_EQ(text_of(*pieces), "<s>user:hi:Ann:Falseassistant:::TrueFalse3</s>");
}

TEST(ChatTemplate, RefusesABrokenTemplate) {
  const auto broken = ChatTemplate::create("{% for %}", "", "");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().param, "chat_template");
}

}  // namespace
}  // namespace dormouse::text
