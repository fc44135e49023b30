// JSON values: read from untrusted text, built for replies.
//
// Numbers keep what was written: an integer that fits 64 bits stays one, everything else is a
// double. Objects keep their order; names are unique.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dormouse/result.h"

namespace dormouse {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  template <class T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) Json(T value) {
    if constexpr (std::is_signed_v<T>)
      value_ = static_cast<std::int64_t>(value);
    else
      value_ = static_cast<std::uint64_t>(value);
  }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_integer() const {
    return std::holds_alternative<std::int64_t>(value_) ||
           std::holds_alternative<std::uint64_t>(value_);
  }
  // The value of a number; 0 of anything else. as_integer is bounded to the range of its type.
  double as_double() const;
  std::int64_t as_integer() const;
  std::uint64_t as_unsigned() const;

  // The member of this name; null if there is none, or if this is not an object.
  const Json* find(std::string_view name) const;

  // Appends to an object or an array; a null becomes one first.
  Json& add(std::string name, Json value);
  Json& push(Json value);

  // One line, valid UTF-8; a number that is not finite becomes null.
  std::string dump() const;

  // Calls with the value's C++ type: std::monostate, bool, std::int64_t, std::uint64_t, double,
  // std::string, Array or Object.
  template <class Visitor>
  decltype(auto) visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), value_);
  }

 private:
  void dump_to(std::string& out) const;

  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      value_;
};

struct JsonLimits {
  std::size_t depth = 64;
  std::size_t values = 1 << 20;
};

// Reads one JSON text. kInvalidArgument for what is not JSON, not UTF-8, too deep, too many values,
// a number beyond a double, or a name that occurs twice in one object.
Result<Json> parse_json(std::string_view text, JsonLimits limits = {});

// The one binary encoding between processes: MessagePack of these values. Strings are any bytes.
// Errors: kDataLoss for what is not exactly one such value within the limits.
std::string to_msgpack(const Json& value);
Result<Json> parse_msgpack(std::string_view bytes, JsonLimits limits = {});

}  // namespace dormouse
