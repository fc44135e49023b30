// Device memory by tag, that can be given back and taken again at the same addresses.
//
// sleep and discard unmap; wake_up maps new physical blocks at the old addresses. Each is
// *prepare*, which may fail and then leaves everything as it was, and *commit*, which may not: a
// block that the driver refuses to unmap or release is recorded as leaked and tried again by the
// next transition.
//
// Owns:    address ranges, blocks and host backups, through the TaggedMemory handles it gives out.
// Threads: every call from one thread; usage() from any.
// Order:   in sleep: preflight, backups, before_unmap of every tag concerned, then the first unmap.
//          in wake_up: map everything, copy everything in, then after_map of every tag wholly
//          mapped.
// Errors:  kInvalidArgument (unknown tag), kResourceExhausted (host memory for a backup, device
//          memory for a wake-up), kCancelled, kDataLoss (a content source gave other bytes), or
//          the listener's.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/copier.h"
#include "device/vmm_driver.h"
#include "dormouse/memory.h"

namespace dormouse {

class TaggedAllocator;

// Owns one allocation. The address stays the same for life; the memory behind it comes and goes.
class TaggedMemory {
 public:
  TaggedMemory() = default;
  TaggedMemory(TaggedMemory&& other) noexcept;
  TaggedMemory& operator=(TaggedMemory&& other) noexcept;
  ~TaggedMemory();

  std::byte* data() const { return address_; }
  std::size_t size() const { return size_; }  // as asked for, not rounded up
  std::span<std::byte> bytes() const { return {address_, size_}; }

 private:
  friend class TaggedAllocator;
  TaggedMemory(TaggedAllocator* allocator, std::uint64_t id, std::byte* address, std::size_t size)
      : allocator_(allocator), id_(id), address_(address), size_(size) {}

  TaggedAllocator* allocator_ = nullptr;
  std::uint64_t id_ = 0;
  std::byte* address_ = nullptr;
  std::size_t size_ = 0;
};

// Calls a listener for as long as this object lives. Must outlive neither the allocator nor the
// listener.
class MappingSubscription {
 public:
  MappingSubscription() = default;
  MappingSubscription(MappingSubscription&& other) noexcept;
  MappingSubscription& operator=(MappingSubscription&& other) noexcept;
  ~MappingSubscription();

 private:
  friend class TaggedAllocator;
  MappingSubscription(TaggedAllocator* allocator, std::uint64_t id)
      : allocator_(allocator), id_(id) {}

  TaggedAllocator* allocator_ = nullptr;
  std::uint64_t id_ = 0;
};

// Makes the memory of a read-only tag writable while it lives; then it is read-only again and
// whatever was backed up before is gone, so that an old copy can never come back.
class WriteLease {
 public:
  WriteLease(WriteLease&& other) noexcept;
  WriteLease& operator=(WriteLease&&) = delete;
  ~WriteLease();

 private:
  friend class TaggedAllocator;
  WriteLease(TaggedAllocator* allocator, MemoryTag tag)
      : allocator_(allocator), tag_(std::move(tag)) {}

  TaggedAllocator* allocator_;
  MemoryTag tag_;
};

// Brings the bytes of a tag back from where they came from, instead of a backup. Called by wake_up
// with the memory mapped and writable; the allocator compares the hash with that of the sealed
// bytes.
using ContentSource = std::function<Status()>;

class TaggedAllocator {
 public:
  struct Options {
    std::size_t block_bytes = std::size_t{64} << 20;
    std::uint64_t host_memory_limit = 0;  // of all backups together; 0: what is available
    bool retain_backups = true;           // false: drop_used_backups() frees them after a wake-up
    std::function<Result<std::uint64_t>()> available_host_memory = {};
  };

  TaggedAllocator(VmmDriver& driver, Copier& copier, Options options);
  ~TaggedAllocator();  // every handle must be gone
  TaggedAllocator(const TaggedAllocator&) = delete;
  TaggedAllocator& operator=(const TaggedAllocator&) = delete;

  Result<TaggedMemory> allocate(const MemoryTag& tag, std::size_t size);

  // Makes a tag read-only. With a content source its bytes are hashed and never backed up.
  Status seal(const MemoryTag& tag, ContentSource source = nullptr);
  Result<WriteLease> lease_for_writing(const MemoryTag& tag);

  [[nodiscard]] MappingSubscription subscribe(const MemoryTag& tag, MappingListener& listener);

  // What sleep would refuse for: unknown tags, too little host memory. Changes nothing.
  Status check_sleep(const std::vector<MemoryTag>& offload) const;

  // Unmaps every tag; those in `offload` are backed up first (unless a valid backup is retained),
  // the others lose their contents and any backup.
  Result<MemoryReceipt> sleep(const std::vector<MemoryTag>& offload,
                              const TransitionControl& control = {});
  // Unmaps these tags without a backup.
  Result<MemoryReceipt> discard(const std::vector<MemoryTag>& tags,
                                const TransitionControl& control = {});
  // Maps these tags, or all, and whichever other tag is neither `weights` nor `kv_cache`. Skips
  // what is mapped. Fails as a whole and rolls its own mapping back, but for a failing after_map:
  // then the memory is mapped, all_restored() is false and the next wake_up tries again.
  Result<MemoryReceipt> wake_up(const std::optional<std::vector<MemoryTag>>& tags,
                                const TransitionControl& control = {});
  // Once every rank has woken: frees the backups of mapped tags if they are not to be retained.
  void drop_used_backups();

  MemoryUsage usage() const;
  std::vector<MemoryTag> tags() const;
  bool is_mapped(const MemoryTag& tag) const;  // wholly; false for an unknown tag
  bool all_restored() const;                   // no listener waits for an after_map that failed
  // The blocks behind an allocation, in order of address; empty while asleep.
  std::vector<BlockHandle> blocks_of(const TaggedMemory& memory) const;

  struct Impl;  // see allocator_state.h

 private:
  friend class TaggedMemory;
  friend class MappingSubscription;
  friend class WriteLease;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dormouse
