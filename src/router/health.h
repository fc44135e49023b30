// Asks one instance how it is.
//
// Threads: any; each call blocks for two seconds at most, or until `cancellation` ends it.
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

// What its configuration lacks for transfers; empty: nothing. Nothing at all if it does not say.
std::optional<std::string> ask_configuration(const server::Address& address,
                                             const std::string& api_key,
                                             Cancellation& cancellation);

}  // namespace dormouse::router
