// Which blocks have files, asked of the file system on a thread of its own: the engine never waits
// for it. While the file system does not answer, nothing has a file.
//
// Threads: one asks, the engine's. The destructor does not wait for an answer that never comes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dormouse/request.h"

namespace dormouse {

class DiskLookup {
 public:
  using Keys = std::unordered_set<std::string>;
  using Exists = std::function<bool(const std::string& key)>;

  DiskLookup(Exists exists, std::chrono::steady_clock::duration timeout);
  ~DiskLookup();
  DiskLookup(const DiskLookup&) = delete;
  DiskLookup& operator=(const DiskLookup&) = delete;

  // Of `keys`, in order, those that exist before the first that does not. Nothing: not known yet,
  // ask again. The answer for a request stays the same until it is forgotten.
  std::optional<Keys> find(RequestId request, std::vector<std::string> keys);
  void forget(RequestId request) { queries_.erase(request); }

  // Questions that were not answered in time, or not even asked.
  std::uint64_t timeouts() const { return timeouts_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Query {
    std::vector<std::string> keys;
    Clock::time_point deadline;
    bool done = false;
    Keys found;
  };
  // What the thread needs, also after its owner has gone.
  struct Shared {
    Exists exists;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<Query>> queue;
    std::optional<Clock::time_point> overdue_at;  // of the query that is being answered
    bool stopping = false;
  };
  static void answer(const std::shared_ptr<Shared>& shared, Clock::duration timeout);

  const Clock::duration timeout_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::unordered_map<RequestId, std::shared_ptr<Query>> queries_;
  std::uint64_t timeouts_ = 0;
};

}  // namespace dormouse
