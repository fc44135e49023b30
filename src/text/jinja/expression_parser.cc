#include "text/jinja/expression_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "text/jinja/parser.h"

namespace dormouse::text::jinja {

using Kind = Expression::Kind;

bool Cursor::accept_operator(std::string_view op) {
  const bool found = is_operator(op);
  if (found)
    take();
  return found;
}

bool Cursor::accept_name(std::string_view name) {
  const bool found = is_name(name);
  if (found)
    take();
  return found;
}

Status Cursor::expect_operator(std::string_view op) {
  if (accept_operator(op))
    return {};
  return fail_at(peek().line, fmt::format("expected '{}'", op));
}

Status Cursor::expect(Token::Kind kind, std::string_view what) {
  if (take().kind == kind)
    return {};
  return fail_at(peek().line, fmt::format("expected {}", what));
}

Result<std::string> Cursor::expect_name() {
  if (peek().kind != Token::Kind::kName)
    return fail_at(peek().line, "expected a name");
  return take().text;
}

tl::unexpected<Error> Cursor::unexpected() const {
  if (peek().kind == Token::Kind::kEnd)
    return fail_at(peek().line, "the template ends too early");
  if (peek().text.empty())
    return fail_at(peek().line, "the tag ends too early");
  return fail_at(peek().line, fmt::format("unexpected '{}'", peek().text.substr(0, 40)));
}

Expression ExpressionParser::node(Kind kind) const {
  Expression node;
  node.kind = kind;
  node.line = cursor_.peek().line;
  return node;
}

Result<ExpressionPtr> ExpressionParser::finish(Expression node) const {
  for (const ExpressionPtr& operand : node.operands)
    node.depth = std::max(node.depth, operand ? operand->depth + 1 : 1);
  for (const auto& [name, operand] : node.named)
    node.depth = std::max(node.depth, operand->depth + 1);
  if (node.depth > kMaxNesting)
    return fail_at(node.line, "the expression is nested too deeply");
  return std::make_unique<const Expression>(std::move(node));
}

Result<ExpressionPtr> ExpressionParser::parse(bool conditional) {
  if (++nesting_ > kMaxNesting)
    return fail_at(cursor_.peek().line, "the expression is nested too deeply");
  auto expression = conditional ? parse_conditional() : parse_or();
  --nesting_;
  return expression;
}

Result<ExpressionPtr> ExpressionParser::parse_tuple(bool conditional) {
  Expression tuple = node(Kind::kTuple);
  DM_TRY_ASSIGN(ExpressionPtr first, parse(conditional));
  if (!cursor_.is_operator(","))
    return first;
  tuple.operands.push_back(std::move(first));
  while (cursor_.accept_operator(",")) {
    const Token& next = cursor_.peek();
    if (next.kind == Token::Kind::kBlockEnd || next.kind == Token::Kind::kOutputEnd ||
        next.is(Token::Kind::kOperator, ")"))
      break;
    DM_TRY_ASSIGN(ExpressionPtr item, parse(conditional));
    tuple.operands.push_back(std::move(item));
  }
  return finish(std::move(tuple));
}

Result<ExpressionPtr> ExpressionParser::parse_conditional() {
  DM_TRY_ASSIGN(ExpressionPtr value, parse_or());
  while (cursor_.is_name("if")) {
    Expression choice = node(Kind::kConditional);
    cursor_.take();
    DM_TRY_ASSIGN(ExpressionPtr condition, parse_or());
    ExpressionPtr otherwise;
    if (cursor_.accept_name("else")) {
      DM_TRY_ASSIGN(otherwise, parse());
    }
    choice.operands.push_back(std::move(condition));
    choice.operands.push_back(std::move(value));
    choice.operands.push_back(std::move(otherwise));
    DM_TRY_ASSIGN(value, finish(std::move(choice)));
  }
  return value;
}

Result<ExpressionPtr> ExpressionParser::parse_chain(Kind kind, Parse operand,
                                                    std::vector<std::string_view> operators) {
  Expression chain = node(kind);
  DM_TRY_ASSIGN(ExpressionPtr first, (this->*operand)());
  chain.operands.push_back(std::move(first));
  const auto is_one = [&] {
    const Token& next = cursor_.peek();
    return (next.kind == Token::Kind::kOperator || next.kind == Token::Kind::kName) &&
           std::find(operators.begin(), operators.end(), next.text) != operators.end();
  };
  while (is_one()) {
    chain.operators.push_back(cursor_.take().text);
    DM_TRY_ASSIGN(ExpressionPtr next, (this->*operand)());
    chain.operands.push_back(std::move(next));
  }
  if (chain.operators.empty())
    return std::move(chain.operands.front());
  return finish(std::move(chain));
}

Result<ExpressionPtr> ExpressionParser::parse_or() {
  return parse_chain(Kind::kOr, &ExpressionParser::parse_and, {"or"});
}

Result<ExpressionPtr> ExpressionParser::parse_and() {
  return parse_chain(Kind::kAnd, &ExpressionParser::parse_not, {"and"});
}

Result<ExpressionPtr> ExpressionParser::parse_not() {
  if (!cursor_.is_name("not"))
    return parse_compare();
  Expression negation = node(Kind::kNot);
  cursor_.take();
  if (++nesting_ > kMaxNesting)
    return fail_at(negation.line, "the expression is nested too deeply");
  DM_TRY_ASSIGN(ExpressionPtr operand, parse_not());
  --nesting_;
  negation.operands.push_back(std::move(operand));
  return finish(std::move(negation));
}

Result<ExpressionPtr> ExpressionParser::parse_compare() {
  Expression compare = node(Kind::kCompare);
  DM_TRY_ASSIGN(ExpressionPtr first, parse_sum());
  compare.operands.push_back(std::move(first));
  while (true) {
    const Token& next = cursor_.peek();
    const bool comparison = next.kind == Token::Kind::kOperator &&
                            (next.text == "==" || next.text == "!=" || next.text == "<" ||
                             next.text == "<=" || next.text == ">" || next.text == ">=");
    if (comparison) {
      compare.operators.push_back(cursor_.take().text);
    } else if (cursor_.accept_name("in")) {
      compare.operators.emplace_back("in");
    } else if (cursor_.is_name("not") && cursor_.peek(1).is(Token::Kind::kName, "in")) {
      cursor_.take();
      cursor_.take();
      compare.operators.emplace_back("not in");
    } else {
      break;
    }
    DM_TRY_ASSIGN(ExpressionPtr operand, parse_sum());
    compare.operands.push_back(std::move(operand));
  }
  if (compare.operators.empty())
    return std::move(compare.operands.front());
  return finish(std::move(compare));
}

Result<ExpressionPtr> ExpressionParser::parse_sum() {
  return parse_chain(Kind::kArithmetic, &ExpressionParser::parse_concat, {"+", "-"});
}

Result<ExpressionPtr> ExpressionParser::parse_concat() {
  return parse_chain(Kind::kArithmetic, &ExpressionParser::parse_product, {"~"});
}

Result<ExpressionPtr> ExpressionParser::parse_product() {
  return parse_chain(Kind::kArithmetic, &ExpressionParser::parse_power, {"*", "/", "//", "%"});
}

Result<ExpressionPtr> ExpressionParser::parse_power() {
  return parse_chain(Kind::kArithmetic, &ExpressionParser::parse_unary, {"**"});
}

Result<ExpressionPtr> ExpressionParser::parse_unary() {
  return parse_signed(true);
}

Result<ExpressionPtr> ExpressionParser::parse_signed(bool with_filters) {
  ExpressionPtr value;
  if (cursor_.is_operator("-") || cursor_.is_operator("+")) {
    Expression sign = node(Kind::kNegate);
    if (++nesting_ > kMaxNesting)
      return fail_at(sign.line, "the expression is nested too deeply");
    const bool minus = cursor_.take().text == "-";
    DM_TRY_ASSIGN(value, parse_signed(false));
    --nesting_;
    if (minus) {
      sign.operands.push_back(std::move(value));
      DM_TRY_ASSIGN(value, finish(std::move(sign)));
    }
  } else {
    DM_TRY_ASSIGN(value, parse_primary());
    DM_TRY_ASSIGN(value, parse_postfix(std::move(value)));
  }
  return with_filters ? parse_filters_and_tests(std::move(value)) : std::move(value);
}

Result<ExpressionPtr> ExpressionParser::parse_primary() {
  Expression literal = node(Kind::kLiteral);
  switch (cursor_.peek().kind) {
    case Token::Kind::kName:
      return parse_name();
    case Token::Kind::kInteger:
    case Token::Kind::kReal:
      return parse_number();
    case Token::Kind::kString: {
      std::string text;
      while (cursor_.peek().kind == Token::Kind::kString)
        text += cursor_.take().text;
      literal.literal = Value::trusted(std::move(text));
      return finish(std::move(literal));
    }
    default:
      break;
  }
  if (cursor_.is_operator("("))
    return parse_parentheses();
  if (cursor_.is_operator("["))
    return parse_list();
  if (cursor_.is_operator("{"))
    return parse_map();
  return cursor_.unexpected();
}

Result<ExpressionPtr> ExpressionParser::parse_name() {
  Expression name = node(Kind::kLiteral);
  name.name = cursor_.take().text;
  if (name.name == "true" || name.name == "True") {
    name.literal = Value::boolean(true);
  } else if (name.name == "false" || name.name == "False") {
    name.literal = Value::boolean(false);
  } else if (name.name == "none" || name.name == "None") {
    name.literal = Value::none();
  } else {
    name.kind = Kind::kName;
  }
  return finish(std::move(name));
}

Result<ExpressionPtr> ExpressionParser::parse_number() {
  Expression number = node(Kind::kLiteral);
  const Token token = cursor_.take();
  const char* end = token.text.data() + token.text.size();
  if (token.kind == Token::Kind::kInteger) {
    std::int64_t value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc())
      return fail_at(token.line, "the number is too large");
    number.literal = Value::integer(value);
  } else {
    double value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc())
      return fail_at(token.line, "the number is too large");
    number.literal = Value::real(value);
  }
  return finish(std::move(number));
}

