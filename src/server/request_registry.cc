#include "server/request_registry.h"

#include "server/generation.h"

namespace dormouse::server {

void RequestRegistry::add(const std::string& id, std::weak_ptr<Generation> generation) {
  const std::shared_ptr<Generation> shared = generation.lock();
  const std::lock_guard lock(mutex_);
  entries_.emplace(id, Entry{shared.get(), std::move(generation)});
}

void RequestRegistry::remove(const std::string& id, const Generation* generation) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = entries_.equal_range(id);
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second.key == generation) {
      entries_.erase(entry);
      return;
    }
  }
}

std::vector<std::shared_ptr<Generation>> RequestRegistry::find(
    const std::vector<std::string>& ids) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Generation>> found;
  for (const std::string& id : ids) {
    const auto [first, last] = entries_.equal_range(id);
    for (auto entry = first; entry != last; ++entry) {
      if (auto generation = entry->second.generation.lock())
        found.push_back(std::move(generation));
    }
  }
  return found;
}

std::size_t RequestRegistry::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace dormouse::server
