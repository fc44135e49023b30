#include "server/http_server.h"

#include <fmt/core.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include "base/check.h"
#include "base/log.h"

namespace dormouse::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

namespace {

constexpr std::size_t kReadBytes = 16 << 10;
constexpr std::size_t kReadAheadBytes = 64 << 10;  // kept of later requests while one is answered
constexpr std::size_t kMaxRequestIdBytes = 256;
constexpr std::chrono::milliseconds kLinger{1'000};
constexpr std::chrono::milliseconds kAcceptPause{100};

class Connection;

}  // namespace

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  Impl(HttpServerOptions server_options, HttpHandler server_handler)
      : options(std::move(server_options)), handler(std::move(server_handler)) {}

  Status listen();
  void accept();
  void post(std::function<void()> task);
  void run_on_io(std::function<void()> task);
  void begin_stop(std::chrono::milliseconds grace);
  void close_all();
  void forget(const std::shared_ptr<Connection>& connection);

  const HttpServerOptions options;
  const HttpHandler handler;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer accept_timer{io};
  asio::steady_timer stop_timer{io};
  std::unordered_set<std::shared_ptr<Connection>> connections;
  bool accept_paused = false;
  bool stopping = false;
  std::uint16_t port = 0;
  std::thread thread;

  std::mutex mutex;
  bool closed = false;  // guarded by mutex: nothing is posted any more
};

namespace {

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

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServer::Impl> server, tcp::socket socket)
      : server_(std::move(server)),
        socket_(std::move(socket)),
        read_timer_(server_->io),
        write_timer_(server_->io) {}

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    next_request();
  }

  HttpServer::Impl& server() { return *server_; }
  bool answers(std::uint64_t exchange) const { return busy_ && exchange == exchange_ && !closed_; }

  void reply(HttpResponse response) {
    const std::string length = std::to_string(response.body.size());
    response.headers.emplace_back("Content-Length", length);
    std::string bytes = head(response);
    if (!head_request_)
      bytes += response.body;
    send(std::move(bytes));
    complete();
  }

  void start_stream(HttpResponse response) {
    streaming_ = true;
    if (chunked_)
      response.headers.emplace_back("Transfer-Encoding", "chunked");
    else
      keep_alive_ = false;
    send(head(response));
  }

  void write(const std::string& bytes) {
    if (bytes.empty())
      return;
    send(chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : bytes);
    if (backlog_ > server_->options.max_stream_backlog_bytes) {
      log(LogLevel::kWarning, "server",
          "stream dropped: the client reads too slowly, backlog_bytes={}", backlog_);
      close();
    }
  }

  void finish() {
    if (chunked_)
      send("0\r\n\r\n");
    complete();
  }

  void on_disconnect(std::function<void()> callback) { disconnect_ = std::move(callback); }

  // The handler let go of its writer without an answer.
  void abandoned() {
    if (streaming_)
      close();
    else
      reply(refusal(500, "the request was dropped"));
  }

  void close() {
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

  void close_when_idle() {
    keep_alive_ = false;
    if (!busy_ && !writing_)
      close();
    else if (!busy_)
      close_after_write_ = true;
  }

 private:
  std::string head(const HttpResponse& response) {
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

  void next_request() {
    if (closed_ || close_after_write_)
      return;
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(server_->options.max_header_bytes));
    parser_->body_limit(server_->options.max_body_bytes);
    parser_->eager(true);
    request_id_.clear();
    header_done_ = false;
    started_ = false;
    streaming_ = false;
    arm(server_->options.idle_timeout);
    parse();
    read();
  }

  void read() {
    if (reading_ || closed_ || (busy_ && buffer_.size() >= kReadAheadBytes))
      return;
    reading_ = true;
    socket_.async_read_some(
        buffer_.prepare(kReadBytes),
        [self = shared_from_this()](error_code error, std::size_t n) { self->on_read(error, n); });
  }

  void on_read(error_code error, std::size_t n) {
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

  void parse() {
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
      arm(server_->options.body_timeout);
      if (!parser_->is_done() && parser_->get()[http::field::expect] == "100-continue")
        send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    if (parser_->is_done())
      handle();
  }

  void handle();

  void refuse(HttpResponse response) {
    keep_alive_ = false;
    head_request_ = false;
    reply(std::move(response));
  }

  void complete() {
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

  void send(std::string bytes) {
    if (closed_)
      return;
    backlog_ += bytes.size();
    out_ += bytes;
    if (!writing_)
      write_some();
  }

  void write_some() {
    if (sent_ == in_flight_.size()) {
      in_flight_ = std::exchange(out_, {});
      sent_ = 0;
    }
    writing_ = true;
    write_timer_.expires_after(server_->options.write_timeout);
    write_timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && self->writing_ &&
          self->write_timer_.expiry() <= std::chrono::steady_clock::now())
        self->close();
    });
    socket_.async_write_some(
        asio::buffer(in_flight_.data() + sent_, in_flight_.size() - sent_),
        [self = shared_from_this()](error_code error, std::size_t n) { self->on_write(error, n); });
  }

  void on_write(error_code error, std::size_t n) {
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
  void linger() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    arm(kLinger);
    buffer_.clear();
    read();
  }

  void arm(std::chrono::milliseconds timeout) {
    read_timer_.expires_after(timeout);
    read_timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && self->read_timer_.expiry() <= std::chrono::steady_clock::now())
        self->on_read_timeout();
    });
  }

  void on_read_timeout() {
    if (closed_ || busy_)
      return;
    if (close_after_write_ || !started_)
      return close();
    refuse(refusal(408, header_done_ ? "the body did not arrive in time"
                                     : "the headers did not arrive in time"));
  }

  const std::shared_ptr<HttpServer::Impl> server_;
  tcp::socket socket_;
  asio::steady_timer read_timer_;
  asio::steady_timer write_timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  bool started_ = false;  // bytes of this request have arrived
  bool header_done_ = false;
  bool reading_ = false;

  std::uint64_t exchange_ = 0;  // counts the requests of this connection
  bool busy_ = false;           // the handler owes an answer
  bool streaming_ = false;
  bool chunked_ = true;
  bool keep_alive_ = true;
  bool head_request_ = false;
  std::string request_id_;  // the client's own, sent back
  std::function<void()> disconnect_;

  std::string out_;
  std::string in_flight_;
  std::size_t sent_ = 0;
  std::size_t backlog_ = 0;
  bool writing_ = false;
  bool close_after_write_ = false;
  bool closed_ = false;
};

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

}  // namespace

