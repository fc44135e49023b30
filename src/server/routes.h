// From method and path to a handler.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace dormouse::server {

// Where a handler runs.
enum class Lane { kIo, kInference, kControl, kWake };

struct Route {
  std::string_view method;
  std::string_view path;
  Lane lane = Lane::kIo;
  bool open = false;    // needs no key
  bool prefix = false;  // of every longer path: its rest is an argument
  HttpHandler handler;
};

// The route of a request; a trailing slash and HEAD for GET are tolerated. Otherwise null, and
// `allowed` names the methods that this path has: none, and there is no such path.
const Route* find_route(const std::vector<Route>& routes, const HttpRequest& request,
                        std::string& allowed);

// Whether a browser sent this on behalf of a web page that is not this machine's own. Without a key
// such a page could put the engine to sleep.
bool is_from_foreign_page(const HttpRequest& request);

// Whether the request carries "Authorization: Bearer KEY". Takes the same time for every wrong key.
bool is_authorized(const HttpRequest& request, std::string_view key);

}  // namespace dormouse::server
