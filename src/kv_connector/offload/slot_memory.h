// The host tier's bytes on one rank: ordinary memory, taken page by page as slots are first used.
// It is under no tag, so a sleep leaves it alone.
//
// Owns:    one address range. Threads: any, on different slots.
// Errors:  kResourceExhausted when there are no addresses.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "dormouse/result.h"

namespace dormouse {

class SlotMemory {
 public:
  static Result<SlotMemory> create(std::size_t num_slots, std::size_t slot_bytes) {
    void* const address = ::mmap(nullptr, num_slots * slot_bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
      return fail(ErrorCode::kResourceExhausted,
                  std::string("no addresses for the host tier of KV blocks: ") +
                      std::strerror(errno) + ". Make cpu_bytes_to_use smaller.",
                  "cpu_bytes_to_use");
    return SlotMemory(static_cast<std::byte*>(address), num_slots, slot_bytes);
  }
  SlotMemory(SlotMemory&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)),
        num_slots_(other.num_slots_),
        slot_bytes_(other.slot_bytes_) {}
  SlotMemory& operator=(SlotMemory&&) = delete;
  ~SlotMemory() {
    if (address_ != nullptr)
      ::munmap(address_, num_slots_ * slot_bytes_);
  }

  std::size_t num_slots() const { return num_slots_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::span<std::byte> slot(std::size_t index) const {
    return {address_ + index * slot_bytes_, slot_bytes_};
  }

 private:
  SlotMemory(std::byte* address, std::size_t num_slots, std::size_t slot_bytes)
      : address_(address), num_slots_(num_slots), slot_bytes_(slot_bytes) {}

  std::byte* address_;
  std::size_t num_slots_;
  std::size_t slot_bytes_;
};

}  // namespace dormouse
