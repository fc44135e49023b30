// The values of the template language.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/marked_string.h"

namespace dormouse::text::jinja {

class Value;
struct Macro;  // a macro of the template; see ast.h

struct Undefined {
  std::string name;  // of what was not found, for messages
};
struct None {};

// A function that every template knows; see functions.h.
struct Builtin {
  std::string_view name;  // of static storage
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;  // of nesting
};

// Keeps the order of insertion, as Python does.
class Map {
 public:
  using Entry = std::pair<MarkedString, Value>;

  void set(MarkedString key, Value value);
  const Value* find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  int depth() const { return depth_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
  int depth_ = 1;
};

// namespace(): the one value that a template can change. The rendering owns it.
struct Namespace {
  Map attributes;
};

// A value. Cheap to copy: strings, lists and maps are shared and never change.
class Value {
 public:
  static constexpr int kMaxDepth = 64;

  Value() : data_(Undefined{}) {}
  static Value undefined(std::string name) { return Value(Undefined{std::move(name)}); }
  static Value none() { return Value(None{}); }
  static Value boolean(bool value) { return Value(value); }
  static Value integer(std::int64_t value) { return Value(value); }
  static Value real(double value) { return Value(value); }
  static Value string(MarkedString value);
  static Value trusted(std::string text) { return string(MarkedString::trusted(std::move(text))); }
  static Value untrusted(std::string text) {
    return string(MarkedString::untrusted(std::move(text)));
  }
  static Value list(std::vector<Value> items, bool is_tuple = false);
  static Value map(Map map);
  static Value name_space(Namespace& value) { return Value(&value); }
  static Value builtin(std::string_view name) { return Value(Builtin{name}); }
  static Value macro(const Macro& value) { return Value(&value); }

  bool is_undefined() const { return holds<Undefined>(); }
  bool is_none() const { return holds<None>(); }
  bool is_boolean() const { return holds<bool>(); }
  bool is_integer() const { return holds<std::int64_t>(); }
  bool is_real() const { return holds<double>(); }
  bool is_number() const { return is_boolean() || is_integer() || is_real(); }
  bool is_string() const { return holds<std::shared_ptr<const MarkedString>>(); }
  bool is_list() const { return holds<std::shared_ptr<const List>>(); }
  bool is_map() const { return holds<std::shared_ptr<const Map>>(); }
  bool is_namespace() const { return holds<Namespace*>(); }
  bool is_builtin() const { return holds<Builtin>(); }
  bool is_macro() const { return holds<const Macro*>(); }

  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  bool as_boolean() const { return std::get<bool>(data_); }
  std::int64_t as_integer() const;  // of an integer or boolean
  double as_real() const;           // of any number
  const MarkedString& as_string() const {
    return *std::get<std::shared_ptr<const MarkedString>>(data_);
  }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Map& as_map() const { return *std::get<std::shared_ptr<const Map>>(data_); }
  Namespace& as_namespace() const { return *std::get<Namespace*>(data_); }
  std::string_view as_builtin() const { return std::get<Builtin>(data_).name; }
  const Macro& as_macro() const { return *std::get<const Macro*>(data_); }

  bool is_true() const;
  int depth() const;  // of nested lists and maps: 0 for a plain value
  // As Python names its type, for messages: "str".
  std::string_view type_name() const;

 private:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double,
                            std::shared_ptr<const MarkedString>, std::shared_ptr<const List>,
                            std::shared_ptr<const Map>, Namespace*, Builtin, const Macro*>;
  explicit Value(Data data) : data_(std::move(data)) {}
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }

  Data data_;
};

}  // namespace dormouse::text::jinja
