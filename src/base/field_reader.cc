#include "base/field_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dormouse {
namespace {

constexpr std::int64_t kMaxTokenId = std::numeric_limits<TokenId>::max();
constexpr std::size_t kExcerptBytes = 48;

}  // namespace

std::optional<std::int64_t> whole_number(const Json& value, std::int64_t min, std::int64_t max) {
  if (!value.is_number())
    return std::nullopt;
  if (!value.is_integer()) {
    const double number = value.as_double();
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (number != std::floor(number) || std::abs(number) > kExact)
      return std::nullopt;
    const auto integer = static_cast<std::int64_t>(number);
    return integer < min || integer > max ? std::nullopt : std::optional(integer);
  }
  const std::int64_t integer = value.as_integer();
  return integer < min || integer > max ? std::nullopt : std::optional(integer);
}

std::string excerpt(const Json& value) {
  std::string text = value.dump();
  if (text.size() > kExcerptBytes)
    text = text.substr(0, kExcerptBytes) + "...";
  return text;
}

const Json* FieldReader::find(std::string_view name) {
  known_.push_back(name);
  const Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void FieldReader::fail(std::string_view name, std::string message, ErrorCode code) {
  if (status_)
    status_ = dormouse::fail(code, std::move(message), std::string(name));
}

void FieldReader::refuse_others() {
  std::string known;
  for (const std::string_view each : known_)
    known.append(known.empty() ? "" : ", ").append(each);
  for (const auto& [name, value] : *object_.object())
    if (std::ranges::find(known_, name) == known_.end())
      return fail(name, fmt::format("{} is unknown; known are {}", name, known));
}

void FieldReader::number(std::string_view name, float& target, double min, double max) {
  const Json* value = find(name);
  if (value == nullptr)
    return;
  const double number = value->as_double();
  if (!value->is_number() || !(number >= min && number <= max))
    return fail(name, fmt::format("{} must be a number from {} to {}; got {}", name, min, max,
                                  excerpt(*value)));
  target = static_cast<float>(number);
}

void FieldReader::seconds(std::string_view name, std::chrono::steady_clock::duration& target) {
  using Seconds = std::chrono::duration<float>;
  float value = Seconds(target).count();
  number(name, value, 0.05, 86400);
  target = std::chrono::round<std::chrono::milliseconds>(Seconds(value));
}

std::optional<std::int64_t> FieldReader::read_integer(std::string_view name, std::int64_t min,
                                                      std::int64_t max) {
  const Json* value = find(name);
  if (value == nullptr)
    return std::nullopt;
  const auto result = whole_number(*value, min, max);
  if (!result)
    fail(name, fmt::format("{} must be an integer from {} to {}; got {}", name, min, max,
                           excerpt(*value)));
  return result;
}

void FieldReader::flag(std::string_view name, bool& target) {
  const Json* value = find(name);
  if (value == nullptr)
    return;
  if (value->boolean() == nullptr)
    return fail(name, fmt::format("{} must be true or false; got {}", name, excerpt(*value)));
  target = *value->boolean();
}

void FieldReader::string(std::string_view name, std::string& target, std::size_t max_bytes) {
  const Json* value = find(name);
  if (value == nullptr)
    return;
  if (value->string() == nullptr || value->string()->size() > max_bytes)
    return fail(name, fmt::format("{} must be a string of at most {} bytes", name, max_bytes));
  target = *value->string();
}

void FieldReader::strings(std::string_view name, std::vector<std::string>& target,
                          std::size_t max_count, std::size_t max_bytes) {
  const Json* value = find(name);
  if (value == nullptr)
    return;
  const auto* items = value->array();
  const Json::Array single{*value};
  const Json::Array& list = items == nullptr ? single : *items;
  bool valid = list.size() <= max_count;
  std::vector<std::string> result;
  for (const Json& item : list) {
    const std::string* text = item.string();
    valid = valid && text != nullptr && !text->empty() && text->size() <= max_bytes;
    if (!valid)
      return fail(name, fmt::format("{} must be a string, or a list of at most {} strings, each of "
                                    "1 to {} bytes",
                                    name, max_count, max_bytes));
    result.push_back(*text);
  }
  target = std::move(result);
}

void FieldReader::token_ids(std::string_view name, std::vector<TokenId>& target,
                            std::size_t max_count) {
  const Json* value = find(name);
  if (value == nullptr)
    return;
  const auto* items = value->array();
  bool valid = items != nullptr && items->size() <= max_count;
  std::vector<TokenId> result;
  for (std::size_t i = 0; valid && i < items->size(); ++i) {
    const auto id = whole_number((*items)[i], 0, kMaxTokenId);
    valid = id.has_value();
    result.push_back(static_cast<TokenId>(id.value_or(0)));
  }
  if (!valid)
    return fail(name, fmt::format("{} must be a list of at most {} token ids", name, max_count));
  target = std::move(result);
}

}  // namespace dormouse
