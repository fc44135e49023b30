#include "server/http_connection.h"

#include <fmt/core.h>

#include <atomic>

#include "base/log.h"

namespace dormouse::server {
namespace {

constexpr std::size_t kReadBytes = 16 << 10;
constexpr std::size_t kReadAheadBytes = 64 << 10;  // kept of later requests while one is answered
constexpr std::size_t kMaxRequestIdBytes = 256;
constexpr std::chrono::milliseconds kLinger{1'000};

HttpResponse refusal(int status, std::string_view message) {
  return {.status = status,
          .body = fmt::format(R"({{"error":{{"message":"{}","type":"BadRequestError",)"
                              R"("param":null,"code":{}}}}})",
                              message, status)};
}

HttpResponse refusal(const error_code& error, const HttpServerOptions& options) {
  if (error == http::error::header_limit)
    return refusal(431, fmt::format("the headers exceed {} bytes", options.max_header_bytes));
  if (error == http::error::body_limit)
    return refusal(413, fmt::format("the body exceeds {} bytes", options.max_body_bytes));
  return refusal(400, "this is not a valid HTTP request");
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value) {
    if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  out += "\r\n";
}

class Exchange final : public ResponseWriter {
 public:
  Exchange(std::shared_ptr<Connection> connection, std::uint64_t number)
      : connection_(std::move(connection)), number_(number) {}

  ~Exchange() override {
    if (!answered_)
      on_io([](Connection& connection) { connection.abandoned(); });
  }

  void reply(HttpResponse response) override {
    if (!answered_.exchange(true))
      on_io([response = std::move(response)](Connection& c) mutable {
        c.reply(std::move(response));
      });
  }
  void start_stream(HttpResponse head) override {
    on_io([head = std::move(head)](Connection& c) mutable { c.start_stream(std::move(head)); });
  }
  void write(std::string bytes) override {
    on_io([bytes = std::move(bytes)](Connection& c) { c.write(bytes); });
  }
  void finish() override {
    if (!answered_.exchange(true))
      on_io([](Connection& c) { c.finish(); });
  }
  void on_disconnect(std::function<void()> callback) override {
    connection_->server().run_on_io(
        [c = connection_, number = number_, callback = std::move(callback)]() mutable {
          if (c->answers(number))
            c->on_disconnect(std::move(callback));
          else
            callback();
        });
  }
  void post(std::function<void()> task) override { connection_->server().post(std::move(task)); }

 private:
  template <class Action>
  void on_io(Action action) {
    connection_->server().run_on_io(
        [c = connection_, number = number_, action = std::move(action)]() mutable {
          if (c->answers(number))
            action(*c);
        });
  }

  const std::shared_ptr<Connection> connection_;
  const std::uint64_t number_;
  std::atomic<bool> answered_ = false;
};

}  // namespace

void Connection::start() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  next_request();
}

void Connection::reply(HttpResponse response) {
  const std::string length = std::to_string(response.body.size());
  response.headers.emplace_back("Content-Length", length);
  std::string bytes = head(response);
  if (!head_request_)
    bytes += response.body;
  send(std::move(bytes));
  complete();
}

void Connection::start_stream(HttpResponse response) {
  streaming_ = true;
  if (chunked_)
    response.headers.emplace_back("Transfer-Encoding", "chunked");
  else
    keep_alive_ = false;
  send(head(response));
}

void Connection::write(const std::string& bytes) {
  if (bytes.empty())
    return;
  send(chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : bytes);
  if (backlog_ > server_->options.max_stream_backlog_bytes) {
    log(LogLevel::kWarning, "server",
        "stream dropped: the client reads too slowly, backlog_bytes={}", backlog_);
    close();
  }
}

void Connection::finish() {
  if (chunked_)
    send("0\r\n\r\n");
  complete();
}

void Connection::abandoned() {
  if (streaming_)
    close();
  else
    reply(refusal(500, "the request was dropped"));
}

void Connection::close() {
  if (closed_)
    return;
  const auto self = shared_from_this();
  closed_ = true;
  read_timer_.cancel();
  write_timer_.cancel();
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  server_->forget(self);
  if (const auto callback = std::exchange(disconnect_, nullptr))
    callback();
}

void Connection::close_when_idle() {
  keep_alive_ = false;
  if (!busy_ && !writing_)
    close();
  else if (!busy_)
    close_after_write_ = true;
}

bool Connection::may_go(std::chrono::steady_clock::time_point now) const {
  const bool is_newcomer = exchange_ == 0 && now - idle_since_ < server_->options.newcomer_grace;
  return !busy_ && !writing_ && !started_ && !closed_ && !is_newcomer;
}

std::string Connection::head(const HttpResponse& response) {
  keep_alive_ = keep_alive_ && !server_->draining;
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  if (!response.content_type.empty())
    append_header(out, "Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers)
    append_header(out, name, value);
  if (!request_id_.empty())
    append_header(out, "X-Request-Id", request_id_);
  append_header(out, "Connection", keep_alive_ ? "keep-alive" : "close");
  return out += "\r\n";
}

void Connection::next_request() {
  if (closed_ || close_after_write_)
    return;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(server_->options.max_header_bytes));
  parser_->body_limit(server_->options.max_body_bytes);
  parser_->eager(true);
  request_id_.clear();
  header_done_ = false;
  started_ = false;
  idle_since_ = std::chrono::steady_clock::now();
  streaming_ = false;
  arm(server_->options.idle_timeout);
  server_->resume_accepting();
  parse();
  read();
}

void Connection::read() {
  if (reading_ || closed_ || (busy_ && buffer_.size() >= kReadAheadBytes))
    return;
  reading_ = true;
  socket_.async_read_some(
      buffer_.prepare(kReadBytes),
      [self = shared_from_this()](error_code error, std::size_t n) { self->on_read(error, n); });
}

void Connection::on_read(error_code error, std::size_t n) {
  reading_ = false;
  if (closed_)
    return;
  if (error) {
    if (!busy_ && writing_ && error == asio::error::eof)
      close_after_write_ = true;
    else
      close();
    return;
  }
  if (close_after_write_) {  // only waits for the client to have read the answer
    buffer_.clear();
    return read();
  }
  buffer_.commit(n);
  if (!busy_)
    parse();
  read();
}

void Connection::parse() {
  while (buffer_.size() > 0 && !parser_->is_done()) {
    if (!std::exchange(started_, true))
      arm(server_->options.header_timeout);
    error_code error;
    const std::size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error && error != http::error::need_more)
      return refuse(refusal(error, server_->options));
    if (used == 0) {
      if (buffer_.size() > server_->options.max_header_bytes + kReadBytes)
        return refuse(refusal(http::error::header_limit, server_->options));
      break;
    }
  }
  if (parser_->is_header_done() && !std::exchange(header_done_, true)) {
    const auto& head = parser_->get();
    if (head.count(http::field::transfer_encoding) > 0 && !parser_->chunked())
      return refuse(refusal(400, "the only transfer encoding taken is chunked"));
    if (head.count(http::field::host) > 1)
      return refuse(refusal(400, "more than one Host header"));
    arm(server_->options.body_timeout);
    if (!parser_->is_done() && parser_->get()[http::field::expect] == "100-continue")
      send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  if (parser_->is_done())
    handle();
}

void Connection::refuse(HttpResponse response) {
  keep_alive_ = false;
  head_request_ = false;
  reply(std::move(response));
}

void Connection::complete() {
  busy_ = false;
  disconnect_ = nullptr;
  if (!keep_alive_ || server_->stopping) {
    close_after_write_ = true;
    if (!writing_)
      linger();
    return;
  }
  asio::post(server_->io, [self = shared_from_this()] { self->next_request(); });
}

void Connection::send(std::string bytes) {
  if (closed_)
    return;
  backlog_ += bytes.size();
  out_ += bytes;
  if (!writing_)
    write_some();
}

void Connection::write_some() {
  if (sent_ == in_flight_.size()) {
    in_flight_ = std::exchange(out_, {});
    sent_ = 0;
  }
  writing_ = true;
  write_timer_.expires_after(server_->options.write_timeout);
  write_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && self->writing_ && self->write_timer_.expiry() <= std::chrono::steady_clock::now())
      self->close();
  });
  socket_.async_write_some(
      asio::buffer(in_flight_.data() + sent_, in_flight_.size() - sent_),
      [self = shared_from_this()](error_code error, std::size_t n) { self->on_write(error, n); });
}

