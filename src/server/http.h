// HTTP as the routes see it: a request, a reply, and the writer through which the reply goes out.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dormouse/result.h"

namespace dormouse::server {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;    // as sent, without the query
  std::string query;   // as sent, without the '?'
  HeaderList headers;  // names in lower case, in order of arrival
  std::string body;

  // The first header of this lower-case name; empty if there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  HeaderList headers = {};
};

// The answer to one request: either one `reply`, or `start_stream`, any number of `write`,
// `finish`.
//
// Threads: any; what one thread sends arrives in its order.
// Owns:    the connection until the answer is complete. Dropped without an answer, it sends a 500.
// Errors:  none are reported here; after a disconnect everything sent is dropped.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  virtual void reply(HttpResponse response) = 0;
  // Sends the head; the body follows in chunks. A client that falls further behind than the
  // server's bound is disconnected.
  virtual void start_stream(HttpResponse head) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void finish() = 0;

  // Calls `callback` once, on the I/O thread, if the client goes away before the answer is
  // complete. The callback must not own this writer.
  virtual void on_disconnect(std::function<void()> callback) = 0;

  // Runs `task` on the I/O thread, after everything posted before. Dropped once the server has
  // stopped.
  virtual void post(std::function<void()> task) = 0;
};

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<ResponseWriter>)>;

// "Not Found" for 404.
std::string_view reason_phrase(int status);

// Decodes %XX. Fails on a broken escape.
Result<std::string> percent_decode(std::string_view text);

// Decodes name=value pairs in order; '+' is a space. Fails on a broken escape.
Result<std::vector<std::pair<std::string, std::string>>> parse_query(std::string_view query);

}  // namespace dormouse::server
