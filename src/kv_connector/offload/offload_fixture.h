// An engine of one rank with the OffloadingConnector, whose copies a test can hold up.
#pragma once

#include <condition_variable>
#include <cstring>
#include <mutex>

#include "kv_connector/connector_fixture.h"
#include "kv_connector/offload/offload_scheduler.h"
#include "kv_connector/offload/offload_worker.h"

namespace dormouse {

// Lets pass as long as it is open.
class CopyGate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void copy(std::span<std::byte> to, std::span<const std::byte> from) {
    pass();
    std::memcpy(to.data(), from.data(), to.size());
    const std::lock_guard lock(mutex_);
    last_to_ = to;
    ++copied_;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Until so many copies have begun since the start.
  void wait_for(int arrived) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= arrived; });
  }
  int copied() {
    const std::lock_guard lock(mutex_);
    return copied_;
  }
  std::span<std::byte> last_to() {
    const std::lock_guard lock(mutex_);
    return last_to_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int arrived_ = 0;
  int copied_ = 0;
  std::span<std::byte> last_to_;
};

// Closed, the file system does not answer.
struct FileGate {
  CopyGate files;
};

struct OffloadEngine : CopyGate, FileGate, OneRankEngine {
  explicit OffloadEngine(const KvConnectorContext& context)
      : OneRankEngine(
            context, *OffloadScheduler::create(context),
            *OffloadWorker::create(context, {.copy = [this](auto to, auto from) { copy(to, from); },
                                             .before_file = [this] { files.pass(); }})) {}
  ~OffloadEngine() { files.open(); }

  // As a sleep and a wake-up do it, with other bytes behind the addresses.
  void sleep_and_wake() {
    Unmapping unmapping;
    EXPECT_TRUE(follower().release_kv_caches(unmapping));
    scheduler->set_xfer_handshake_metadata({});
    std::memset(cache.data(), 0x5A, cache.size());
    ++generation;
    EXPECT_TRUE(follower().restore_kv_caches(caches()));
    publish();
  }
};

}  // namespace dormouse
