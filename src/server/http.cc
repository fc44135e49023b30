#include "server/http.h"

#include <algorithm>
#include <optional>

namespace dormouse::server {
namespace {

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  if (c >= 'A' && c <= 'F')
    return c - 'A' + 10;
  return std::nullopt;
}

Result<std::string> decode_field(std::string_view text) {
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), '+', ' ');
  return percent_decode(spaced);
}

}  // namespace

Result<std::string> percent_decode(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (text[0] != '%') {
      out += text[0];
      text.remove_prefix(1);
      continue;
    }
    const auto high = text.size() > 2 ? hex_digit(text[1]) : std::nullopt;
    const auto low = text.size() > 2 ? hex_digit(text[2]) : std::nullopt;
    if (!high || !low)
      return fail(ErrorCode::kInvalidArgument, "the query has a broken % escape", "query");
    out += static_cast<char>(*high * 16 + *low);
    text.remove_prefix(3);
  }
  return out;
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name)
      return value;
  }
  return {};
}

Result<std::vector<std::pair<std::string, std::string>>> parse_query(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> pairs;
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.empty())
      continue;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    auto name = decode_field(pair.substr(0, equals));
    auto value = decode_field(equals < pair.size() ? pair.substr(equals + 1) : "");
    if (!name || !value)
      return tl::unexpected(name ? value.error() : name.error());
    pairs.emplace_back(std::move(*name), std::move(*value));
  }
  return pairs;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 507:
      return "Insufficient Storage";
  }
  return "Unknown";
}

}  // namespace dormouse::server
