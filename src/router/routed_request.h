// One request of a client: a prefill leg, a decode leg, and what to do when one of them fails.
//
//   prefill   an instance that fails is replaced by the next that is ready, and after the last one
//             the decode instance computes the prompt itself. A 4xx is the client's answer.
//   decode    an instance that fails before the client got a byte is replaced by the next; after
//             that a stream ends with an error event and [DONE].
//
// Threads: `run` blocks the calling thread until the client has its answer or has left.
// Owns:    the answer; the backends must outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "router/cancellation.h"
#include "router/event_relay.h"
#include "router/instance_pool.h"
#include "server/http.h"

namespace dormouse::router {

struct Totals {
  std::atomic<std::uint64_t> requests = 0;
  std::atomic<std::uint64_t> prefill_legs = 0;
  std::atomic<std::uint64_t> local_computations = 0;  // prompts computed on the decode side
  std::atomic<std::uint64_t> retries = 0;             // legs sent to one more instance
};

struct Backends {
  InstancePool& pool;
  Totals& totals;
  std::string api_key;
  std::chrono::milliseconds prefill_timeout;
  std::chrono::milliseconds decode_timeout;  // without a byte
};

class RoutedRequest {
 public:
  RoutedRequest(const Backends& backends, server::HttpRequest request,
                std::shared_ptr<server::ResponseWriter> writer, Cancellation& cancellation);
  void run();

 private:
  struct DecodeAnswer;

  // False: the client has its answer, or has left. `params` stays null if no instance kept KV.
  bool prefill(const Json& request, Json& params);
  void decode(const std::string& body);
  bool decode_on(InstancePool::Turn& turn, const std::string& body);  // false: try another
  bool end_stream(InstancePool::Turn& turn, const Status& call, bool complete);
  void reply_no_decode_instance();

  const Backends& backends_;
  const server::HttpRequest request_;
  const std::shared_ptr<server::ResponseWriter> writer_;
  Cancellation& cancellation_;
  const std::string id_;
};

}  // namespace dormouse::router
