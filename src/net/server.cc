#include "net/server.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "base/secret.h"
#include "net/framing.h"
#include "net/listener.h"
#include "net/unix_address.h"

namespace dormouse::net {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxUnsent = std::size_t{32} << 20;
constexpr std::chrono::seconds kTokenPatience{5};

struct Connection {
  UniqueFd socket;
  PeerCredentials peer;
  Clock::time_point since = Clock::now();
  FrameReader reader = {};
  bool trusted = false;  // it presented the token
  // Under the lock:
  FrameWriter writer = {};
  bool closing = false;
};

}  // namespace

class Server::Impl {
 public:
  Impl(Options options, Handler& handler, Listener listener, UniqueFd wake)
      : options_(std::move(options)),
        handler_(handler),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        thread_([this] { run(); }) {}

  ~Impl() {
    stopping_ = true;
    wake();
    thread_.join();
  }

  bool send(ConnectionId id, Message message);
  void close(ConnectionId id);

 private:
  void run();
  void serve_once();
  void accept();
  void read(ConnectionId id, Connection& connection);
  void flush(Connection& connection);
  void end(ConnectionId id);
  void end_what_is_over();
  void tick_if_due();
  void wake() { (void)::eventfd_write(wake_.get(), 1); }

  const Options options_;
  Handler& handler_;
  Listener listener_;
  UniqueFd wake_;
  std::atomic<bool> stopping_ = false;
  Clock::time_point next_tick_ = Clock::now() + options_.tick;
  bool accepting_ = true;  // false until the next tick after there was no descriptor left
  ConnectionId last_id_ = 0;

  std::mutex mutex_;  // for what is in a connection's last part, and for the map's shape
  std::map<ConnectionId, Connection> connections_;

  std::thread thread_;
};

bool Server::Impl::send(ConnectionId id, Message message) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.closing)
    return false;
  Connection& connection = found->second;
  const Status queued = connection.writer.push(std::move(message));
  if (!queued)
    log(LogLevel::kError, "net", "unsendable connection={} error={}", id, queued.error().message);
  connection.closing = !queued;
  flush(connection);
  wake();
  return !connection.closing;
}

void Server::Impl::close(ConnectionId id) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end())
    return;
  found->second.closing = true;
  wake();
}

// Under the lock.
void Server::Impl::flush(Connection& connection) {
  if (!connection.closing && !connection.writer.write(connection.socket.get()))
    connection.closing = true;
  if (connection.writer.unsent() > kMaxUnsent)
    connection.closing = true;
}

void Server::Impl::run() {
  while (!stopping_) {
    serve_once();
    tick_if_due();
    end_what_is_over();
  }
  while (!connections_.empty())
    end(connections_.begin()->first);
}

// Waits for something to happen, or for the next tick, and does one step for every socket.
void Server::Impl::serve_once() {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0},
                              {accepting_ ? listener_.fd() : -1, POLLIN, 0}};
  std::vector<ConnectionId> ids{0, 0};
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, connection] : connections_) {
      const bool waiting = connection.writer.unsent() > 0;
      entries.push_back(
          {connection.socket.get(), static_cast<short>(waiting ? POLLIN | POLLOUT : POLLIN), 0});
      ids.push_back(id);
    }
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick_ - Clock::now());
  if (::poll(entries.data(), entries.size(), static_cast<int>(std::max<long>(left.count(), 0))) <=
      0)
    return;
  eventfd_t count = 0;
  if (entries[0].revents != 0)
    (void)::eventfd_read(wake_.get(), &count);
  for (std::size_t i = 2; i < entries.size(); ++i) {
    Connection& connection = connections_.at(ids[i]);
    if ((entries[i].revents & POLLOUT) != 0) {
      const std::lock_guard lock(mutex_);
      flush(connection);
    }
    if ((entries[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
      read(ids[i], connection);
  }
  if (entries[1].revents != 0)
    accept();
}

void Server::Impl::accept() {
  UniqueFd socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    accepting_ = errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    return;
  }
  const auto peer = peer_of(socket.get());
  if (!peer || peer->uid != ::geteuid() || connections_.size() >= options_.max_connections) {
    log(LogLevel::kWarning, "net", "refused socket={} pid={}", options_.path, peer ? peer->pid : 0);
    return;
  }
  const std::lock_guard lock(mutex_);
  connections_.emplace(++last_id_, Connection{std::move(socket), *peer});
}

void Server::Impl::read(ConnectionId id, Connection& connection) {
  auto message = connection.trusted
                     ? connection.reader.read(connection.socket.get())
                     : connection.reader.read(connection.socket.get(), options_.token.size(), 0);
  if (message && !*message)
    return;
  if (message && !connection.trusted && same_secret((*message)->bytes, options_.token)) {
    connection.trusted = true;
    handler_.opened(id, connection.peer);
    return;
  }
  bool closing = !message || !connection.trusted;
  {
    const std::lock_guard lock(mutex_);
    closing = connection.closing = connection.closing || closing;
  }
  if (!closing)
    handler_.received(id, **std::move(message));
}

void Server::Impl::end(ConnectionId id) {
  const bool told = connections_.at(id).trusted;
  {
    const std::lock_guard lock(mutex_);
    connections_.erase(id);
  }
  if (told)
    handler_.closed(id);
}

void Server::Impl::end_what_is_over() {
  std::vector<ConnectionId> over;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, connection] : connections_)
      if (connection.closing ||
          (!connection.trusted && Clock::now() > connection.since + kTokenPatience))
        over.push_back(id);
  }
  for (const ConnectionId id : over)
    end(id);
}

void Server::Impl::tick_if_due() {
  if (Clock::now() < next_tick_)
    return;
  accepting_ = true;
  handler_.tick();
  next_tick_ = Clock::now() + options_.tick;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(Options options, Handler& handler) {
  DM_CHECK(!options.token.empty(), "a server without a token would take everybody");
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake)
    return fail(ErrorCode::kInternal, fmt::format("eventfd: {}", std::strerror(errno)));
  DM_TRY_ASSIGN(Listener listener, Listener::open(options.path));
  return std::unique_ptr<Server>(new Server(
      std::make_unique<Impl>(std::move(options), handler, std::move(listener), std::move(wake))));
}

bool Server::send(ConnectionId connection, Message message) {
  return impl_->send(connection, std::move(message));
}

void Server::close(ConnectionId connection) {
  impl_->close(connection);
}

Result<Channel> connect_with_token(const std::string& path, const std::string& token,
                                   Deadline deadline) {
  DM_TRY_ASSIGN(Channel channel, Channel::connect(path, deadline));
  DM_TRY(channel.send({token}, deadline));
  return channel;
}

}  // namespace dormouse::net
