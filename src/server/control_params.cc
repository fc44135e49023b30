#include "server/control_params.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace dormouse::server {
namespace {

tl::unexpected<Error> invalid(std::string_view name, std::string_view must) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{} must be {}", name, must),
              std::string(name));
}

// Whether two letters more, less or otherwise make the one of the other; in either case.
bool is_slip_of(std::string_view text, std::string_view known) {
  constexpr std::size_t kSlips = 2;
  if (text.size() > known.size() + kSlips || text == "model")  // other routes have that, not "mode"
    return false;
  std::vector<std::size_t> row(known.size() + 1);  // distances from the text so far
  std::iota(row.begin(), row.end(), 0);
  for (const char c : text) {
    const char letter = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    std::size_t diagonal = std::exchange(row[0], row[0] + 1);
    for (std::size_t i = 1; i < row.size(); ++i) {
      const std::size_t replaced = diagonal + (letter == known[i - 1] ? 0 : 1);
      diagonal = row[i];
      row[i] = std::min({replaced, row[i] + 1, row[i - 1] + 1});
    }
  }
  return row.back() <= kSlips;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

Result<ControlParams> ControlParams::from(const HttpRequest& request) {
  ControlParams params{Json()};
  DM_TRY_ASSIGN(params.query_, parse_query(request.query));
  if (is_blank(request.body))
    return params;
  DM_TRY_ASSIGN(params.body_, parse_json(request.body));
  if (params.body_.object() == nullptr && !params.body_.is_null())
    return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object", "body");
  return params;
}

bool ControlParams::has(std::string_view name) const {
  const Json* member = body_.find(name);
  return (member != nullptr && !member->is_null()) ||
         std::any_of(query_.begin(), query_.end(),
                     [&](const auto& pair) { return pair.first == name; });
}

const Json* ControlParams::find(std::string_view name) {
  known_.emplace(name);
  const Json* member = body_.find(name);
  return member != nullptr && !member->is_null() ? member : nullptr;
}

Status ControlParams::refuse_slips() const {
  std::vector<std::string> given;
  for (const auto& [name, value] : query_)
    given.push_back(name);
  if (body_.object() != nullptr) {
    for (const auto& [name, value] : *body_.object()) {
      if (!value.is_null())
        given.push_back(name);
    }
  }
  for (const std::string& name : given) {
    const auto meant = std::ranges::find_if(
        known_, [&](const std::string& known) { return is_slip_of(name, known); });
    if (meant != known_.end() && !known_.contains(name))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("unknown parameter \"{}\"; did you mean \"{}\"?", name, *meant),
                  name);
  }
  return {};
}

Result<std::vector<std::string>> ControlParams::scalars(std::string_view name) {
  std::vector<std::string> found;
  for (const auto& [key, value] : query_) {
    if (key == name)
      found.push_back(value);
  }
  if (const Json* member = find(name)) {
    if (member->array() != nullptr || member->object() != nullptr)
      return invalid(name, "a single value");
    found.push_back(member->string() != nullptr ? *member->string() : member->dump());
  }
  return found;
}

Result<std::optional<std::int64_t>> ControlParams::integer(std::string_view name, std::int64_t min,
                                                           std::int64_t max) {
  std::vector<std::string> texts;
  DM_TRY_ASSIGN(texts, scalars(name));
  std::optional<std::int64_t> result;
  for (const std::string& text : texts) {
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value < min || value > max)
      return invalid(
          name, fmt::format("an integer from {} to {}; got \"{}\"", min, max, text.substr(0, 64)));
    if (result && *result != value)
      return invalid(name, "given once; query and body disagree");
    result = value;
  }
  return result;
}

Result<std::optional<bool>> ControlParams::boolean(std::string_view name) {
  std::vector<std::string> texts;
  DM_TRY_ASSIGN(texts, scalars(name));
  std::optional<bool> result;
  for (const std::string& text : texts) {
    const bool yes = text == "true" || text == "True" || text == "1";
    if (!yes && text != "false" && text != "False" && text != "0")
      return invalid(name, "true or false");
    if (result && *result != yes)
      return invalid(name, "given once; query and body disagree");
    result = yes;
  }
  return result;
}

Result<std::optional<std::string>> ControlParams::string(std::string_view name) {
  std::vector<std::string> texts;
  DM_TRY_ASSIGN(texts, scalars(name));
  if (texts.empty())
    return std::optional<std::string>();
  if (std::any_of(texts.begin(), texts.end(), [&](const auto& t) { return t != texts[0]; }))
    return invalid(name, "given once; query and body disagree");
  return std::optional(std::move(texts[0]));
}

Result<std::optional<std::vector<std::string>>> ControlParams::strings(std::string_view name) {
  const auto unique = [](std::vector<std::string> list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    return list;
  };
  std::vector<std::string> in_query;
  for (const auto& [key, value] : query_) {
    if (key == name)
      in_query.push_back(value);
  }
  const Json* member = find(name);
  if (member == nullptr)
    return in_query.empty() ? std::nullopt : std::optional(unique(std::move(in_query)));

  std::vector<std::string> in_body;
  if (member->string() != nullptr) {
    in_body.push_back(*member->string());
  } else if (const auto* items = member->array()) {
    for (const Json& item : *items) {
      if (item.string() == nullptr)
        return invalid(name, "a list of strings");
      in_body.push_back(*item.string());
    }
  } else {
    return invalid(name, "a list of strings");
  }
  if (!in_query.empty() && unique(in_query) != unique(in_body))
    return invalid(name, "given once; query and body disagree");
  return std::optional(unique(std::move(in_body)));
}

}  // namespace dormouse::server
