// What the router says of itself: GET /status and GET /metrics.
#pragma once

#include <string>

#include "router/instance_pool.h"
#include "router/routed_request.h"
#include "server/http.h"

namespace dormouse::router {

server::HttpResponse health_ready(const InstancePool& pool);
server::HttpResponse status(const InstancePool& pool, const Totals& totals);
server::HttpResponse metrics(const InstancePool& pool, const Totals& totals);

}  // namespace dormouse::router