void Connection::on_write(error_code error, std::size_t n) {
  writing_ = false;
  if (closed_)
    return;
  if (error)
    return close();
  sent_ += n;
  backlog_ -= n;
  if (backlog_ > 0)
    return write_some();
  write_timer_.cancel();
  if (close_after_write_)
    linger();
}

// Closing with unread input resets the connection, and the client may lose the answer.
void Connection::linger() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  arm(kLinger);
  buffer_.clear();
  read();
}

void Connection::arm(std::chrono::milliseconds timeout) {
  read_timer_.expires_after(timeout);
  read_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && self->read_timer_.expiry() <= std::chrono::steady_clock::now())
      self->on_read_timeout();
  });
}

void Connection::on_read_timeout() {
  if (closed_ || busy_)
    return;
  if (close_after_write_ || !started_)
    return close();
  refuse(refusal(408, header_done_ ? "the body did not arrive in time"
                                   : "the headers did not arrive in time"));
}

void Connection::handle() {
  auto message = parser_->release();
  busy_ = true;
  ++exchange_;
  keep_alive_ = message.keep_alive() && !server_->stopping;
  chunked_ = message.version() >= 11;
  head_request_ = message.method() == http::verb::head;

  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view target(message.target().data(), message.target().size());
  if (target.empty() || target[0] != '/')
    return refuse(refusal(400, "the request target must be a path"));
  const std::size_t mark = std::min(target.find('?'), target.size());
  request.path = std::string(target.substr(0, mark));
  if (mark < target.size())
    request.query = std::string(target.substr(mark + 1));
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name)
      c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.body = std::move(message.body());
  request_id_ = request.header("x-request-id").substr(0, kMaxRequestIdBytes);
  server_->handler(std::move(request), std::make_shared<Exchange>(shared_from_this(), exchange_));
}

}  // namespace dormouse::server