Result<ExpressionPtr> ExpressionParser::parse_parentheses() {
  Expression empty = node(Kind::kTuple);
  DM_TRY(cursor_.expect_operator("("));
  if (cursor_.accept_operator(")"))
    return finish(std::move(empty));
  DM_TRY_ASSIGN(ExpressionPtr inner, parse_tuple());
  DM_TRY(cursor_.expect_operator(")"));
  return inner;
}

Result<ExpressionPtr> ExpressionParser::parse_list() {
  Expression list = node(Kind::kList);
  DM_TRY(cursor_.expect_operator("["));
  while (!cursor_.is_operator("]")) {
    DM_TRY_ASSIGN(ExpressionPtr item, parse());
    list.operands.push_back(std::move(item));
    if (!cursor_.accept_operator(","))
      break;
  }
  DM_TRY(cursor_.expect_operator("]"));
  return finish(std::move(list));
}

Result<ExpressionPtr> ExpressionParser::parse_map() {
  Expression map = node(Kind::kMap);
  DM_TRY(cursor_.expect_operator("{"));
  while (!cursor_.is_operator("}")) {
    DM_TRY_ASSIGN(ExpressionPtr key, parse());
    DM_TRY(cursor_.expect_operator(":"));
    DM_TRY_ASSIGN(ExpressionPtr value, parse());
    map.operands.push_back(std::move(key));
    map.operands.push_back(std::move(value));
    if (!cursor_.accept_operator(","))
      break;
  }
  DM_TRY(cursor_.expect_operator("}"));
  return finish(std::move(map));
}

