// Asks every instance for its health, again and again, and tells the pool.
//
// Threads: one for each instance, so that one that hangs delays no other. The destructor joins.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "router/cancellation.h"
#include "router/instance_pool.h"

namespace dormouse::router {

class HealthPoller {
 public:
  // One that is not ready is asked more often than every `interval`: what wakes is used soon.
  HealthPoller(InstancePool& pool, std::string backend_api_key, std::chrono::milliseconds interval);
  ~HealthPoller();

  // Asks all instances of this role now, and waits until one is ready or all have been asked. Calls
  // at the same time share one question.
  bool finds_ready(Role role);

 private:
  struct Look {
    bool wanted = false;      // now, not after the interval
    std::uint64_t ended = 0;  // how many have
    Cancellation call;
  };
  void run(std::size_t index);

  InstancePool& pool_;
  const std::string backend_api_key_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;  // anything below
  bool stopped_ = false;
  std::vector<Look> looks_;  // one for each instance
  std::vector<std::thread> threads_;
};

}  // namespace dormouse::router
