#include "kv_connector/pull/meta_service.h"

#include "base/check.h"

namespace dormouse::pull {

Result<std::unique_ptr<MetaService>> MetaService::start(std::string path, std::string token) {
  std::unique_ptr<MetaService> service(new MetaService);
  const std::lock_guard lock(service->mutex_);
  DM_TRY_ASSIGN(service->server_,
                net::Server::start({.path = std::move(path), .token = std::move(token)}, *service));
  return service;
}

// The first message may come before the server is in its place.
net::Server& MetaService::server() {
  const std::lock_guard lock(mutex_);
  return *server_;
}

void MetaService::publish(std::optional<Meta> meta) {
  const std::lock_guard lock(mutex_);
  meta_ = std::move(meta);
}

void MetaService::received(net::ConnectionId connection, net::Message message) {
  server().send(connection, {.bytes = answer(message.bytes), .descriptors = {}});
}

std::string MetaService::answer(std::string_view bytes) const {
  const auto request = AnyMessage<GetMeta>::decode(bytes);
  if (!request)
    return encode_message(Malformed{request.error().message});
  const std::lock_guard lock(mutex_);
  if (!meta_)
    return encode_message(Unavailable{"its KV cache is not mapped"}, request->id);
  return encode_message(*meta_, request->id);
}

}  // namespace dormouse::pull
