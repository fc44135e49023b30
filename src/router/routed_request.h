// One request of a client: a prefill leg, a decode leg, and what to do when one of them fails.
//
// What follows from a leg's answer is judged by verdict.h.
//
// Threads: `run` blocks the calling thread until the client has its answer or has left.
// Owns:    the answer; the backends must outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "router/cancellation.h"
#include "router/health_poller.h"
#include "router/instance_pool.h"
#include "router/verdict.h"
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
  HealthPoller& poller;
  Totals& totals;
  std::string api_key;
  std::chrono::milliseconds prefill_timeout;  // as a leg's
  std::chrono::milliseconds decode_timeout;
};

class RoutedRequest {
 public:
  RoutedRequest(const Backends& backends, server::HttpRequest request,
                std::shared_ptr<server::ResponseWriter> writer, Cancellation& cancellation);
  void run();

 private:
  // kAnswered: the client has its answer, or has left.
  enum class Outcome { kAnswered, kTryNext };

  // kTryNext: on to the decode leg; `params` stays null if no instance kept KV.
  Outcome prefill(const Json& request, Json& params);
  // `body`: of the leg with kv_transfer_params; none: the client's own is sent.
  void decode(const std::optional<std::string>& body);
  Outcome decode_on(InstancePool::Turn& turn, const std::optional<std::string>& body);
  // The transport alone: events go to the client as they arrive, everything else into the answer.
  LegAnswer send(Role role, const InstancePool::Turn& turn, const std::string& body);
  void reply_no_decode_instance();

  const Backends& backends_;
  const server::HttpRequest request_;
  const std::shared_ptr<server::ResponseWriter> writer_;
  Cancellation& cancellation_;
  const std::string id_;
  std::vector<std::size_t> keepers_;  // decode instances that are the one whose KV was kept
};

}  // namespace dormouse::router