Status HttpServer::Impl::listen() {
  error_code error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cannot resolve the host \"{}\": {}", options.host, error.message()),
                "host");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  if (options.loopback_only && !endpoint.address().is_loopback())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("refusing to listen on {} without an API key: everyone who reaches it "
                            "could use and control this server. Pass --api-key KEY, or "
                            "--host 127.0.0.1",
                            endpoint.address().to_string()),
                "host");
  acceptor.open(endpoint.protocol(), error);
  if (!error)
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error)
    acceptor.bind(endpoint, error);
  if (!error)
    acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return fail(ErrorCode::kUnavailable,
                fmt::format("cannot listen on {} port {}: {}. Choose another --port, or 0 for any",
                            endpoint.address().to_string(), options.port, error.message()),
                "port");
  port = acceptor.local_endpoint(error).port();
  return {};
}

void HttpServer::Impl::accept() {
  if (connections.size() >= options.max_connections) {
    accept_paused = true;
    return;
  }
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (stopping || error == asio::error::operation_aborted)
      return;
    if (error) {  // out of descriptors, most likely: a pause instead of a busy loop
      accept_timer.expires_after(kAcceptPause);
      accept_timer.async_wait([this](error_code cancelled) {
        if (!cancelled && !stopping)
          accept();
      });
      return;
    }
    const auto connection = std::make_shared<Connection>(shared_from_this(), std::move(socket));
    connections.insert(connection);
    connection->start();
    accept();
  });
}

void HttpServer::Impl::post(std::function<void()> task) {
  const std::lock_guard lock(mutex);
  if (!closed)
    asio::post(io, std::move(task));
}

void HttpServer::Impl::run_on_io(std::function<void()> task) {
  if (io.get_executor().running_in_this_thread())
    task();
  else
    post(std::move(task));
}

void HttpServer::Impl::forget(const std::shared_ptr<Connection>& connection) {
  connections.erase(connection);
  if (stopping && connections.empty())
    stop_timer.cancel();
  if (!stopping && std::exchange(accept_paused, false))
    accept();
}

void HttpServer::Impl::begin_stop(std::chrono::milliseconds grace) {
  if (std::exchange(stopping, true))
    return;
  error_code ignored;
  acceptor.close(ignored);
  accept_timer.cancel();
  const auto open = connections;
  for (const auto& connection : open)
    connection->close_when_idle();
  if (connections.empty())
    return;
  stop_timer.expires_after(grace);
  stop_timer.async_wait([this](error_code cancelled) {
    if (!cancelled)
      close_all();
  });
}

void HttpServer::Impl::close_all() {
  const auto open = connections;
  for (const auto& connection : open)
    connection->close();
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  stop(std::chrono::milliseconds(0));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options,
                                                      HttpHandler handler) {
  auto impl = std::make_shared<Impl>(std::move(options), std::move(handler));
  DM_TRY(impl->listen());
  impl->accept();
  impl->thread = std::thread([impl = impl.get()] { impl->io.run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

std::uint16_t HttpServer::port() const {
  return impl_->port;
}

void HttpServer::stop(std::chrono::milliseconds grace) {
  if (!impl_->thread.joinable())
    return;
  impl_->post([impl = impl_.get(), grace] { impl->begin_stop(grace); });
  impl_->thread.join();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->closed = true;
  }
  impl_->io.restart();
  impl_->io.poll();
}

}  // namespace dormouse::server
