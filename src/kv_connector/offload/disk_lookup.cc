#include "kv_connector/offload/disk_lookup.h"

#include <thread>
#include <utility>

namespace dormouse {

DiskLookup::DiskLookup(Exists exists, std::chrono::steady_clock::duration timeout)
    : timeout_(timeout) {
  shared_->exists = std::move(exists);
  std::thread([shared = shared_, timeout] { answer(shared, timeout); }).detach();
}

DiskLookup::~DiskLookup() {
  const std::lock_guard lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
}

void DiskLookup::answer(const std::shared_ptr<Shared>& shared, Clock::duration timeout) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&] { return shared->stopping || !shared->queue.empty(); });
    if (shared->stopping)
      return;
    const std::shared_ptr<Query> query = std::move(shared->queue.front());
    shared->queue.pop_front();
    if (query.use_count() == 1)
      continue;  // nobody asks any more
    shared->overdue_at = Clock::now() + timeout;
    lock.unlock();
    Keys found;
    for (const std::string& key : query->keys) {
      if (!shared->exists(key))
        break;
      found.insert(key);
    }
    lock.lock();
    shared->overdue_at.reset();
    query->found = std::move(found);
    query->done = true;
  }
}

std::optional<DiskLookup::Keys> DiskLookup::find(RequestId request, std::vector<std::string> keys) {
  const auto now = Clock::now();
  std::shared_ptr<Query>& query = queries_[request];
  const std::lock_guard lock(shared_->mutex);
  if (!query) {
    query = std::make_shared<Query>(Query{.keys = std::move(keys), .deadline = now + timeout_});
    if (shared_->overdue_at && now >= *shared_->overdue_at) {
      query->done = true;
      ++timeouts_;
      return query->found;
    }
    shared_->queue.push_back(query);
    shared_->changed.notify_all();
  }
  if (query->done)
    return query->found;
  if (now < query->deadline)
    return std::nullopt;
  ++timeouts_;
  query = std::make_shared<Query>(Query{.done = true});
  return Keys();
}

}  // namespace dormouse
