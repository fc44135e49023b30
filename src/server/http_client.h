// A small blocking HTTP/1.1 client over plain sockets: for the command line, benchmarks and tests.
//
// Threads: one at a time; `interrupt` from any, while no other moves or destroys the client.
// Owns:    one connection, used for one call after another.
// Errors:  kUnavailable if the server cannot be reached or goes away, kDeadlineExceeded after the
//          timeout without a byte or at the deadline, kDataLoss for what is not HTTP,
//          kResourceExhausted for a body that is too long.
//          A 4xx or 5xx is a response.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "dormouse/result.h"
#include "server/http.h"

struct addrinfo;

namespace dormouse::server {

struct Address {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  bool operator==(const Address&) const = default;
};
// "http://127.0.0.1:8000", "127.0.0.1:8000", "localhost", "[::1]:8000". Refused: another scheme, a
// path, a port that is none, and what no host is called: "--port", "8000".
Result<Address> parse_url(std::string_view url);

class HttpClient {
 public:
  // Takes a part of the body as it arrives; false ends the call and closes the connection.
  using BodySink = std::function<bool(std::string_view)>;
  // Takes the status and the headers, before any part of the body.
  using HeadSink = std::function<void(const HttpResponse&)>;

  // Reaches nobody before `open`.
  HttpClient() = default;
  static Result<HttpClient> connect(const Address& address, std::chrono::milliseconds timeout);
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&& other) noexcept;
  ~HttpClient();

  // Tries each address of the host for that long; once, and until the deadline. The timeout stays.
  Status open(const Address& address, std::chrono::milliseconds timeout);

  // Sends one request and reads its whole answer. Sent with a Content-Type of application/json when
  // there is a body.
  Result<HttpResponse> call(std::string_view method, std::string_view target,
                            std::string_view body = {}, const HeaderList& headers = {});
  // The same, the body given piece by piece; the response returned has none.
  Result<HttpResponse> stream(std::string_view method, std::string_view target,
                              std::string_view body, const HeaderList& headers,
                              const BodySink& sink);
  Result<HttpResponse> stream(std::string_view method, std::string_view target,
                              std::string_view body, const HeaderList& headers,
                              const HeadSink& head, const BodySink& sink);

  Status send(std::string_view bytes);  // as they are
  Result<HttpResponse> receive();
  void close();
  // From now on the longest wait for a byte; 0: none.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  // From now on a call ends then, whatever is sent or arrives meanwhile; nothing: no such end.
  void set_deadline(std::optional<std::chrono::steady_clock::time_point> deadline) {
    deadline_ = deadline;
  }
  // From now on a longer body is no answer. Headers have 64 KiB.
  void set_max_body_bytes(std::uint64_t bytes) { max_body_bytes_ = bytes; }
  // Ends the connection, and with it what is under way: opening it, or a call.
  void interrupt();

 private:
  Status try_address(const addrinfo& address);
  // How long the next wait may last, by the timeout and the deadline; 0: for ever.
  Result<std::chrono::milliseconds> wait_limit() const;
  Status arm(int option) const;  // SO_RCVTIMEO or SO_SNDTIMEO, before each call that waits
  Result<HttpResponse> receive_to(const HeadSink& head, const BodySink& sink, bool has_body = true);
  Result<HttpResponse> read_head();
  Status read_body(const HttpResponse& head, const BodySink& sink);
  Status read_sized(std::uint64_t bytes, const BodySink& sink);
  Status read_chunked(const BodySink& sink);
  Status read_to_end(const BodySink& sink);
  Status take(std::string_view part, const BodySink& sink);
  Result<std::string> read_line();
  Status fill();  // appends what arrives to buffer_

  std::mutex mutex_;          // for `interrupt`, which uses socket_ while it is open
  int socket_ = -1;           // guarded by mutex_ where it changes
  bool interrupted_ = false;  // guarded by mutex_
  std::string host_;
  std::string buffer_;
  std::chrono::milliseconds timeout_{0};
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::uint64_t max_body_bytes_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t body_bytes_ = 0;  // of this call
};

}  // namespace dormouse::server
