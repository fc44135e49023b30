#include "text/jinja/value.h"

#include <algorithm>
#include <array>

namespace dormouse::text::jinja {

void Map::set(MarkedString key, Value value) {
  depth_ = std::max(depth_, value.depth() + 1);
  const auto [at, is_new] = index_.try_emplace(key.text(), entries_.size());
  if (is_new)
    entries_.emplace_back(std::move(key), std::move(value));
  else
    entries_[at->second].second = std::move(value);
}

const Value* Map::find(std::string_view key) const {
  const auto at = index_.find(std::string(key));
  return at == index_.end() ? nullptr : &entries_[at->second].second;
}

Value Value::string(MarkedString value) {
  return Value(std::make_shared<const MarkedString>(std::move(value)));
}

Value Value::list(std::vector<Value> items, bool is_tuple) {
  int depth = 1;
  for (const Value& item : items)
    depth = std::max(depth, item.depth() + 1);
  return Value(std::make_shared<const List>(List{std::move(items), is_tuple, depth}));
}

Value Value::map(Map map) {
  return Value(std::make_shared<const Map>(std::move(map)));
}

std::int64_t Value::as_integer() const {
  return is_boolean() ? (as_boolean() ? 1 : 0) : std::get<std::int64_t>(data_);
}

double Value::as_real() const {
  return is_real() ? std::get<double>(data_) : static_cast<double>(as_integer());
}

bool Value::is_true() const {
  if (is_undefined() || is_none())
    return false;
  if (is_number())
    return as_real() != 0;
  if (is_string())
    return !as_string().empty();
  if (is_list())
    return !as_list().items.empty();
  if (is_map())
    return !as_map().entries().empty();
  return true;
}

int Value::depth() const {
  if (is_list())
    return as_list().depth;
  return is_map() ? as_map().depth() : 0;
}

std::string_view Value::type_name() const {
  static constexpr std::array<std::string_view, 11> kNames{"undefined", "none",     "bool", "int",
                                                           "float",     "str",      "list", "dict",
                                                           "namespace", "function", "macro"};
  return is_list() && as_list().is_tuple ? "tuple" : kNames[data_.index()];
}

}  // namespace dormouse::text::jinja
