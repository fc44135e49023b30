// The filters, tests, methods and functions that templates may name.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dormouse/result.h"
#include "text/jinja/budget.h"
#include "text/jinja/value.h"

namespace dormouse::text::jinja {

struct Arguments {
  std::vector<Value> positional = {};
  std::vector<std::pair<std::string, Value>> named = {};

  // The argument at `index` or of that name; null if it is not given.
  const Value* find(std::size_t index, std::string_view name) const;
  // Those from `index` on.
  Arguments from(std::size_t index) const;
};

// Errors of all: kInvalidArgument for wrong arguments, kUnsupported for a name that is not known.
Result<Value> apply_filter(std::string_view name, const Value& input, const Arguments& arguments,
                           Budget& budget);
Result<bool> apply_test(std::string_view name, const Value& input, const Arguments& arguments,
                        Budget& budget);
// object.name(arguments)
Result<Value> call_method(const Value& object, std::string_view name, const Arguments& arguments,
                          Budget& budget);

// The functions range() and strftime_now().
Result<Value> range(const Arguments& arguments, Budget& budget);
Result<Value> strftime_now(const Arguments& arguments, std::time_t now);

// The string operations that filters and methods share.
MarkedString strip(const MarkedString& text, std::string_view characters, bool left, bool right);
MarkedString change_case(const MarkedString& text, bool upper);
MarkedString capitalize(const MarkedString& text);
MarkedString title(const MarkedString& text);
Result<MarkedString> replace(const MarkedString& text, std::string_view from,
                             const MarkedString& to, std::int64_t count, Budget& budget);
std::vector<MarkedString> split(const MarkedString& text, std::string_view separator,
                                std::int64_t limit);
// Between runs of white space.
std::vector<MarkedString> split_spaces(const MarkedString& text, std::int64_t limit);
std::vector<MarkedString> split_lines(const MarkedString& text);

}  // namespace dormouse::text::jinja
