// Copies spans of a peer's memory by several threads, a stretch at a time.
//
// Owns:    its threads, which block while nothing is copied.
// Threads: any; of calls at the same time one has the threads, and the others copy on their own.
#pragma once

#include <mutex>
#include <span>

#include "base/thread_pool.h"
#include "transfer/transfer_agent.h"

namespace dormouse {

class SpanCopier {
 public:
  explicit SpanCopier(unsigned threads) : pool_(threads == 0 ? 1 : threads) {}

  // Every span lies within the memory at `remote`. kCancelled, kDeadlineExceeded: between
  // stretches.
  Status copy(const std::byte* remote, std::span<const ReadSpan> spans, const ReadControl& control);

 private:
  std::mutex busy_;
  ThreadPool pool_;
};

}  // namespace dormouse
