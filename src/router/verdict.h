// What becomes of a request, by what a leg brought: the table in docs/router.md, as one function.
//
// Threads: any; pure.
#pragma once

#include <optional>
#include <string>

#include "dormouse/result.h"
#include "router/instance_pool.h"
#include "server/http.h"

namespace dormouse::router {

// What is known of a leg once its call has ended.
struct LegAnswer {
  Status transport;                            // how the call ended
  server::HttpResponse response{.status = 0};  // 0: no head arrived; a stream's body is not kept
  bool with_params = false;                    // it was sent kv_transfer_params
  bool is_stream = false;                      // it answers in events
  bool forwarded = false;                      // of which the client has some
  bool complete = false;                       // and the last has come
};

enum class Action {
  kDecode,          // the prefill leg has kept its KV: send the decode leg
  kReply,           // the answer is the client's, as it is
  kReplyError,      // the client gets `error`
  kEndStream,       // the client has all events
  kBreakOff,        // the client has some events: `error` is the last
  kTryNext,         // another instance shall serve
  kComputeLocally,  // this one, without kv_transfer_params
};

struct Verdict {
  Action action = Action::kReply;
  bool failed = false;                                // the instance did not serve,
  std::optional<InstanceState> state = std::nullopt;  // and is so now; nothing: as before
  bool misconfigured = false;                         // it refuses what the router is there to send
  std::string cause = {};                             // of any of these
  int error = 0;
  std::string message = {};
};

Verdict judge(Role role, const LegAnswer& answer);

}  // namespace dormouse::router
