// The host as a device: a block is a memfd, a reservation is a PROT_NONE range, and mapping is
// mmap(MAP_FIXED).
//
// Unmapping and releasing really frees the pages; a new block brings different pages to the same
// address; and a second mapping of an old block goes on showing the old bytes, as a stale
// registration does on a GPU. An exported block is sealed, so that no peer can write to it, and
// none can shrink it under the reads of another. Blocks are filled with fallocate, so that lack of
// memory is an error here and not a SIGBUS later.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "device/vmm_driver.h"

namespace dormouse {

class HostVmmDriver final : public VmmDriver {
 public:
  // `capacity`: bytes of blocks that may exist at a time; 0: what the machine has available.
  explicit HostVmmDriver(std::uint64_t capacity = 0);

  std::size_t granularity() const override;
  Result<std::byte*> reserve(std::size_t size) override;
  Status free_reservation(std::byte* address, std::size_t size) override;
  Result<BlockHandle> create(std::size_t size) override;
  Status release(BlockHandle block) override;
  Result<std::size_t> block_size(BlockHandle block) const override;
  Status map(std::byte* address, std::size_t size, BlockHandle block) override;
  Status set_access(std::byte* address, std::size_t size, Access access) override;
  Status unmap(std::byte* address, std::size_t size) override;
  Result<UniqueFd> export_block(BlockHandle block) override;
  Result<BlockHandle> import_block(UniqueFd descriptor, std::size_t size) override;
  Result<BytesHeldBy> holding(std::span<const BlockHandle> blocks) const override;
  Result<std::uint64_t> device_bytes_in_use() const override;

 private:
  struct Block {
    UniqueFd fd;
    std::size_t size = 0;
    bool imported = false;
  };
  // The descriptor stays this driver's.
  struct KnownBlock {
    int fd = -1;
    std::size_t size = 0;
  };
  Result<KnownBlock> find(BlockHandle block) const;
  BlockHandle keep(Block block);
  Status check_room(std::size_t size);

  const std::uint64_t capacity_;
  mutable std::mutex mutex_;
  std::uint64_t last_id_ = 0;
  std::uint64_t created_bytes_ = 0;
  std::unordered_map<std::uint64_t, Block> blocks_;
};

}  // namespace dormouse
