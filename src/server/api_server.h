// The HTTP face of one engine: routes, authorisation, and the threads that calls run on.
//
// Threads: status routes answer on the I/O thread; prompts are prepared on a few inference threads;
//          control calls block on threads of their own, wake-ups on others still, so that a wake-up
//          always gets through.
// Owns:    the HTTP server and its threads. The engine must outlive it.
// Order:   to shut down: begin_drain, engine.shutdown (every request gets its end, /health says
// 503),
//          then stop.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "dormouse/config.h"
#include "dormouse/engine.h"
#include "server/http_server.h"

namespace dormouse::server {

struct ApiServerOptions {
  HttpServerOptions http;             // loopback_only is set from api_key
  std::string api_key;                // empty: no authorisation, and loopback only
  KvTransferConfig kv_transfer = {};  // what the engine was started with, for /status
};

class ApiServer {
 public:
  static Result<std::unique_ptr<ApiServer>> start(Engine& engine, ApiServerOptions options);
  virtual ~ApiServer() = default;

  virtual std::uint16_t port() const = 0;
  // From now on every answer ends its connection, so that clients go elsewhere.
  virtual void begin_drain() = 0;
  // Lets answers under way complete for at most `grace`, then closes every connection.
  virtual void stop(std::chrono::milliseconds grace) = 0;
};

}  // namespace dormouse::server
