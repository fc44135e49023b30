#include "server/routes.h"

namespace dormouse::server {

const Route* find_route(const std::vector<Route>& routes, const HttpRequest& request,
                        std::string& allowed) {
  std::string_view path = request.path;
  if (path.size() > 1 && path.ends_with('/'))
    path.remove_suffix(1);
  std::string_view method = request.method;
  if (method == "HEAD")
    method = "GET";
  for (const Route& route : routes) {
    const bool fits = route.prefix ? path.size() > route.path.size() && path.starts_with(route.path)
                                   : path == route.path;
    if (!fits)
      continue;
    if (route.method == method)
      return &route;
    if (!allowed.empty())
      allowed += ", ";
    allowed += route.method;
  }
  return nullptr;
}

bool is_from_foreign_page(const HttpRequest& request) {
  std::string_view origin = request.header("origin");
  if (origin.empty())
    return false;
  const std::size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos)
    return true;
  origin.remove_prefix(scheme + 3);
  const std::size_t end = origin.starts_with('[') ? origin.find(']') + 1 : origin.find(':');
  const std::string_view host = origin.substr(0, end);
  return host != "localhost" && host != "127.0.0.1" && host != "[::1]";
}

bool is_authorized(const HttpRequest& request, std::string_view key) {
  constexpr std::string_view kScheme = "Bearer ";
  std::string_view given = request.header("authorization");
  if (!given.starts_with(kScheme))
    return false;
  given.remove_prefix(kScheme.size());
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ key[i % key.size()]);
  return difference == 0;
}

}  // namespace dormouse::server
