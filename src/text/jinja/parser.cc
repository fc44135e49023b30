#include "text/jinja/parser.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/lexer.h"

namespace dormouse::text::jinja {
namespace {

using Kind = Statement::Kind;
using Names = std::vector<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : cursor_(std::move(tokens)), expressions_(cursor_) {}

  Result<Body> parse_all() {
    DM_TRY_ASSIGN(Body body, parse_body({}));
    if (cursor_.peek().kind != Token::Kind::kEnd)
      return cursor_.unexpected();
    return body;
  }

 private:
  // Statements up to the first block tag with one of the names in `until`, which stays.
  Result<Body> parse_body(const Names& until) {
    if (++nesting_ > kMaxNesting)
      return fail_at(cursor_.peek().line, "blocks are nested too deeply");
    Body body;
    while (cursor_.peek().kind != Token::Kind::kEnd) {
      if (cursor_.peek().kind == Token::Kind::kBlockBegin) {
        const Token& name = cursor_.peek(1);
        if (std::find(until.begin(), until.end(), name.text) != until.end())
          break;
      }
      DM_TRY_ASSIGN(Statement statement, parse_statement());
      body.push_back(std::move(statement));
    }
    --nesting_;
    return body;
  }

  Result<Statement> parse_statement() {
    Statement statement;
    statement.line = cursor_.peek().line;
    const Token first = cursor_.take();
    if (first.kind == Token::Kind::kText) {
      statement.text = MarkedString::trusted(first.text);
      return statement;
    }
    if (first.kind == Token::Kind::kOutputBegin) {
      statement.kind = Kind::kOutput;
      DM_TRY_ASSIGN(statement.expression, expressions_.parse_tuple());
      DM_TRY(cursor_.expect(Token::Kind::kOutputEnd, "'}}'"));
      return statement;
    }
    DM_TRY_ASSIGN(const std::string name, cursor_.expect_name());
    DM_TRY(parse_block(name, statement));
    return statement;
  }

  Status parse_block(const std::string& name, Statement& statement) {
    if (name == "if")
      return parse_if(statement);
    if (name == "for")
      return parse_for(statement);
    if (name == "set")
      return parse_set(statement);
    if (name == "macro")
      return parse_macro(statement);
    if (name == "filter")
      return parse_filter(statement);
    if (name == "generation") {  // marks a reply for training; no meaning here
      statement.kind = Kind::kGroup;
      return parse_rest(statement.body, "endgeneration");
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0)
        return fail_at(statement.line, fmt::format("'{}' outside of a loop", name));
      statement.kind = name == "break" ? Kind::kBreak : Kind::kContinue;
      return end_tag();
    }
    return fail_at(statement.line, fmt::format("the block '{}' is not supported", name),
                   ErrorCode::kUnsupported);
  }

  Status end_tag() { return cursor_.expect(Token::Kind::kBlockEnd, "'%}'"); }

  // The rest of the opening tag, a body, and the closing tag.
  Status parse_rest(Body& body, std::string_view closing) {
    DM_TRY(end_tag());
    DM_TRY_ASSIGN(body, parse_body({closing}));
    return closing_tag(closing);
  }

  Status closing_tag(std::string_view name) {
    if (cursor_.peek().kind == Token::Kind::kEnd)
      return fail_at(cursor_.peek().line, fmt::format("'{}' is missing", name));
    cursor_.take();
    if (!cursor_.accept_name(name))
      return cursor_.unexpected();
    if (name == "endmacro" && cursor_.peek().kind == Token::Kind::kName)
      cursor_.take();  // it may repeat the macro's name
    return end_tag();
  }

  Status parse_if(Statement& statement) {
    statement.kind = Kind::kIf;
    bool more = true;
    while (more) {
      Branch branch;
      DM_TRY_ASSIGN(branch.condition, expressions_.parse_tuple());
      DM_TRY(end_tag());
      DM_TRY_ASSIGN(branch.body, parse_body({"elif", "else", "endif"}));
      statement.branches.push_back(std::move(branch));
      more = cursor_.peek(1).text == "elif";
      if (more) {
        cursor_.take();
        cursor_.take();
      }
    }
    DM_TRY(parse_else(statement, "endif"));
    return closing_tag("endif");
  }

