#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "text/jinja/functions.h"
#include "text/jinja/operations.h"

namespace dormouse::text::jinja {
namespace {

using Filter = Result<Value> (*)(const Value& input, const Arguments& arguments, Budget& budget);

// x.a.b, as the filters map, selectattr and join name attributes.
Result<Value> dotted_attribute(Value value, const Value& path, Budget& budget) {
  if (path.is_integer())
    return item(value, path, budget);
  if (!path.is_string())
    return wrong("an attribute's name is not a string");
  for (const MarkedString& name : split(path.as_string(), ".", -1)) {
    DM_TRY_ASSIGN(value, attribute(value, name.text()));
  }
  return value;
}

Result<MarkedString> text_argument(const Value* argument, std::string_view fallback,
                                   Budget& budget) {
  if (argument == nullptr)
    return MarkedString::trusted(std::string(fallback));
  return to_text(*argument, budget);
}

Result<Value> trim(const Value& input, const Arguments& arguments, Budget& budget) {
  DM_TRY_ASSIGN(const MarkedString text, to_text(input, budget));
  DM_TRY(budget.spend_string(text.size()));
  const Value* characters = arguments.find(0, "chars");
  const bool given = characters != nullptr && characters->is_string();
  return Value::string(strip(text, given ? characters->as_string().text() : "", true, true));
}

template <MarkedString (*Change)(const MarkedString&)>
Result<Value> on_text(const Value& input, const Arguments&, Budget& budget) {
  DM_TRY_ASSIGN(const MarkedString text, to_text(input, budget));
  DM_TRY(budget.spend_string(text.size()));
  return Value::string(Change(text));
}
MarkedString upper_of(const MarkedString& text) {
  return change_case(text, true);
}
MarkedString lower_of(const MarkedString& text) {
  return change_case(text, false);
}
MarkedString same(const MarkedString& text) {
  return text;
}

Result<Value> length(const Value& input, const Arguments&, Budget&) {
  return length_of(input).map(&Value::integer);
}

Result<Value> tojson(const Value& input, const Arguments& arguments, Budget& budget) {
  const Value* indent = arguments.find(0, "indent");
  const bool given = indent != nullptr && !indent->is_none();
  if (given && (!indent->is_integer() || indent->as_integer() < 0 || indent->as_integer() > 64))
    return wrong("the indent is not an integer up to 64");
  std::optional<int> columns;
  if (given)
    columns = static_cast<int>(indent->as_integer());
  return to_json(input, columns, budget).map(&Value::string);
}

Result<Value> join(const Value& input, const Arguments& arguments, Budget& budget) {
  DM_TRY_ASSIGN(const MarkedString separator, text_argument(arguments.find(0, "d"), "", budget));
  const Value* path = arguments.find(1, "attribute");
  DM_TRY_ASSIGN(const std::vector<Value> items, iterate(input, budget));
  MarkedString text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Value part = items[i];
    if (path != nullptr) {
      DM_TRY_ASSIGN(part, dotted_attribute(std::move(part), *path, budget));
    }
    if (i > 0)
      text.append(separator);
    DM_TRY_ASSIGN(const MarkedString piece, to_text(part, budget));
    text.append(piece);
    if (text.size() > Budget::kMaxStringBytes)
      break;
  }
  DM_TRY(budget.spend_string(text.size()));
  return Value::string(std::move(text));
}

Result<Value> replace_filter(const Value& input, const Arguments& arguments, Budget& budget) {
  const Value* from = arguments.find(0, "old");
  const Value* to = arguments.find(1, "new");
  const Value* count = arguments.find(2, "count");
  if (from == nullptr || to == nullptr)
    return wrong("replace needs two strings");
  DM_TRY_ASSIGN(const MarkedString text, to_text(input, budget));
  DM_TRY_ASSIGN(const MarkedString old_text, to_text(*from, budget));
  DM_TRY_ASSIGN(const MarkedString new_text, to_text(*to, budget));
  DM_TRY(budget.spend_string(text.size()));
  const std::int64_t limit = count != nullptr && count->is_integer() ? count->as_integer() : -1;
  return replace(text, old_text.text(), new_text, limit, budget).map(&Value::string);
}

Result<Value> fallback(const Value& input, const Arguments& arguments, Budget&) {
  const Value* value = arguments.find(0, "default_value");
  const Value* also_false = arguments.find(1, "boolean");
  const bool use =
      input.is_undefined() || (also_false != nullptr && also_false->is_true() && !input.is_true());
  if (!use)
    return input;
  return value != nullptr ? *value : Value::trusted("");
}

Result<Value> items_of(const Value& input, const Arguments&, Budget& budget) {
  std::vector<Value> pairs;
  if (input.is_undefined())
    return Value::list({});
  if (!input.is_map())
    return wrong(fmt::format("items needs a mapping, not {}", input.type_name()));
  DM_TRY(budget.spend(input.as_map().entries().size()));
  for (const auto& [key, value] : input.as_map().entries())
    pairs.push_back(Value::list({Value::string(key), value}, true));
  return Value::list(std::move(pairs));
}

Result<Value> dictsort(const Value& input, const Arguments& arguments, Budget& budget) {
  DM_TRY_ASSIGN(const Value pairs, items_of(input, arguments, budget));
  std::vector<Value> sorted = pairs.as_list().items;
  const auto key = [](const Value& pair) {
    return lower_of(pair.as_list().items[0].as_string()).text();
  };
  DM_TRY(budget.spend(sorted.size() * 20));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Value& a, const Value& b) { return key(a) < key(b); });
  return Value::list(std::move(sorted));
}

