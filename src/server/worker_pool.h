// A few threads and a bounded queue: where blocking work of the server runs.
//
// Threads: any may submit. The destructor drops what is queued, then joins.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dormouse::server {

class WorkerPool {
 public:
  WorkerPool(std::size_t threads, std::size_t max_queued);
  ~WorkerPool();

  // False: the queue is full, and the task was not taken.
  bool submit(std::function<void()> task);

 private:
  void run();

  const std::size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dormouse::server
