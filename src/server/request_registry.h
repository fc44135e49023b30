// The requests under way, by the ids that their users know: those of the replies and X-Request-Id.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace dormouse::server {

class Generation;

class RequestRegistry {
 public:
  void add(const std::string& id, std::weak_ptr<Generation> generation);
  void remove(const std::string& id, const Generation* generation);
  // All of these; of a few ids, those that exist. The generations of one id may be many.
  std::vector<std::shared_ptr<Generation>> find(const std::vector<std::string>& ids) const;
  std::size_t size() const;

 private:
  struct Entry {
    const Generation* key;
    std::weak_ptr<Generation> generation;
  };
  mutable std::mutex mutex_;
  std::multimap<std::string, Entry> entries_;
};

}  // namespace dormouse::server
