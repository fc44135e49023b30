#include "server/http_server.h"

#include <fmt/core.h>

#include "base/check.h"
#include "server/http_connection.h"

namespace dormouse::server {
namespace {

constexpr std::chrono::milliseconds kAcceptPause{100};

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
  if (!error)
    acceptor.non_blocking(true, error);
  if (error)
    return fail(ErrorCode::kUnavailable,
                fmt::format("cannot listen on {} port {}: {}. Choose another --port, or 0 for any",
                            endpoint.address().to_string(), options.port, error.message()),
                "port");
  port = acceptor.local_endpoint(error).port();
  return {};
}

// Whoever has asked for nothing for longest goes, so that idle ones keep nobody out.
bool HttpServer::Impl::make_room() {
  const auto now = std::chrono::steady_clock::now();
  std::shared_ptr<Connection> idlest;
  for (const auto& connection : connections)
    if (connection->may_go(now) && (!idlest || connection->idle_since() < idlest->idle_since()))
      idlest = connection;
  if (idlest)
    idlest->close();
  return idlest != nullptr;
}

void HttpServer::Impl::accept() {
  acceptor.async_wait(tcp::acceptor::wait_read, [this](error_code error) {
    if (!error && !stopping)
      admit();
  });
}

void HttpServer::Impl::admit() {
  if (connections.size() >= options.max_connections && !make_room())
    return pause_accepting();
  error_code error;
  tcp::socket socket = acceptor.accept(error);
  if (error == asio::error::would_block)  // it has left
    return accept();
  if (error)  // out of descriptors, most likely: a pause instead of a busy loop
    return pause_accepting();
  const auto connection = std::make_shared<Connection>(shared_from_this(), std::move(socket));
  connections.insert(connection);
  connection->start();
  accept();
}

// Who comes now waits in the backlog of the socket.
void HttpServer::Impl::pause_accepting() {
  accept_paused = true;
  accept_timer.expires_after(kAcceptPause);
  accept_timer.async_wait([this](error_code cancelled) {
    if (!cancelled)
      resume_accepting();
  });
}

void HttpServer::Impl::resume_accepting() {
  if (stopping || !std::exchange(accept_paused, false))
    return;
  accept_timer.cancel();
  accept();
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
  resume_accepting();
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

void HttpServer::begin_drain() {
  impl_->post([impl = impl_.get()] { impl->draining = true; });
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
