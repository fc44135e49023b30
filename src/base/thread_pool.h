// A fixed set of threads for one computation at a time.
//
// Threads: one caller at a time; the caller works as thread 0. Bodies and tasks must not throw and
//          must not call the pool back.
// Cost:    starting a job allocates nothing. A thread that waits spins for some microseconds and
//          then blocks in the kernel, so an idle pool uses no processor time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace dormouse {

class ThreadPool;

// One thread's view of the job that runs. Every thread must make the same calls in the same order.
class Team {
 public:
  unsigned index() const { return index_; }
  unsigned size() const;

  // Runs task(i) once for each i below `count`, on whichever thread is free; returns when all are
  // done, and their writes are visible to every thread.
  template <class Task>
  void share(std::size_t count, Task&& task);

 private:
  friend class ThreadPool;
  Team(ThreadPool& pool, unsigned index) : pool_(pool), index_(index) {}

  ThreadPool& pool_;
  unsigned index_;
};

class ThreadPool {
 public:
  // `threads` counts the caller: 1 runs everything on it.
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned size() const { return size_; }

  // Runs body(Team&) on every thread and returns when all have finished.
  template <class Body>
  void run(Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    start([](void* context, Team& team) { (*static_cast<Plain*>(context))(team); }, &body);
  }

  // Runs task(i) once for each i below `count`.
  template <class Task>
  void parallel_for(std::size_t count, Task&& task) {
    run([&](Team& team) { team.share(count, task); });
  }

 private:
  friend class Team;
  using Entry = void (*)(void* context, Team& team);

  void start(Entry entry, void* context);
  void work(unsigned index);
  void sync();

  const unsigned size_;
  Entry entry_ = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<std::uint32_t> job_{0};         // grows with each job
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};  // threads still in the job
  alignas(64) std::atomic<std::size_t> next_task_{0};
  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};  // grows with each barrier
  std::vector<std::thread> threads_;
};

inline unsigned Team::size() const {
  return pool_.size();
}

template <class Task>
void Team::share(std::size_t count, Task&& task) {
  if (pool_.size() == 1) {
    for (std::size_t i = 0; i < count; ++i)
      task(i);
    return;
  }
  for (;;) {
    const std::size_t i = pool_.next_task_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count)
      break;
    task(i);
  }
  pool_.sync();
}

}  // namespace dormouse
