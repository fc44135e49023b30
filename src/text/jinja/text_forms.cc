#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "text/jinja/operations.h"

namespace dormouse::text::jinja {
namespace {

// As Python's repr: the shortest digits that read back the same, plain from 1e-4 up to 1e16.
std::string real_text(double value) {
  if (std::isnan(value))
    return "nan";
  if (std::isinf(value))
    return value > 0 ? "inf" : "-inf";
  const double size = std::fabs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer.data(), end);
  if (plain && text.find('.') == std::string::npos)
    text += ".0";
  return text;
}

std::string scalar_text(const Value& value) {
  if (value.is_none())
    return "None";
  if (value.is_boolean())
    return value.as_boolean() ? "True" : "False";
  if (value.is_integer())
    return std::to_string(value.as_integer());
  if (value.is_real())
    return real_text(value.as_real());
  if (value.is_undefined())
    return "";
  return fmt::format("<{}>", value.type_name());
}

class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  Status check() {
    DM_TRY(budget_.spend());
    return out_.size() > Budget::kMaxStringBytes ? budget_.spend_string(out_.size()) : Status();
  }

  void repr_string(const MarkedString& string) {
    const std::string& text = string.text();
    const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
    const char quote = single ? '\'' : '"';
    out_.append_trusted({&quote, 1});
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c == '\\' || c == quote)
        out_.append_as(std::string{'\\', c}, string, i);
      else if (c == '\n' || c == '\r' || c == '\t')
        out_.append_as(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", string, i);
      else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
        out_.append_as(fmt::format("\\x{:02x}", c), string, i);
      else
        out_.append_as({&c, 1}, string, i);
    }
    out_.append_trusted({&quote, 1});
  }

  Status repr(const Value& value) {
    DM_TRY(check());
    if (value.is_string()) {
      repr_string(value.as_string());
    } else if (value.is_list()) {
      const List& list = value.as_list();
      out_.append_trusted(list.is_tuple ? "(" : "[");
      for (std::size_t i = 0; i < list.items.size(); ++i) {
        out_.append_trusted(i == 0 ? "" : ", ");
        DM_TRY(repr(list.items[i]));
      }
      out_.append_trusted(!list.is_tuple ? "]" : list.items.size() == 1 ? ",)" : ")");
    } else if (value.is_map()) {
      out_.append_trusted("{");
      bool first = true;
      for (const auto& [key, member] : value.as_map().entries()) {
        out_.append_trusted(std::exchange(first, false) ? "" : ", ");
        repr_string(key);
        out_.append_trusted(": ");
        DM_TRY(repr(member));
      }
      out_.append_trusted("}");
    } else {
      out_.append_trusted(value.is_undefined() ? "Undefined" : scalar_text(value));
    }
    return {};
  }

  void json_string(const MarkedString& string) {
    static constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f";
    static constexpr std::string_view kNames = "\"\\nrtbf";
    const std::string& text = string.text();
    out_.append_trusted("\"");
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (const auto special = kSpecial.find(c); special != std::string_view::npos)
        out_.append_as(std::string{'\\', kNames[special]}, string, i);
      else if (static_cast<unsigned char>(c) < 0x20)
        out_.append_as(fmt::format("\\u{:04x}", c), string, i);
      else
        out_.append_as({&c, 1}, string, i);
    }
    out_.append_trusted("\"");
  }

  Status json(const Value& value, std::optional<int> indent, int level) {
    DM_TRY(check());
    if (value.is_string()) {
      json_string(value.as_string());
    } else if (value.is_list()) {
      std::size_t left = value.as_list().items.size();
      out_.append_trusted("[");
      for (const Value& member : value.as_list().items) {
        new_line(indent, level + 1);
        DM_TRY(json(member, indent, level + 1));
        separate(indent, --left);
      }
      if (!value.as_list().items.empty())
        new_line(indent, level);
      out_.append_trusted("]");
    } else if (value.is_map()) {
      std::size_t left = value.as_map().entries().size();
      out_.append_trusted("{");
      for (const auto& [key, member] : value.as_map().entries()) {
        new_line(indent, level + 1);
        json_string(key);
        out_.append_trusted(": ");
        DM_TRY(json(member, indent, level + 1));
        separate(indent, --left);
      }
      if (!value.as_map().entries().empty())
        new_line(indent, level);
      out_.append_trusted("}");
    } else {
      return json_scalar(value);
    }
    return {};
  }

  MarkedString take() { return std::move(out_); }

 private:
  Status json_scalar(const Value& value) {
    if (value.is_none())
      out_.append_trusted("null");
    else if (value.is_boolean())
      out_.append_trusted(value.as_boolean() ? "true" : "false");
    else if (value.is_real() && !std::isfinite(value.as_real()))
      out_.append_trusted(std::isnan(value.as_real()) ? "NaN"
                          : value.as_real() > 0       ? "Infinity"
                                                      : "-Infinity");
    else if (value.is_number())
      out_.append_trusted(scalar_text(value));
    else
      return wrong(fmt::format("{} has no JSON form", value.type_name()));
    return {};
  }

  void new_line(std::optional<int> indent, int level) {
    if (indent)
      out_.append_trusted("\n" + std::string(static_cast<std::size_t>(*indent * level), ' '));
  }
  void separate(std::optional<int> indent, std::size_t left) {
    if (left > 0)
      out_.append_trusted(indent ? "," : ", ");
  }

  Budget& budget_;
  MarkedString out_;
};

}  // namespace

Result<MarkedString> to_text(const Value& value, Budget& budget) {
  if (value.is_string())
    return value.as_string();
  if (!value.is_list() && !value.is_map())
    return MarkedString::trusted(scalar_text(value));
  Writer writer(budget);
  DM_TRY(writer.repr(value));
  MarkedString text = writer.take();
  DM_TRY(budget.spend_string(text.size()));
  return text;
}

Result<MarkedString> to_json(const Value& value, std::optional<int> indent, Budget& budget) {
  if (indent && (*indent < 0 || *indent > 64))
    return wrong("the indent is out of range");
  Writer writer(budget);
  DM_TRY(writer.json(value, indent, 0));
  MarkedString text = writer.take();
  DM_TRY(budget.spend_string(text.size()));
  return text;
}

}  // namespace dormouse::text::jinja
