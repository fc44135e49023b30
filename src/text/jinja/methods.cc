#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "text/jinja/functions.h"
#include "text/jinja/operations.h"

namespace dormouse::text::jinja {
namespace {

tl::unexpected<Error> no_method(const Value& object, std::string_view name) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("{} has no method '{}' here", object.type_name(), name));
}

Value list_of(std::vector<MarkedString> parts) {
  std::vector<Value> items;
  for (MarkedString& part : parts)
    items.push_back(Value::string(std::move(part)));
  return Value::list(std::move(items));
}

Result<std::int64_t> integer_or(const Value* argument, std::int64_t fallback) {
  if (argument == nullptr)
    return fallback;
  if (!argument->is_number() || argument->is_real())
    return wrong("an argument is not an integer");
  return argument->as_integer();
}

// startswith and endswith take a string or a tuple of them.
Result<Value> has_affix(const MarkedString& text, const Value* affix, bool at_start) {
  const auto matches = [&](const Value& part) {
    return part.is_string() && (at_start ? text.text().starts_with(part.as_string().text())
                                         : text.text().ends_with(part.as_string().text()));
  };
  if (affix == nullptr || (!affix->is_string() && !affix->is_list()))
    return wrong("startswith and endswith need a string");
  if (affix->is_string())
    return Value::boolean(matches(*affix));
  const auto& parts = affix->as_list().items;
  return Value::boolean(std::any_of(parts.begin(), parts.end(), matches));
}

Result<Value> split_method(const MarkedString& text, const Arguments& arguments, Budget& budget) {
  DM_TRY(budget.spend_string(text.size()));
  const Value* separator = arguments.find(0, "sep");
  DM_TRY_ASSIGN(const std::int64_t limit, integer_or(arguments.find(1, "maxsplit"), -1));
  std::vector<MarkedString> parts;
  if (separator == nullptr || separator->is_none())
    parts = split_spaces(text, limit);
  else if (separator->is_string() && !separator->as_string().empty())
    parts = split(text, separator->as_string().text(), limit);
  else
    return wrong("the separator is not a string, or empty");
  DM_TRY(budget.spend(parts.size()));
  return list_of(std::move(parts));
}

Result<Value> strip_method(const MarkedString& text, const Value* characters, bool left,
                           bool right) {
  if (characters != nullptr && !characters->is_string() && !characters->is_none())
    return wrong("strip needs a string");
  const bool given = characters != nullptr && characters->is_string();
  return Value::string(strip(text, given ? characters->as_string().text() : "", left, right));
}

Result<Value> find_method(const MarkedString& text, std::string_view name, const Value& part) {
  if (!part.is_string())
    return wrong(fmt::format("{} needs a string", name));
  const std::string& wanted = part.as_string().text();
  if (name == "count") {
    std::int64_t count = 0;
    for (std::size_t at = text.text().find(wanted); !wanted.empty() && at != std::string::npos;
         at = text.text().find(wanted, at + wanted.size()))
      ++count;
    return Value::integer(count);
  }
  const std::size_t found = name == "find" ? text.text().find(wanted) : text.text().rfind(wanted);
  if (found == std::string::npos)
    return Value::integer(-1);
  const auto before = offsets_of(std::string_view(text.text()).substr(0, found));
  return Value::integer(static_cast<std::int64_t>(before.size()) - 1);
}

MarkedString without_affix(const MarkedString& text, const std::string& affix, bool prefix) {
  if (prefix)
    return text.text().starts_with(affix) ? text.substr(affix.size()) : text;
  return text.text().ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
}

Result<Value> string_method(const Value& object, std::string_view name, const Arguments& arguments,
                            Budget& budget) {
  const MarkedString& text = object.as_string();
  const Value* first = arguments.find(0, "");
  DM_TRY(budget.spend_string(text.size()));
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return strip_method(text, first, name != "rstrip", name != "lstrip");
  if (name == "split")
    return split_method(text, arguments, budget);
  if (name == "splitlines")
    return list_of(split_lines(text));
  if (name == "startswith" || name == "endswith")
    return has_affix(text, first, name == "startswith");
  if (name == "upper" || name == "lower")
    return Value::string(change_case(text, name == "upper"));
  if (name == "capitalize")
    return Value::string(capitalize(text));
  if (name == "title")
    return apply_filter("title", object, {}, budget);
  if (name == "replace" || name == "join")
    return apply_filter(name, name == "join" && first != nullptr ? *first : object,
                        name == "join" ? Arguments{{object}} : arguments, budget);
  if (first == nullptr)
    return no_method(object, name);
  if (name == "find" || name == "rfind" || name == "count")
    return find_method(text, name, *first);
  if ((name == "removeprefix" || name == "removesuffix") && first->is_string())
    return Value::string(without_affix(text, first->as_string().text(), name == "removeprefix"));
  return no_method(object, name);
}

Result<Value> map_method(const Value& object, std::string_view name, const Arguments& arguments,
                         Budget& budget) {
  const Map& map = object.as_map();
  if (name == "items")
    return apply_filter("items", object, {}, budget);
  if (name == "get") {
    const Value* key = arguments.find(0, "key");
    const Value* fallback = arguments.find(1, "default");
    if (key == nullptr)
      return wrong("get needs a key");
    const Value* found = key->is_string() ? map.find(key->as_string().text()) : nullptr;
    return found != nullptr ? *found : fallback != nullptr ? *fallback : Value::none();
  }
  DM_TRY(budget.spend(map.entries().size()));
  std::vector<Value> items;
  for (const auto& [key, value] : map.entries())
    items.push_back(name == "keys" ? Value::string(key) : value);
  if (name == "keys" || name == "values")
    return Value::list(std::move(items));
  return no_method(object, name);
}

}  // namespace

Result<Value> call_method(const Value& object, std::string_view name, const Arguments& arguments,
                          Budget& budget) {
  DM_TRY(budget.spend());
  if (object.is_string())
    return string_method(object, name, arguments, budget);
  if (object.is_map())
    return map_method(object, name, arguments, budget);
  if (object.is_undefined())
    return wrong(fmt::format("'{}' is undefined", object.undefined_name()));
  return no_method(object, name);
}

}  // namespace dormouse::text::jinja
