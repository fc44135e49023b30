// Listens on a Unix socket and hands every connection's messages to one handler.
//
// The socket's file is readable by its owner alone; a connection of another user is closed before
// a byte of it is read, and one whose first frame is not the token before anything is parsed.
//
// Owns:    the socket, its file (replaced if it is left over, removed at the end), one thread.
// Threads: handler calls come from that thread, one at a time; send and close from any.
// Order:   opened, messages in order, closed; after closed nothing more of that connection.
// Errors:  a connection that breaks the framing, or whose unsent bytes exceed the limit, is closed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "net/channel.h"

namespace dormouse::net {

using ConnectionId = std::uint64_t;  // never reused

class Server {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void opened(ConnectionId /*connection*/, const PeerCredentials& /*peer*/) {}
    virtual void received(ConnectionId connection, Message message) = 0;
    virtual void closed(ConnectionId /*connection*/) {}
    // About every `tick`, and between messages.
    virtual void tick() {}
  };
  struct Options {
    std::string path;
    std::string token;
    std::chrono::milliseconds tick{100};
    std::size_t max_connections = 256;
  };

  // kFailedPrecondition: somebody listens there already. `handler` outlives the server.
  static Result<std::unique_ptr<Server>> start(Options options, Handler& handler);
  ~Server();

  // Never blocks. Descriptors are duplicates and closed once sent. False: no such connection.
  bool send(ConnectionId connection, Message message);
  void close(ConnectionId connection);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Connects and presents the token.
Result<Channel> connect_with_token(const std::string& path, const std::string& token,
                                   Deadline deadline);

}  // namespace dormouse::net
