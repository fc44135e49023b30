// The insides of the HTTP server, shared by the file that accepts connections and the one that
// serves each. Nothing else includes this.
//
// Threads: everything on the I/O thread, but what HttpServer::Impl guards with its mutex.
#pragma once

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

#include "server/http_server.h"

namespace dormouse::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

class Connection;

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  Impl(HttpServerOptions server_options, HttpHandler server_handler)
      : options(std::move(server_options)), handler(std::move(server_handler)) {}

  Status listen();
  void accept();
  void admit();  // who waits in the backlog
  void pause_accepting();
  void resume_accepting();
  void post(std::function<void()> task);
  void run_on_io(std::function<void()> task);
  void begin_stop(std::chrono::milliseconds grace);
  void close_all();
  void forget(const std::shared_ptr<Connection>& connection);
  bool make_room();

  const HttpServerOptions options;
  const HttpHandler handler;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer accept_timer{io};
  asio::steady_timer stop_timer{io};
  std::unordered_set<std::shared_ptr<Connection>> connections;
  bool accept_paused = false;  // until a connection is idle or gone, or for a moment
  bool draining = false;       // every answer ends its connection
  bool stopping = false;
  std::uint16_t port = 0;
  std::thread thread;

  std::mutex mutex;
  bool closed = false;  // guarded by mutex: nothing is posted any more
};

// One client: reads its requests, one after the other, and writes their answers.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServer::Impl> server, tcp::socket socket)
      : server_(std::move(server)),
        socket_(std::move(socket)),
        read_timer_(server_->io),
        write_timer_(server_->io) {}

  void start();

  HttpServer::Impl& server() { return *server_; }
  bool answers(std::uint64_t exchange) const { return busy_ && exchange == exchange_ && !closed_; }

  void reply(HttpResponse response);
  void start_stream(HttpResponse response);
  void write(const std::string& bytes);
  void finish();

  void on_disconnect(std::function<void()> callback) { disconnect_ = std::move(callback); }

  void abandoned();  // the handler let go of its writer without an answer

  void close();
  void close_when_idle();
  // Whether it waits for a request of which nothing has come, and may end for somebody else.
  bool may_go(std::chrono::steady_clock::time_point now) const;
  std::chrono::steady_clock::time_point idle_since() const { return idle_since_; }

 private:
  std::string head(const HttpResponse& response);
  void next_request();
  void read();
  void on_read(error_code error, std::size_t n);
  void parse();
  void handle();
  void refuse(HttpResponse response);
  void complete();
  void send(std::string bytes);
  void write_some();
  void on_write(error_code error, std::size_t n);
  void linger();
  void arm(std::chrono::milliseconds timeout);
  void on_read_timeout();

  const std::shared_ptr<HttpServer::Impl> server_;
  tcp::socket socket_;
  asio::steady_timer read_timer_;
  asio::steady_timer write_timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  bool started_ = false;  // bytes of this request have arrived
  std::chrono::steady_clock::time_point idle_since_;
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

}  // namespace dormouse::server