Result<ExpressionPtr> ExpressionParser::parse_postfix(ExpressionPtr object) {
  while (true) {
    if (cursor_.is_operator(".")) {
      Expression attribute = node(Kind::kAttribute);
      cursor_.take();
      if (cursor_.peek().kind == Token::Kind::kInteger) {  // x.0 is x[0]
        attribute.kind = Kind::kItem;
        attribute.operands.push_back(std::move(object));
        DM_TRY_ASSIGN(ExpressionPtr index, parse_number());
        attribute.operands.push_back(std::move(index));
      } else {
        DM_TRY_ASSIGN(attribute.name, cursor_.expect_name());
        attribute.operands.push_back(std::move(object));
      }
      DM_TRY_ASSIGN(object, finish(std::move(attribute)));
    } else if (cursor_.is_operator("[")) {
      DM_TRY_ASSIGN(object, parse_subscript(std::move(object)));
    } else if (cursor_.is_operator("(")) {
      Expression call = node(Kind::kCall);
      call.operands.push_back(std::move(object));
      DM_TRY(parse_arguments(call));
      DM_TRY_ASSIGN(object, finish(std::move(call)));
    } else {
      return object;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::parse_subscript(ExpressionPtr object) {
  Expression item = node(Kind::kItem);
  item.operands.push_back(std::move(object));
  DM_TRY(cursor_.expect_operator("["));
  for (bool more = true; more;) {
    ExpressionPtr part;
    if (!cursor_.is_operator(":") && !cursor_.is_operator("]")) {
      DM_TRY_ASSIGN(part, parse());
    }
    item.operands.push_back(std::move(part));
    more = cursor_.accept_operator(":");
    if (more)
      item.kind = Kind::kSlice;
  }
  DM_TRY(cursor_.expect_operator("]"));
  if (item.operands.size() > 4 || (item.kind == Kind::kItem && !item.operands[1]))
    return fail_at(item.line, "the subscript is not an index or a slice");
  if (item.kind == Kind::kSlice)
    item.operands.resize(4);
  return finish(std::move(item));
}

Result<ExpressionPtr> ExpressionParser::parse_filters_and_tests(ExpressionPtr input) {
  while (true) {
    if (cursor_.accept_operator("|")) {
      DM_TRY_ASSIGN(input, parse_filter(std::move(input)));
    } else if (cursor_.accept_name("is")) {
      DM_TRY_ASSIGN(input, parse_test(std::move(input)));
    } else if (cursor_.is_operator("(")) {
      DM_TRY_ASSIGN(input, parse_postfix(std::move(input)));
    } else {
      return input;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::parse_filter_chain(ExpressionPtr input) {
  DM_TRY_ASSIGN(ExpressionPtr filtered, parse_filter(std::move(input)));
  return parse_filters_and_tests(std::move(filtered));
}

Result<ExpressionPtr> ExpressionParser::parse_filter(ExpressionPtr input) {
  Expression filter = node(Kind::kFilter);
  DM_TRY_ASSIGN(filter.name, cursor_.expect_name());
  filter.operands.push_back(std::move(input));
  if (cursor_.is_operator("(")) {
    DM_TRY(parse_arguments(filter));
  }
  return finish(std::move(filter));
}

Result<ExpressionPtr> ExpressionParser::parse_test(ExpressionPtr input) {
  Expression test = node(Kind::kTest);
  Expression negation = node(Kind::kNot);
  const bool negated = cursor_.accept_name("not");
  DM_TRY_ASSIGN(test.name, cursor_.expect_name());
  test.operands.push_back(std::move(input));
  const Token& next = cursor_.peek();
  const bool starts_operand =
      next.kind == Token::Kind::kString || next.kind == Token::Kind::kInteger ||
      next.kind == Token::Kind::kReal || cursor_.is_operator("[") || cursor_.is_operator("{") ||
      (next.kind == Token::Kind::kName && next.text != "else" && next.text != "or" &&
       next.text != "and" && next.text != "is" && next.text != "if" && next.text != "in" &&
       next.text != "not");
  if (cursor_.is_operator("(")) {
    DM_TRY(parse_arguments(test));
  } else if (starts_operand) {
    DM_TRY_ASSIGN(ExpressionPtr operand, parse_primary());
    DM_TRY_ASSIGN(operand, parse_postfix(std::move(operand)));
    test.operands.push_back(std::move(operand));
  }
  if (!negated)
    return finish(std::move(test));
  DM_TRY_ASSIGN(ExpressionPtr positive, finish(std::move(test)));
  negation.operands.push_back(std::move(positive));
  return finish(std::move(negation));
}

Status ExpressionParser::parse_arguments(Expression& call) {
  DM_TRY(cursor_.expect_operator("("));
  while (!cursor_.is_operator(")")) {
    const bool named = cursor_.peek().kind == Token::Kind::kName &&
                       cursor_.peek(1).is(Token::Kind::kOperator, "=");
    std::string name;
    if (named) {
      name = cursor_.take().text;
      cursor_.take();
    }
    DM_TRY_ASSIGN(ExpressionPtr value, parse());
    if (named)
      call.named.emplace_back(std::move(name), std::move(value));
    else if (call.named.empty())
      call.operands.push_back(std::move(value));
    else
      return fail_at(call.line, "an argument without a name follows one with a name");
    if (!cursor_.accept_operator(","))
      break;
  }
  return cursor_.expect_operator(")");
}

}  // namespace dormouse::text::jinja
