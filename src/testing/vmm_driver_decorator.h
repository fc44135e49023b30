// Forwards every call to another driver; tests override the one they care about.
#pragma once

#include "device/vmm_driver.h"

namespace dormouse::testing {

struct VmmDriverDecorator : VmmDriver {
  explicit VmmDriverDecorator(VmmDriver& driver) : inner(driver) {}
  VmmDriver& inner;

  std::size_t granularity() const override { return inner.granularity(); }
  Result<std::byte*> reserve(std::size_t size) override { return inner.reserve(size); }
  Status free_reservation(std::byte* address, std::size_t size) override {
    return inner.free_reservation(address, size);
  }
  Result<BlockHandle> create(std::size_t size) override { return inner.create(size); }
  Status release(BlockHandle block) override { return inner.release(block); }
  Result<std::size_t> block_size(BlockHandle block) const override {
    return inner.block_size(block);
  }
  Status map(std::byte* address, std::size_t size, BlockHandle block) override {
    return inner.map(address, size, block);
  }
  Status set_access(std::byte* address, std::size_t size, Access access) override {
    return inner.set_access(address, size, access);
  }
  Status unmap(std::byte* address, std::size_t size) override { return inner.unmap(address, size); }
  Result<UniqueFd> export_block(BlockHandle block) override { return inner.export_block(block); }
  Result<BlockHandle> import_block(UniqueFd descriptor, std::size_t size) override {
    return inner.import_block(std::move(descriptor), size);
  }
  Result<BytesHeldBy> holding(std::span<const BlockHandle> blocks) const override {
    return inner.holding(blocks);
  }
  Result<std::uint64_t> device_bytes_in_use() const override { return inner.device_bytes_in_use(); }
};

}  // namespace dormouse::testing
