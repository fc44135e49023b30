// The prefill/decode router: one address in front of several engines. Each request has its prompt
// computed by one instance and its answer by another, which pulls the KV cache of the prompt.
//
// Only configured instances are ever called; a request that names peers is refused.
//
// Threads: status routes answer on the I/O thread; each request under way has a thread, up to a
//          bound, then waits in a bounded queue, then is refused with 503.
// Owns:    the HTTP server, its threads, and those that ask the instances for their health.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dormouse/result.h"
#include "server/http_server.h"

namespace dormouse::router {

struct PdRouterOptions {
  server::HttpServerOptions http;    // loopback_only is set from api_key
  std::string api_key;               // empty: no authorisation, and loopback only
  std::string backend_api_key;       // for every call to an instance
  std::vector<std::string> prefill;  // URLs
  std::vector<std::string> decode;
  std::chrono::milliseconds prefill_timeout{60'000};
  std::chrono::milliseconds decode_timeout{600'000};  // to the head, then without a byte
  std::chrono::milliseconds poll_interval{1'000};
  std::size_t max_concurrent = 128;
  std::size_t max_queued = 256;
};

class PdRouter {
 public:
  static Result<std::unique_ptr<PdRouter>> start(PdRouterOptions options);
  virtual ~PdRouter() = default;

  virtual std::uint16_t port() const = 0;
  // Accepts nothing more, lets requests under way complete for at most `grace`, then ends them.
  virtual void stop(std::chrono::milliseconds grace) = 0;
};

}  // namespace dormouse::router
