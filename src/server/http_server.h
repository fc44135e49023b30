// An HTTP/1.1 server on one I/O thread.
//
// Threads: the handler runs on the I/O thread and must not block; it hands slow work to other
// threads,
//          which answer through the ResponseWriter.
// Owns:    the listening socket, the connections, the I/O thread.
// Errors:  a bad request is answered here (400, 408, 413, 431) and never reaches the handler.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "dormouse/result.h"
#include "server/http.h"

namespace dormouse::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;     // 0: the system picks one
  bool loopback_only = true;  // refuse to start on any other address
  std::size_t max_header_bytes = 64 << 10;
  std::size_t max_body_bytes = 16 << 20;
  // One more makes the idlest go of those that wait for another request, or that have said nothing
  // for the grace of a newcomer; if there is none it waits in the socket's backlog.
  std::size_t max_connections = 1024;
  std::chrono::milliseconds newcomer_grace{1'000};
  std::size_t max_stream_backlog_bytes = 1 << 20;  // unsent bytes of one stream
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds write_timeout{60'000};  // without any progress
};

class HttpServer {
 public:
  class Impl;

  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, HttpHandler handler);
  ~HttpServer();  // stop with no grace

  std::uint16_t port() const;
  // From now on every answer ends its connection. New ones are still accepted.
  void begin_drain();
  // Accepts nothing more, lets answers under way complete for at most `grace`, then closes
  // everything and ends the I/O thread.
  void stop(std::chrono::milliseconds grace);

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace dormouse::server
