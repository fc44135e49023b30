// The expression half of the parser, and the cursor that both halves share.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "dormouse/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace dormouse::text::jinja {

class Cursor {
 public:
  explicit Cursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_.back(); }
  bool is_operator(std::string_view op) const { return peek().is(Token::Kind::kOperator, op); }
  bool is_name(std::string_view name) const { return peek().is(Token::Kind::kName, name); }
  bool accept_operator(std::string_view op);
  bool accept_name(std::string_view name);
  Status expect_operator(std::string_view op);
  Status expect(Token::Kind kind, std::string_view what);
  Result<std::string> expect_name();
  tl::unexpected<Error> unexpected() const;

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(Cursor& cursor) : cursor_(cursor) {}

  // One expression. Without `conditional`, `x if y` ends before the `if`.
  Result<ExpressionPtr> parse(bool conditional = true);
  // One expression, or several with commas between as a tuple.
  Result<ExpressionPtr> parse_tuple(bool conditional = true);
  // NAME or NAME(...) as a filter of `input`, and any that follow it.
  Result<ExpressionPtr> parse_filter_chain(ExpressionPtr input);

 private:
  using Parse = Result<ExpressionPtr> (ExpressionParser::*)();

  Expression node(Expression::Kind kind) const;
  Result<ExpressionPtr> finish(Expression node) const;
  // OPERAND (OPERATOR OPERAND)*, as one node of all operands.
  Result<ExpressionPtr> parse_chain(Expression::Kind kind, Parse operand,
                                    std::vector<std::string_view> operators);

  Result<ExpressionPtr> parse_conditional();
  Result<ExpressionPtr> parse_or();
  Result<ExpressionPtr> parse_and();
  Result<ExpressionPtr> parse_not();
  Result<ExpressionPtr> parse_compare();
  Result<ExpressionPtr> parse_sum();
  Result<ExpressionPtr> parse_concat();
  Result<ExpressionPtr> parse_product();
  Result<ExpressionPtr> parse_power();
  Result<ExpressionPtr> parse_unary();
  Result<ExpressionPtr> parse_signed(bool with_filters);
  Result<ExpressionPtr> parse_primary();
  Result<ExpressionPtr> parse_name();
  Result<ExpressionPtr> parse_number();
  Result<ExpressionPtr> parse_parentheses();
  Result<ExpressionPtr> parse_list();
  Result<ExpressionPtr> parse_map();
  Result<ExpressionPtr> parse_postfix(ExpressionPtr object);
  Result<ExpressionPtr> parse_subscript(ExpressionPtr object);
  Result<ExpressionPtr> parse_filters_and_tests(ExpressionPtr input);
  Result<ExpressionPtr> parse_filter(ExpressionPtr input);
  Result<ExpressionPtr> parse_test(ExpressionPtr input);
  Status parse_arguments(Expression& call);

  Cursor& cursor_;
  int nesting_ = 0;
};

}  // namespace dormouse::text::jinja
