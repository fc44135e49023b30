// What the host tier holds: which block is in which slot, and which slot goes next. Bookkeeping of
// the scheduler half; the bytes lie with the workers.
//
// A slot is *used* by every copy into or out of it; a used one is never handed out again. A block
// can be found once it is ready.
//
// Threads: one, the engine's.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace dormouse {

class HostTier {
 public:
  explicit HostTier(std::uint32_t num_slots) : num_slots_(num_slots) {}

  // The slot of a block that is ready.
  std::optional<std::uint32_t> find(const std::string& key) const;
  // The slot of a block that is ready or on its way.
  std::optional<std::uint32_t> holds(const std::string& key) const;

  // A slot for a block that is not held yet, not ready and not used: the free one, else that of the
  // block touched longest ago that nobody uses. Nothing: all are used.
  std::optional<std::uint32_t> allocate(const std::string& key);

  void acquire(std::uint32_t slot, std::uint32_t uses = 1);
  void release(std::uint32_t slot, std::uint32_t uses = 1);
  void set_ready(std::uint32_t slot);
  void touch(std::uint32_t slot);
  // The block can no longer be found; the slot is free once nobody uses it.
  void forget(std::uint32_t slot);
  void forget_all();

  std::uint32_t num_blocks() const { return static_cast<std::uint32_t>(index_.size()); }
  std::uint64_t evictions() const { return evictions_; }

 private:
  struct Slot {
    std::string key;  // empty: holds nothing that can be found
    bool ready = false;
    std::uint32_t uses = 0;
    std::list<std::uint32_t>::iterator place = {};  // in order_; valid while the key is set
  };
  std::optional<std::uint32_t> take_free();
  std::optional<std::uint32_t> evict();

  const std::uint32_t num_slots_;
  std::vector<Slot> slots_;  // grows up to num_slots_
  std::vector<std::uint32_t> free_;
  std::list<std::uint32_t> order_;  // touched longest ago first
  std::unordered_map<std::string, std::uint32_t> index_;
  std::uint64_t evictions_ = 0;
};

}  // namespace dormouse
