#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/check.h"

namespace dormouse {
namespace {

constexpr int kSpins = 1000;  // about 10-40 microseconds

// Returns once `value` is no longer `old`.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (value.load(std::memory_order_acquire) != old)
      return;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(unsigned threads) : size_(threads) {
  DM_CHECK(threads >= 1, "a pool has at least its caller");
  threads_.reserve(threads - 1);
  for (unsigned index = 1; index < threads; ++index)
    threads_.emplace_back([this, index] { work(index); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& thread : threads_)
    thread.join();
}

void ThreadPool::start(Entry entry, void* context) {
  entry_ = entry;
  context_ = context;
  unfinished_.store(size_ - 1, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  Team team(*this, 0);
  entry(context, team);
  for (std::uint32_t left; (left = unfinished_.load(std::memory_order_acquire)) != 0;)
    wait_for_change(unfinished_, left);
}

void ThreadPool::work(unsigned index) {
  for (std::uint32_t seen = 0;;) {
    wait_for_change(job_, seen);
    ++seen;
    if (stopping_)
      return;
    Team team(*this, index);
    entry_(context_, team);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      unfinished_.notify_one();
  }
}

void ThreadPool::sync() {
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    wait_for_change(phase_, phase);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  next_task_.store(0, std::memory_order_relaxed);
  phase_.fetch_add(1, std::memory_order_release);
  phase_.notify_all();
}

}  // namespace dormouse