  Status parse_else(Statement& statement, std::string_view closing) {
    if (cursor_.peek().kind != Token::Kind::kBlockBegin || cursor_.peek(1).text != "else")
      return {};
    cursor_.take();
    cursor_.take();
    DM_TRY(end_tag());
    Branch branch;
    DM_TRY_ASSIGN(branch.body, parse_body({closing}));
    statement.branches.push_back(std::move(branch));
    return {};
  }

  Result<std::vector<Target>> parse_names() {
    std::vector<Target> names;
    const bool parentheses = cursor_.accept_operator("(");
    do {
      Target target;
      DM_TRY_ASSIGN(target.name, cursor_.expect_name());
      names.push_back(std::move(target));
    } while (cursor_.accept_operator(","));
    if (parentheses) {
      DM_TRY(cursor_.expect_operator(")"));
    }
    return names;
  }

  Status parse_for(Statement& statement) {
    statement.kind = Kind::kFor;
    DM_TRY_ASSIGN(statement.targets, parse_names());
    if (!cursor_.accept_name("in"))
      return fail_at(statement.line, "expected 'in'");
    DM_TRY_ASSIGN(statement.expression, expressions_.parse_tuple(false));
    if (cursor_.accept_name("if")) {
      DM_TRY_ASSIGN(statement.condition, expressions_.parse());
    }
    if (cursor_.is_name("recursive"))
      return fail_at(statement.line, "recursive loops are not supported", ErrorCode::kUnsupported);
    DM_TRY(end_tag());
    ++loops_;
    DM_TRY_ASSIGN(statement.body, parse_body({"else", "endfor"}));
    --loops_;
    DM_TRY(parse_else(statement, "endfor"));
    return closing_tag("endfor");
  }

  Status parse_set(Statement& statement) {
    if (cursor_.peek(1).is(Token::Kind::kOperator, ".")) {
      Target target;
      DM_TRY_ASSIGN(target.name, cursor_.expect_name());
      cursor_.take();
      DM_TRY_ASSIGN(target.attribute, cursor_.expect_name());
      statement.targets.push_back(std::move(target));
    } else {
      DM_TRY_ASSIGN(statement.targets, parse_names());
    }
    if (cursor_.accept_operator("=")) {
      statement.kind = Kind::kSet;
      DM_TRY_ASSIGN(statement.expression, expressions_.parse_tuple());
      return end_tag();
    }
    statement.kind = Kind::kSetBlock;
    if (statement.targets.size() != 1)
      return fail_at(statement.line, "a block can be set to one name only");
    DM_TRY(parse_filter_of_body(statement));
    return parse_rest(statement.body, "endset");
  }

  Status parse_filter(Statement& statement) {
    statement.kind = Kind::kFilter;
    DM_TRY_ASSIGN(statement.expression, expressions_.parse_filter_chain(nullptr));
    return parse_rest(statement.body, "endfilter");
  }

  Status parse_filter_of_body(Statement& statement) {
    if (!cursor_.accept_operator("|"))
      return {};
    DM_TRY_ASSIGN(statement.expression, expressions_.parse_filter_chain(nullptr));
    return {};
  }

  Status parse_macro(Statement& statement) {
    statement.kind = Kind::kMacro;
    auto macro = std::make_unique<Macro>();
    DM_TRY_ASSIGN(macro->name, cursor_.expect_name());
    DM_TRY(cursor_.expect_operator("("));
    while (!cursor_.is_operator(")")) {
      Macro::Parameter parameter;
      DM_TRY_ASSIGN(parameter.name, cursor_.expect_name());
      if (cursor_.accept_operator("=")) {
        DM_TRY_ASSIGN(parameter.fallback, expressions_.parse());
      }
      macro->parameters.push_back(std::move(parameter));
      if (!cursor_.accept_operator(","))
        break;
    }
    DM_TRY(cursor_.expect_operator(")"));
    const int outer_loops = std::exchange(loops_, 0);
    DM_TRY(parse_rest(macro->body, "endmacro"));
    loops_ = outer_loops;
    statement.macro = std::move(macro);
    return {};
  }

  Cursor cursor_;
  ExpressionParser expressions_;
  int nesting_ = 0;
  int loops_ = 0;
};

}  // namespace

Result<Body> parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes)
    return fail(ErrorCode::kInvalidArgument, "the chat template is larger than 256 KiB",
                "chat_template");
  DM_TRY_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).parse_all();
}

}  // namespace dormouse::text::jinja
