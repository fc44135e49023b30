#include "base/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace dormouse {
namespace {

// Builds a Json from nlohmann's events, which check syntax and UTF-8.
class Builder {
 public:
  explicit Builder(JsonLimits limits) : limits_(limits) {}

  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_integer(std::int64_t value) { return put(Json(value)); }
  bool number_unsigned(std::uint64_t value) { return put(Json(value)); }
  bool number_float(double value, const std::string&) { return put(Json(value)); }
  bool string(std::string& value) { return put(Json(std::move(value))); }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(); }
  bool start_array(std::size_t) { return open(); }

  bool key(std::string& name) {
    stack_.back().names.push_back(std::move(name));
    return true;
  }

  bool end_object() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    std::vector<std::string_view> sorted(frame.names.begin(), frame.names.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end())
      return refuse(fmt::format("the name \"{}\" occurs twice in one object", *twice));
    Json::Object object;
    object.reserve(frame.names.size());
    for (std::size_t i = 0; i < frame.names.size(); ++i)
      object.emplace_back(std::move(frame.names[i]), std::move(frame.values[i]));
    return put(Json(std::move(object)));
  }

  bool end_array() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    return put(Json(std::move(frame.values)));
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return refuse(fmt::format("not valid JSON at byte {}", position));
  }

  Json result = {};
  std::string error = {};

 private:
  struct Frame {
    std::vector<std::string> names;
    Json::Array values;
  };

  bool open() {
    if (stack_.size() >= limits_.depth)
      return refuse(fmt::format("the JSON is nested more than {} levels deep", limits_.depth));
    stack_.emplace_back();
    return true;
  }

  bool put(Json value) {
    if (++count_ > limits_.values)
      return refuse(fmt::format("the JSON has more than {} values", limits_.values));
    if (stack_.empty())
      result = std::move(value);
    else
      stack_.back().values.push_back(std::move(value));
    return true;
  }

  bool refuse(std::string why) {
    error = std::move(why);
    return false;
  }

  const JsonLimits limits_;
  std::vector<Frame> stack_;
  std::size_t count_ = 0;
};

// The length of the UTF-8 sequence at the start, 0 if it is not one.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xC2 && lead < 0xE0 ? 2
                             : lead >= 0xE0 && lead < 0xF0 ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (length == 0 || length > text.size())
    return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80)
      return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) > 0x9F;
  const bool too_large = lead == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || too_large ? 0 : length;
}

void dump_string(std::string_view text, std::string& out) {
  out += '"';
  while (!text.empty()) {
    const char c = text[0];
    std::size_t length = 1;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else if ((length = utf8_length(text)) > 0) {
      out += text.substr(0, length);
    } else {
      out += "\xEF\xBF\xBD";
      length = 1;
    }
    text.remove_prefix(length);
  }
  out += '"';
}

}  // namespace

double Json::as_double() const {
  if (const auto* number = std::get_if<double>(&value_))
    return *number;
  if (const auto* number = std::get_if<std::int64_t>(&value_))
    return static_cast<double>(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&value_))
    return static_cast<double>(*number);
  return 0;
}

std::int64_t Json::as_integer() const {
  if (const auto* number = std::get_if<std::uint64_t>(&value_))
    return static_cast<std::int64_t>(std::min<std::uint64_t>(
        *number, static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())));
  const auto* number = std::get_if<std::int64_t>(&value_);
  return number == nullptr ? 0 : *number;
}

std::uint64_t Json::as_unsigned() const {
  if (const auto* number = std::get_if<std::uint64_t>(&value_))
    return *number;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(as_integer(), 0));
}

const Json* Json::find(std::string_view name) const {
  if (const Object* members = object()) {
    for (const auto& [key, value] : *members) {
      if (key == name)
        return &value;
    }
  }
  return nullptr;
}

Json& Json::add(std::string name, Json value) {
  if (is_null())
    value_ = Object();
  std::get<Object>(value_).emplace_back(std::move(name), std::move(value));
  return *this;
}

Json& Json::push(Json value) {
  if (is_null())
    value_ = Array();
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

std::string Json::dump() const {
  std::string out;
  dump_to(out);
  return out;
}

void Json::dump_to(std::string& out) const {
  if (is_null()) {
    out += "null";
  } else if (const bool* flag = boolean()) {
    out += *flag ? "true" : "false";
  } else if (const auto* integer = std::get_if<std::int64_t>(&value_)) {
    out += std::to_string(*integer);
  } else if (const auto* natural = std::get_if<std::uint64_t>(&value_)) {
    out += std::to_string(*natural);
  } else if (const auto* number = std::get_if<double>(&value_)) {
    out += std::isfinite(*number) ? fmt::format("{}", *number) : "null";
  } else if (const std::string* text = string()) {
    dump_string(*text, out);
  } else if (const Array* items = array()) {
    out += '[';
    for (std::size_t i = 0; i < items->size(); ++i) {
      if (i > 0)
        out += ',';
      (*items)[i].dump_to(out);
    }
    out += ']';
  } else if (const Object* members = object()) {
    out += '{';
    for (std::size_t i = 0; i < members->size(); ++i) {
      if (i > 0)
        out += ',';
      dump_string((*members)[i].first, out);
      out += ':';
      (*members)[i].second.dump_to(out);
    }
    out += '}';
  }
}

Result<Json> parse_json(std::string_view text, JsonLimits limits) {
  Builder builder(limits);
  if (!nlohmann::json::sax_parse(text, &builder))
    return fail(ErrorCode::kInvalidArgument, std::move(builder.error), "body");
  return std::move(builder.result);
}

Result<Json> parse_msgpack(std::string_view bytes, JsonLimits limits) {
  Builder builder(limits);
  if (!nlohmann::json::sax_parse(bytes, &builder, nlohmann::json::input_format_t::msgpack))
    return fail(ErrorCode::kDataLoss, "not a message: " + builder.error);
  return std::move(builder.result);
}

}  // namespace dormouse
