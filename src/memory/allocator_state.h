// What the allocator knows of each allocation and listener, and the steps its transitions are made
// of. Private to src/memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <list>

#include "base/hash.h"
#include "memory/host_backup.h"
#include "memory/tagged_allocator.h"

namespace dormouse {

struct Allocation {
  struct Piece {
    std::byte* address = nullptr;
    std::size_t size = 0;
    std::optional<BlockHandle> block;  // set: memory is held for this piece
    bool joined = false;               // that block is mapped at the address
  };

  std::uint64_t id = 0;
  MemoryTag tag;
  std::byte* address = nullptr;
  std::size_t size = 0;
  std::size_t reserved = 0;
  std::vector<Piece> pieces;
  bool mapped = false;
  std::unique_ptr<HostBackup> backup;
  bool has_content = false;  // asleep: a wake-up must bring the bytes back
  Hash128 hash;              // of sealed bytes with a content source
};

struct Listener {
  std::uint64_t id = 0;
  MemoryTag tag;
  MappingListener* listener = nullptr;
  bool restored = true;
};

struct TagState {
  bool read_only = false;
  ContentSource source;
  std::uint64_t generation = 0;
};

// Times the phases of one transition and builds its receipt.
class PhaseClock {
 public:
  explicit PhaseClock(MemoryReceipt& receipt) : receipt_(receipt) {}
  void done(std::string phase) {
    const auto now = std::chrono::steady_clock::now();
    receipt_.phases_ms.emplace_back(std::move(phase),
                                    std::chrono::duration<double, std::milli>(now - last_).count());
    last_ = now;
  }

 private:
  MemoryReceipt& receipt_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

struct TaggedAllocator::Impl {
  Impl(VmmDriver& driver_, Copier& copier_, Options options_)
      : driver(driver_), copier(copier_), options(std::move(options_)) {}

  VmmDriver& driver;
  Copier& copier;
  Options options;
  std::uint64_t last_id = 0;
  std::list<Allocation> allocations;
  std::list<Listener> listeners;
  std::map<MemoryTag, TagState> tag_states;

  mutable std::mutex usage_mutex;
  MemoryUsage usage;
  void publish_usage();

  using Selection = std::vector<Allocation*>;

  // pieces.cc: one allocation at a time
  Status map_pieces(Allocation& allocation);
  // Gives back what it can; what the driver refuses stays with the allocation as leaked.
  void unmap_pieces(Allocation& allocation);
  Status set_access(Allocation& allocation, Access access);
  std::uint64_t held_bytes(const Allocation& allocation) const;

  // sleep.cc
  Result<MemoryReceipt> give_back(const std::vector<MemoryTag>& tags,
                                  const std::vector<MemoryTag>& offload,
                                  const TransitionControl& control);
  bool needs_copy(const Allocation& allocation) const;
  Status preflight(const Selection& to_copy) const;
  Status back_up(const Selection& to_copy, const TransitionControl& control);
  Status release_listeners(const std::vector<MemoryTag>& tags, Unmapping& unmapping);
  Status restore_after_failure(std::vector<Listener*> released);
  void unmap_all(const Selection& chosen, const std::vector<MemoryTag>& offload,
                 MemoryReceipt& receipt);

  // wake_up.cc
  Result<MemoryReceipt> take_again(const std::optional<std::vector<MemoryTag>>& tags,
                                   const TransitionControl& control);
  Status map_all(const Selection& chosen);
  Status bring_content(const Selection& chosen, const TransitionControl& control,
                       MemoryReceipt& receipt);
  Status refill_from_sources(const Selection& chosen);
  Status set_final_access(const Selection& chosen);
  void commit_mapping(const Selection& chosen, MemoryReceipt& receipt);
  Status restore_listeners();
  bool wholly_mapped(const MemoryTag& tag) const;
  Status check_known(const std::vector<MemoryTag>& tags) const;
  std::vector<MemoryTag> known_tags() const;
  void retry_leaked();
};

inline bool contains(const std::vector<MemoryTag>& tags, const MemoryTag& tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

}  // namespace dormouse
