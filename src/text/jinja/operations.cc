#include "text/jinja/operations.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "text/utf8.h"

namespace dormouse::text::jinja {
namespace {

tl::unexpected<Error> wrong_operands(std::string_view op, const Value& left, const Value& right) {
  return wrong(
      fmt::format("'{}' does not work between {} and {}", op, left.type_name(), right.type_name()));
}

tl::unexpected<Error> overflow() {
  return wrong("the number is too large");
}

Result<std::int64_t> power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result))
      return overflow();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
      return overflow();
  }
  return result;
}

// Rounds towards minus infinity, as Python does.
std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Result<Value> integer_arithmetic(std::string_view op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (op == "+")
    return __builtin_add_overflow(a, b, &result) ? overflow()
                                                 : Result<Value>(Value::integer(result));
  if (op == "-")
    return __builtin_sub_overflow(a, b, &result) ? overflow()
                                                 : Result<Value>(Value::integer(result));
  if (op == "*")
    return __builtin_mul_overflow(a, b, &result) ? overflow()
                                                 : Result<Value>(Value::integer(result));
  if (op == "**") {
    if (b < 0)
      return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
    DM_TRY_ASSIGN(result, power(a, b));
    return Value::integer(result);
  }
  if (b == 0)
    return wrong("division by zero");
  if (op == "/")
    return Value::real(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1)  // the one divisor that can overflow
    return op == "%" ? Result<Value>(Value::integer(0)) : integer_arithmetic("-", 0, a);
  const std::int64_t quotient = floor_divide(a, b);
  return Value::integer(op == "//" ? quotient : a - quotient * b);
}

Result<Value> real_arithmetic(std::string_view op, double a, double b) {
  if (op == "+")
    return Value::real(a + b);
  if (op == "-")
    return Value::real(a - b);
  if (op == "*")
    return Value::real(a * b);
  if (op == "**")
    return Value::real(std::pow(a, b));
  if (b == 0)
    return wrong("division by zero");
  if (op == "/")
    return Value::real(a / b);
  const double quotient = std::floor(a / b);
  return Value::real(op == "//" ? quotient : a - quotient * b);
}

Result<Value> join_strings(const MarkedString& left, const MarkedString& right, Budget& budget) {
  DM_TRY(budget.spend_string(left.size() + right.size()));
  MarkedString joined = left;
  joined.append(right);
  return Value::string(std::move(joined));
}

Result<Value> join_lists(const List& left, const List& right, Budget& budget) {
  DM_TRY(budget.spend(left.items.size() + right.items.size()));
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return Value::list(std::move(items), left.is_tuple);
}

Result<Value> repeat(const Value& value, std::int64_t count, Budget& budget) {
  const auto times = static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, 1 << 24));
  if (value.is_string()) {
    const MarkedString& part = value.as_string();
    DM_TRY(budget.spend_string(part.size() * times));
    MarkedString text;
    for (std::size_t i = 0; i < times && !part.empty(); ++i)
      text.append(part);
    return Value::string(std::move(text));
  }
  const List& list = value.as_list();
  DM_TRY(budget.spend(list.items.size() * times));
  std::vector<Value> items;
  for (std::size_t i = 0; i < times && !list.items.empty(); ++i)
    items.insert(items.end(), list.items.begin(), list.items.end());
  return Value::list(std::move(items), list.is_tuple);
}

bool is_sequence(const Value& value) {
  return value.is_string() || value.is_list();
}

// A Python index: negative ones count from the end. Nothing if it is outside.
std::optional<std::size_t> resolve(std::int64_t index, std::size_t size) {
  const auto length = static_cast<std::int64_t>(size);
  if (index < -length || index >= length)
    return std::nullopt;
  return static_cast<std::size_t>(index < 0 ? index + length : index);
}

struct Range {
  std::int64_t start, stop, step;
};

Result<Range> resolve_slice(const Value& start, const Value& stop, const Value& step,
                            std::int64_t length) {
  for (const Value* part : {&start, &stop, &step}) {
    if (!part->is_integer() && !part->is_boolean() && !part->is_none())
      return wrong(fmt::format("a slice of {}", part->type_name()));
  }
  Range range{0, 0, step.is_none() ? 1 : step.as_integer()};
  if (range.step == 0)
    return wrong("the step of a slice is zero");
  const bool forward = range.step > 0;
  const std::int64_t lowest = forward ? 0 : -1;
  const std::int64_t highest = forward ? length : length - 1;
  const auto bound = [&](const Value& part, std::int64_t fallback) {
    if (part.is_none())
      return fallback;
    const std::int64_t index = part.as_integer();
    if (index < 0)
      return index < -length ? lowest : std::max(lowest, index + length);
    return std::min(index, highest);
  };
  range.start = bound(start, forward ? lowest : highest);
  range.stop = bound(stop, forward ? highest : lowest);
  range.step = std::clamp(range.step, -length - 1, length + 1);
  return range;
}

}  // namespace

