#include <fmt/core.h>

#include "base/check.h"
#include "text/jinja/functions.h"
#include "text/jinja/operations.h"

namespace dormouse::text::jinja {
namespace {

std::string_view comparison_of(std::string_view name) {
  if (name == "eq" || name == "equalto")
    return "==";
  if (name == "ne")
    return "!=";
  if (name == "lt" || name == "lessthan")
    return "<";
  if (name == "le")
    return "<=";
  if (name == "gt" || name == "greaterthan")
    return ">";
  if (name == "ge")
    return ">=";
  return name == "in" ? "in" : "";
}

Result<bool> integer_test(std::string_view name, const Value& input, const Value* argument) {
  if (!input.is_number() || input.is_real())
    return wrong(fmt::format("'is {}' needs an integer", name));
  const std::int64_t value = input.as_integer();
  if (name != "divisibleby")
    return (value % 2 == 0) == (name == "even");
  if (argument == nullptr || !argument->is_integer() || argument->as_integer() == 0)
    return wrong("'is divisibleby' needs an integer other than zero");
  return argument->as_integer() == -1 || value % argument->as_integer() == 0;
}

bool same_as(const Value& left, const Value& right) {
  if (left.is_boolean() && right.is_boolean())
    return left.as_boolean() == right.as_boolean();
  if (left.is_integer() && right.is_integer())
    return left.as_integer() == right.as_integer();
  return left.is_none() && right.is_none();
}

}  // namespace

Result<bool> apply_test(std::string_view name, const Value& input, const Arguments& arguments,
                        Budget& budget) {
  DM_TRY(budget.spend());
  const Value* argument = arguments.find(0, "");
  if (name == "defined")
    return !input.is_undefined();
  if (name == "undefined")
    return input.is_undefined();
  if (name == "none")
    return input.is_none();
  if (name == "string")
    return input.is_string();
  if (name == "mapping")
    return input.is_map();
  if (name == "sequence")
    return input.is_string() || input.is_list() || input.is_map() || input.is_undefined();
  if (name == "iterable")
    return input.is_string() || input.is_list() || input.is_map() || input.is_undefined();
  if (name == "number")
    return input.is_number();
  if (name == "integer")
    return input.is_integer();
  if (name == "float")
    return input.is_real();
  if (name == "boolean")
    return input.is_boolean();
  if (name == "true" || name == "false")
    return input.is_boolean() && input.as_boolean() == (name == "true");
  if (name == "callable")
    return input.is_macro() || input.is_builtin();
  if (name == "odd" || name == "even" || name == "divisibleby")
    return integer_test(name, input, argument);
  if (const std::string_view op = comparison_of(name); !op.empty() || name == "sameas") {
    if (argument == nullptr)
      return wrong(fmt::format("'is {}' needs an argument", name));
    return name == "sameas" ? same_as(input, *argument) : compare(op, input, *argument, budget);
  }
  return fail(ErrorCode::kUnsupported, fmt::format("the test '{}' is not supported", name));
}

}  // namespace dormouse::text::jinja
