// What the language does with values: text forms, comparison, arithmetic, access.
#pragma once

#include <optional>
#include <string_view>

#include "dormouse/result.h"
#include "text/jinja/budget.h"
#include "text/jinja/value.h"

namespace dormouse::text::jinja {

// As Python's str(): what {{ value }} writes. Undefined is empty.
Result<MarkedString> to_text(const Value& value, Budget& budget);
// As json.dumps(value, ensure_ascii=False, indent=indent).
Result<MarkedString> to_json(const Value& value, std::optional<int> indent, Budget& budget);

// Errors of all below: kInvalidArgument for operands of the wrong type, or an exhausted budget.
Result<bool> equals(const Value& left, const Value& right, Budget& budget);
Result<bool> less(const Value& left, const Value& right, Budget& budget);
Result<bool> contains(const Value& container, const Value& item, Budget& budget);
// ==, !=, <, <=, >, >=, in, not in
Result<bool> compare(std::string_view op, const Value& left, const Value& right, Budget& budget);
// +, -, *, /, //, %, **, ~
Result<Value> arithmetic(std::string_view op, const Value& left, const Value& right,
                         Budget& budget);
Result<Value> negate(const Value& value);

// object.name; undefined if there is no such attribute.
Result<Value> attribute(const Value& object, std::string_view name);
// object[key]
Result<Value> item(const Value& object, const Value& key, Budget& budget);
Result<Value> slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                    Budget& budget);
// What a loop goes over: a list's items, a map's keys, a string's characters. Undefined has none.
Result<std::vector<Value>> iterate(const Value& value, Budget& budget);
// As len().
Result<std::int64_t> length_of(const Value& value);

// Where each character begins, and the end.
std::vector<std::size_t> offsets_of(std::string_view text);

// An operating error of the template; the interpreter adds the line.
tl::unexpected<Error> wrong(std::string message);

}  // namespace dormouse::text::jinja