tl::unexpected<Error> wrong(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

std::vector<std::size_t> offsets_of(std::string_view text) {
  std::vector<std::size_t> offsets{0};
  while (offsets.back() < text.size())
    offsets.push_back(offsets.back() + decode_utf8(text.substr(offsets.back())).length);
  return offsets;
}

Result<bool> equals(const Value& left, const Value& right, Budget& budget) {
  DM_TRY(budget.spend());
  if (left.is_number() && right.is_number()) {
    if (left.is_real() || right.is_real())
      return left.as_real() == right.as_real();
    return left.as_integer() == right.as_integer();
  }
  if (left.is_string() && right.is_string())
    return left.as_string().text() == right.as_string().text();
  if (left.is_list() && right.is_list()) {
    const List& a = left.as_list();
    const List& b = right.as_list();
    bool same = a.items.size() == b.items.size() && a.is_tuple == b.is_tuple;
    for (std::size_t i = 0; same && i < a.items.size(); ++i) {
      DM_TRY_ASSIGN(same, equals(a.items[i], b.items[i], budget));
    }
    return same;
  }
  if (left.is_map() && right.is_map()) {
    bool same = left.as_map().entries().size() == right.as_map().entries().size();
    for (const auto& [key, value] : left.as_map().entries()) {
      const Value* other = right.as_map().find(key.text());
      if (!same || other == nullptr)
        return false;
      DM_TRY_ASSIGN(same, equals(value, *other, budget));
    }
    return same;
  }
  if (left.is_namespace() && right.is_namespace())
    return &left.as_namespace() == &right.as_namespace();
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

Result<bool> less(const Value& left, const Value& right, Budget& budget) {
  DM_TRY(budget.spend());
  if (left.is_number() && right.is_number()) {
    if (left.is_real() || right.is_real())
      return left.as_real() < right.as_real();
    return left.as_integer() < right.as_integer();
  }
  if (left.is_string() && right.is_string())
    return left.as_string().text() < right.as_string().text();
  if (left.is_list() && right.is_list()) {
    const std::vector<Value>& a = left.as_list().items;
    const std::vector<Value>& b = right.as_list().items;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      DM_TRY_ASSIGN(const bool same, equals(a[i], b[i], budget));
      if (!same)
        return less(a[i], b[i], budget);
    }
    return a.size() < b.size();
  }
  return wrong_operands("<", left, right);
}

Result<bool> contains(const Value& container, const Value& item, Budget& budget) {
  DM_TRY(budget.spend());
  if (container.is_string() && item.is_string())
    return container.as_string().text().find(item.as_string().text()) != std::string::npos;
  if (container.is_map())
    return item.is_string() && container.as_map().find(item.as_string().text()) != nullptr;
  if (container.is_undefined())
    return false;
  if (!container.is_list())
    return wrong_operands("in", item, container);
  for (const Value& member : container.as_list().items) {
    DM_TRY_ASSIGN(const bool same, equals(member, item, budget));
    if (same)
      return true;
  }
  return false;
}

Result<bool> compare(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  const auto negated = [](Result<bool> result) {
    return result.map([](bool value) { return !value; });
  };
  if (op == "==")
    return equals(left, right, budget);
  if (op == "!=")
    return negated(equals(left, right, budget));
  if (op == "in")
    return contains(right, left, budget);
  if (op == "not in")
    return negated(contains(right, left, budget));
  if (op == "<")
    return less(left, right, budget);
  if (op == ">")
    return less(right, left, budget);
  return op == "<=" ? negated(less(right, left, budget)) : negated(less(left, right, budget));
}

Result<Value> arithmetic(std::string_view op, const Value& left, const Value& right,
                         Budget& budget) {
  DM_TRY(budget.spend());
  if (op == "~") {
    DM_TRY_ASSIGN(const MarkedString a, to_text(left, budget));
    DM_TRY_ASSIGN(const MarkedString b, to_text(right, budget));
    return join_strings(a, b, budget);
  }
  if (left.is_number() && right.is_number()) {
    return left.is_real() || right.is_real()
               ? real_arithmetic(op, left.as_real(), right.as_real())
               : integer_arithmetic(op, left.as_integer(), right.as_integer());
  }
  if (op == "+" && left.is_string() && right.is_string())
    return join_strings(left.as_string(), right.as_string(), budget);
  if (op == "+" && left.is_list() && right.is_list() &&
      left.as_list().is_tuple == right.as_list().is_tuple)
    return join_lists(left.as_list(), right.as_list(), budget);
  if (op == "*" && is_sequence(left) && right.is_number() && !right.is_real())
    return repeat(left, right.as_integer(), budget);
  if (op == "*" && is_sequence(right) && left.is_number() && !left.is_real())
    return repeat(right, left.as_integer(), budget);
  return wrong_operands(op, left, right);
}

Result<Value> negate(const Value& value) {
  if (value.is_real())
    return Value::real(-value.as_real());
  if (value.is_number())
    return integer_arithmetic("-", 0, value.as_integer());
  return wrong(fmt::format("'-' does not work on {}", value.type_name()));
}

Result<Value> attribute(const Value& object, std::string_view name) {
  const Value* found = nullptr;
  if (object.is_undefined())
    return wrong(fmt::format("'{}' is undefined", object.undefined_name()));
  if (object.is_map())
    found = object.as_map().find(name);
  else if (object.is_namespace())
    found = object.as_namespace().attributes.find(name);
  return found != nullptr ? *found : Value::undefined(std::string(name));
}

Result<Value> item(const Value& object, const Value& key, Budget& budget) {
  DM_TRY(budget.spend());
  if (key.is_string())
    return attribute(object, key.as_string().text());
  if (object.is_undefined())
    return wrong(fmt::format("'{}' is undefined", object.undefined_name()));
  if (!key.is_number() || key.is_real())
    return Value::undefined(std::string(key.type_name()));
  std::optional<std::size_t> index;
  if (object.is_list()) {
    index = resolve(key.as_integer(), object.as_list().items.size());
    if (index)
      return object.as_list().items[*index];
  } else if (object.is_string()) {
    const MarkedString& text = object.as_string();
    DM_TRY(budget.spend_string(text.size()));
    const auto offsets = offsets_of(text.text());
    index = resolve(key.as_integer(), offsets.size() - 1);
    if (index)
      return Value::string(text.substr(offsets[*index], offsets[*index + 1] - offsets[*index]));
  }
  return Value::undefined(std::to_string(key.as_integer()));
}

Result<Value> slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                    Budget& budget) {
  if (!is_sequence(object))
    return wrong(fmt::format("a slice of {}", object.type_name()));
  const auto indices = [&](std::size_t size) -> Result<std::vector<std::size_t>> {
    DM_TRY_ASSIGN(const Range range,
                  resolve_slice(start, stop, step, static_cast<std::int64_t>(size)));
    std::vector<std::size_t> chosen;
    for (std::int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop;
         i += range.step)
      chosen.push_back(static_cast<std::size_t>(i));
    return chosen;
  };
  if (object.is_string()) {
    const MarkedString& text = object.as_string();
    DM_TRY(budget.spend_string(text.size()));
    const auto offsets = offsets_of(text.text());
    DM_TRY_ASSIGN(const auto chosen, indices(offsets.size() - 1));
    MarkedString part;
    for (const std::size_t i : chosen)
      part.append(text.substr(offsets[i], offsets[i + 1] - offsets[i]));
    return Value::string(std::move(part));
  }
  const List& list = object.as_list();
  DM_TRY(budget.spend(list.items.size()));
  DM_TRY_ASSIGN(const auto chosen, indices(list.items.size()));
  std::vector<Value> items;
  for (const std::size_t i : chosen)
    items.push_back(list.items[i]);
  return Value::list(std::move(items), list.is_tuple);
}

Result<std::vector<Value>> iterate(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (value.is_list()) {
    items = value.as_list().items;
  } else if (value.is_map()) {
    for (const auto& [key, member] : value.as_map().entries())
      items.push_back(Value::string(key));
  } else if (value.is_string()) {
    const MarkedString& text = value.as_string();
    DM_TRY(budget.spend(text.size()));
    const auto offsets = offsets_of(text.text());
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
      items.push_back(Value::string(text.substr(offsets[i], offsets[i + 1] - offsets[i])));
  } else if (!value.is_undefined()) {
    return wrong(fmt::format("{} is not iterable", value.type_name()));
  }
  DM_TRY(budget.spend(items.size()));
  return items;
}

Result<std::int64_t> length_of(const Value& value) {
  if (value.is_list())
    return static_cast<std::int64_t>(value.as_list().items.size());
  if (value.is_map())
    return static_cast<std::int64_t>(value.as_map().entries().size());
  if (value.is_string())
    return static_cast<std::int64_t>(offsets_of(value.as_string().text()).size()) - 1;
  if (value.is_undefined())
    return 0;
  return wrong(fmt::format("{} has no length", value.type_name()));
}

}  // namespace dormouse::text::jinja