template <bool Last>
Result<Value> end_item(const Value& input, const Arguments&, Budget& budget) {
  DM_TRY_ASSIGN(const std::vector<Value> items, iterate(input, budget));
  if (items.empty())
    return Value::undefined(Last ? "the last item" : "the first item");
  return Last ? items.back() : items.front();
}

Result<Value> to_list(const Value& input, const Arguments&, Budget& budget) {
  return iterate(input, budget).map([](std::vector<Value> items) {
    return Value::list(std::move(items));
  });
}

Result<Value> reverse(const Value& input, const Arguments&, Budget& budget) {
  if (input.is_string())
    return slice(input, Value::none(), Value::none(), Value::integer(-1), budget);
  DM_TRY_ASSIGN(std::vector<Value> items, iterate(input, budget));
  std::reverse(items.begin(), items.end());
  return Value::list(std::move(items));
}

Result<Value> unique(const Value& input, const Arguments&, Budget& budget) {
  DM_TRY_ASSIGN(const std::vector<Value> items, iterate(input, budget));
  std::vector<Value> kept;
  for (const Value& candidate : items) {
    DM_TRY_ASSIGN(const bool known, contains(Value::list(kept), candidate, budget));
    DM_TRY(budget.spend(kept.size()));
    if (!known)
      kept.push_back(candidate);
  }
  return Value::list(std::move(kept));
}

// select, reject, selectattr, rejectattr
template <bool Keep, bool OfAttribute>
Result<Value> select(const Value& input, const Arguments& arguments, Budget& budget) {
  const Value* path = OfAttribute ? arguments.find(0, "") : nullptr;
  const Value* test = arguments.find(OfAttribute ? 1 : 0, "");
  if ((OfAttribute && path == nullptr) || (test != nullptr && !test->is_string()))
    return wrong("select needs the names of an attribute and of a test");
  const Arguments rest = arguments.from(OfAttribute ? 2 : 1);
  DM_TRY_ASSIGN(const std::vector<Value> items, iterate(input, budget));
  std::vector<Value> kept;
  for (const Value& candidate : items) {
    Value subject = candidate;
    if (OfAttribute) {
      DM_TRY_ASSIGN(subject, dotted_attribute(std::move(subject), *path, budget));
    }
    bool holds = subject.is_true();
    if (test != nullptr) {
      DM_TRY_ASSIGN(holds, apply_test(test->as_string().text(), subject, rest, budget));
    }
    if (holds == Keep)
      kept.push_back(candidate);
  }
  return Value::list(std::move(kept));
}

Result<Value> map_filter(const Value& input, const Arguments& arguments, Budget& budget) {
  const Value* path = arguments.find(arguments.positional.size(), "attribute");
  const Value* standard = arguments.find(arguments.positional.size(), "default");
  const Value* filter = arguments.find(0, "");
  if (path == nullptr && (filter == nullptr || !filter->is_string()))
    return wrong("map needs an attribute or the name of a filter");
  if (path == nullptr && filter->as_string().text() == "map")
    return fail(ErrorCode::kUnsupported, "map of map is not supported");
  DM_TRY_ASSIGN(std::vector<Value> items, iterate(input, budget));
  for (Value& value : items) {
    if (path != nullptr) {
      DM_TRY_ASSIGN(value, dotted_attribute(std::move(value), *path, budget));
      if (value.is_undefined() && standard != nullptr)
        value = *standard;
    } else {
      DM_TRY_ASSIGN(value,
                    apply_filter(filter->as_string().text(), value, arguments.from(1), budget));
    }
  }
  return Value::list(std::move(items));
}

