// Answers peers who want to know this engine: the scheduler half's socket.
//
// Owns:    the socket and its thread.
// Threads: any. What is published is replaced as a whole.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kv_connector/pull/messages.h"
#include "net/server.h"

namespace dormouse::pull {

class MetaService final : public net::Server::Handler {
 public:
  static Result<std::unique_ptr<MetaService>> start(std::string path, std::string token);

  // Nothing: peers are told that the engine is unavailable.
  void publish(std::optional<Meta> meta);

  void received(net::ConnectionId connection, net::Message message) override;

 private:
  MetaService() = default;
  net::Server& server();
  std::string answer(std::string_view request) const;

  mutable std::mutex mutex_;
  std::optional<Meta> meta_;
  std::unique_ptr<net::Server> server_;  // last: its thread uses all of the above
};

}  // namespace dormouse::pull
