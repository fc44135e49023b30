// Messages as MessagePack objects. A message lists its fields once, for writing and reading:
//
//   struct Pulled {
//     static constexpr std::string_view kType = "pulled";
//     std::uint64_t grant = 0;
//     template <class Io, class Self>
//     static void fields(Io& io, Self& self) { io("grant", self.grant); }
//   };
//
// Every field must be there, of exactly its type and within its bounds; others are ignored. Fields
// are numbers without sign, booleans, strings of any bytes, objects that list their fields, and
// lists of these; one in a std::optional may be absent. What is no message between processes goes
// without a head: encode_fields, decode_fields.
#pragma once

#include <fmt/core.h>

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/field_reader.h"
#include "base/json.h"
#include "dormouse/result.h"

namespace dormouse {

inline constexpr std::size_t kMaxTextBytes = 1 << 20;
inline constexpr std::size_t kMaxListItems = 1 << 20;

template <class T>
concept WireNumber = std::unsigned_integral<T> && !std::same_as<T, bool>;

class FieldWriter {
 public:
  template <class T>
  void operator()(const char* name, const T& value) {
    object_.emplace_back(name, encode(value));
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>& value) {
    if (value)
      (*this)(name, *value);
  }
  Json take() { return Json(std::move(object_)); }

 private:
  template <class T>
  static Json encode(const T& value) {
    if constexpr (std::is_constructible_v<Json, const T&> && !std::is_class_v<T>) {
      return Json(value);
    } else if constexpr (std::same_as<T, std::string>) {
      return Json(value);
    } else {
      FieldWriter writer;
      T::fields(writer, value);
      return writer.take();
    }
  }
  template <class T>
  static Json encode(const std::vector<T>& items) {
    Json::Array array;
    array.reserve(items.size());
    for (const T& item : items)
      array.push_back(encode(item));
    return Json(std::move(array));
  }

  Json::Object object_;
};

class FieldsOf {
 public:
  explicit FieldsOf(const Json& object) : object_(object) {}

  template <class T>
  void operator()(const char* name, T& value) {
    const Json* json = object_.find(name);
    if (wrong_.empty() && (json == nullptr || !decode(*json, value)))
      wrong_ = name;
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& value) {
    value.reset();
    if (object_.find(name) != nullptr)
      (*this)(name, value.emplace());
  }
  // The first field that is missing or wrong; empty: none.
  const std::string& wrong() const { return wrong_; }

 private:
  static bool decode(const Json& json, bool& value) {
    const bool* flag = json.boolean();
    value = flag != nullptr && *flag;
    return flag != nullptr;
  }
  template <WireNumber T>
  static bool decode(const Json& json, T& value) {
    value = static_cast<T>(json.as_unsigned());
    const bool negative = json.is_integer() && json.as_integer() < 0;
    return json.is_integer() && !negative && json.as_unsigned() <= std::numeric_limits<T>::max();
  }
  static bool decode(const Json& json, std::string& value) {
    if (json.string() == nullptr || json.string()->size() > kMaxTextBytes)
      return false;
    value = *json.string();
    return true;
  }
  template <class T>
  static bool decode(const Json& json, std::vector<T>& items) {
    if (json.array() == nullptr || json.array()->size() > kMaxListItems)
      return false;
    items.clear();
    items.reserve(json.array()->size());
    for (const Json& item : *json.array()) {
      T value{};
      if (!decode(item, value))
        return false;
      items.push_back(std::move(value));
    }
    return true;
  }
  template <class T>
  requires requires { &T::template fields<FieldsOf, T>; }
  static bool decode(const Json& json, T& value) {
    FieldsOf reader(json);
    T::fields(reader, value);
    return json.object() != nullptr && reader.wrong().empty();
  }

  const Json& object_;
  std::string wrong_;
};

// Numbers the exchanges of one connection; a notice, which nobody answers, has 0.
using MessageId = std::uint64_t;

template <class Message>
std::string encode_message(const Message& message, MessageId id = 0) {
  FieldWriter writer;
  writer("type", std::string(Message::kType));
  writer("id", id);
  Message::fields(writer, message);
  return to_msgpack(writer.take());
}

struct MessageHead {
  std::string type;
  MessageId id = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("type", self.type);
    io("id", self.id);
  }
};

// The fields of a plain object without a head. kDataLoss names what is wrong.
template <class T>
Result<T> read_fields(const Json& json, std::string_view what) {
  T value;
  FieldsOf reader(json);
  T::fields(reader, value);
  if (json.object() == nullptr)
    return fail(ErrorCode::kDataLoss, fmt::format("{}: not an object", what));
  if (!reader.wrong().empty())
    return fail(ErrorCode::kDataLoss,
                fmt::format("{}: field {} is missing or wrong", what, reader.wrong()));
  return value;
}

template <class T>
std::string encode_fields(const T& value) {
  FieldWriter writer;
  T::fields(writer, value);
  return to_msgpack(writer.take());
}

template <class T>
Result<T> decode_fields(std::string_view bytes, std::string_view what, JsonLimits limits = {}) {
  DM_TRY_ASSIGN(const Json json, parse_msgpack(bytes, limits));
  return read_fields<T>(json, what);
}

// One of the messages that may come here. kDataLoss for every other.
template <class... Messages>
struct AnyMessage {
  MessageId id = 0;
  std::variant<Messages...> body;

  static Result<AnyMessage> decode(std::string_view bytes) {
    DM_TRY_ASSIGN(const Json json, parse_msgpack(bytes));
    return read(json);
  }
  static Result<AnyMessage> read(const Json& json) {
    DM_TRY_ASSIGN(const MessageHead head, read_fields<MessageHead>(json, "message"));
    Result<AnyMessage> result =
        fail(ErrorCode::kDataLoss,
             fmt::format("a message of type {} has no place here", excerpt(Json(head.type))));
    (void)((head.type == Messages::kType && (result = of<Messages>(json, head), true)) || ...);
    return result;
  }

 private:
  template <class Message>
  static Result<AnyMessage> of(const Json& json, const MessageHead& head) {
    DM_TRY_ASSIGN(Message message, read_fields<Message>(json, head.type));
    return AnyMessage{head.id, std::move(message)};
  }
};

}  // namespace dormouse
