// Asks one instance how it is.
//
// Threads: any; each call blocks for two seconds at most, or until `cancellation` ends it, once the
//          name of the host is looked up.
#pragma once

#include <optional>
#include <string>

#include "router/cancellation.h"
#include "router/instance_pool.h"

namespace dormouse::router {

struct Health {
  InstanceState state = InstanceState::kGone;
  std::string cause = {};  // of a state that is not ready
};
Health ask_health(const server::Address& address, const std::string& api_key,
                  Cancellation& cancellation);

// Whether it has a KV connector; nothing if it does not say.
std::optional<bool> ask_connector(const server::Address& address, const std::string& api_key,
                                  Cancellation& cancellation);

}  // namespace dormouse::router