Result<Value> to_integer(const Value& input, const Arguments& arguments, Budget&) {
  const Value* standard = arguments.find(0, "default");
  const Value otherwise = standard != nullptr ? *standard : Value::integer(0);
  if (input.is_real()) {
    const double whole = std::trunc(input.as_real());
    return std::fabs(whole) < 9e18 ? Value::integer(static_cast<std::int64_t>(whole)) : otherwise;
  }
  if (input.is_number())
    return Value::integer(input.as_integer());
  if (!input.is_string())
    return otherwise;
  const MarkedString stripped = strip(input.as_string(), "", true, true);
  const std::string& text = stripped.text();
  const char* start = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  std::int64_t value = 0;
  if (const auto read = std::from_chars(start, end, value);
      read.ec == std::errc() && read.ptr == end)
    return Value::integer(value);
  double real = 0;
  if (const auto read = std::from_chars(start, end, real);
      read.ec == std::errc() && read.ptr == end && std::fabs(real) < 9e18)
    return Value::integer(static_cast<std::int64_t>(real));
  return otherwise;
}

Result<Value> to_real(const Value& input, const Arguments& arguments, Budget&) {
  const Value* standard = arguments.find(0, "default");
  const Value otherwise = standard != nullptr ? *standard : Value::real(0);
  if (input.is_number())
    return Value::real(input.as_real());
  if (!input.is_string())
    return otherwise;
  const MarkedString stripped = strip(input.as_string(), "", true, true);
  const std::string& text = stripped.text();
  const char* end = text.data() + text.size();
  double value = 0;
  const auto read = std::from_chars(text.data() + (text.starts_with('+') ? 1 : 0), end, value);
  return read.ec == std::errc() && read.ptr == end ? Value::real(value) : otherwise;
}

Result<Value> absolute(const Value& input, const Arguments&, Budget&) {
  if (input.is_real())
    return Value::real(std::fabs(input.as_real()));
  if (!input.is_number())
    return wrong("abs needs a number");
  return input.as_integer() < 0 ? negate(input) : Value::integer(input.as_integer());
}

Result<Value> indent(const Value& input, const Arguments& arguments, Budget& budget) {
  const Value* width = arguments.find(0, "width");
  const Value* first = arguments.find(1, "first");
  const Value* blank = arguments.find(2, "blank");
  if (width != nullptr &&
      (!width->is_integer() || width->as_integer() < 0 || width->as_integer() > 64))
    return wrong("the width is not an integer up to 64");
  const std::string spaces(static_cast<std::size_t>(width != nullptr ? width->as_integer() : 4),
                           ' ');
  const bool indent_blank = blank != nullptr && blank->is_true();
  DM_TRY_ASSIGN(const MarkedString text, to_text(input, budget));
  MarkedString out;
  bool is_first = true;
  for (const MarkedString& line : split(text, "\n", -1)) {
    if (!is_first)
      out.append_trusted("\n");
    const bool wanted =
        is_first ? first != nullptr && first->is_true() : indent_blank || !line.empty();
    out.append_trusted(wanted ? spaces : "");
    out.append(line);
    is_first = false;
  }
  DM_TRY(budget.spend_string(out.size()));
  return Value::string(std::move(out));
}

constexpr std::array<std::pair<std::string_view, Filter>, 30> kFilters{{
    {"trim", trim},
    {"upper", on_text<upper_of>},
    {"lower", on_text<lower_of>},
    {"capitalize", on_text<capitalize>},
    {"title", on_text<title>},
    {"string", on_text<same>},
    {"safe", on_text<same>},
    {"length", length},
    {"count", length},
    {"tojson", tojson},
    {"join", join},
    {"replace", replace_filter},
    {"default", fallback},
    {"d", fallback},
    {"items", items_of},
    {"dictsort", dictsort},
    {"first", end_item<false>},
    {"last", end_item<true>},
    {"list", to_list},
    {"reverse", reverse},
    {"unique", unique},
    {"select", select<true, false>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<false, true>},
    {"map", map_filter},
    {"int", to_integer},
    {"float", to_real},
    {"abs", absolute},
    {"indent", indent},
}};

}  // namespace

const Value* Arguments::find(std::size_t index, std::string_view name) const {
  if (index < positional.size())
    return &positional[index];
  const auto match = std::find_if(named.begin(), named.end(),
                                  [&](const auto& argument) { return argument.first == name; });
  return match == named.end() ? nullptr : &match->second;
}

Arguments Arguments::from(std::size_t index) const {
  const auto skipped = static_cast<std::ptrdiff_t>(std::min(index, positional.size()));
  return {{positional.begin() + skipped, positional.end()}, named};
}

Result<Value> apply_filter(std::string_view name, const Value& input, const Arguments& arguments,
                           Budget& budget) {
  DM_TRY(budget.spend());
  for (const auto& [known, filter] : kFilters) {
    if (known == name)
      return filter(input, arguments, budget);
  }
  return fail(ErrorCode::kUnsupported, fmt::format("the filter '{}' is not supported", name));
}

}  // namespace dormouse::text::jinja
