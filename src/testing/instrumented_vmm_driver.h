// A driver around a driver that keeps count, fails on demand and poisons what it maps.
//
// Counts: blocks and bytes created and not yet released, those imported apart, bytes mapped,
// mappings made so far, unmaps, and `before_unmap`, a callback for asserting what must be true at
// the moment an unmap begins (for instance: zero registrations). Poison: every newly mapped block
// is filled, so that a read before a write shows.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "device/vmm_driver.h"
#include "testing/fault_plan.h"

namespace dormouse::testing {

class InstrumentedVmmDriver final : public VmmDriver {
 public:
  explicit InstrumentedVmmDriver(VmmDriver& inner, FaultPlan* faults = nullptr)
      : inner_(inner), faults_(faults) {}

  std::function<void()> before_unmap;
  std::optional<std::byte> poison;

  std::uint64_t tracked_bytes() const;   // created and not released
  std::uint64_t imported_bytes() const;  // imported and not released
  std::uint64_t mapped_bytes() const;
  std::uint64_t reserved_bytes() const;
  std::uint64_t maps() const { return maps_; }
  std::uint64_t unmaps() const { return unmaps_; }
  std::uint64_t exports() const { return exports_; }
  std::uint64_t imports() const { return imports_; }

  std::size_t granularity() const override { return inner_.granularity(); }
  Result<std::byte*> reserve(std::size_t size) override;
  Status free_reservation(std::byte* address, std::size_t size) override;
  Result<BlockHandle> create(std::size_t size) override;
  Status release(BlockHandle block) override;
  Result<std::size_t> block_size(BlockHandle block) const override {
    return inner_.block_size(block);
  }
  Status map(std::byte* address, std::size_t size, BlockHandle block) override;
  Status set_access(std::byte* address, std::size_t size, Access access) override;
  Status unmap(std::byte* address, std::size_t size) override;
  Result<UniqueFd> export_block(BlockHandle block) override;
  Result<BlockHandle> import_block(UniqueFd descriptor, std::size_t size) override;
  Result<BytesHeldBy> holding(std::span<const BlockHandle> blocks) const override {
    return inner_.holding(blocks);
  }
  Result<std::uint64_t> device_bytes_in_use() const override { return tracked_bytes(); }

 private:
  Status check(std::string_view call) { return faults_ ? faults_->check(call) : Status{}; }

  VmmDriver& inner_;
  FaultPlan* faults_;
  std::map<std::uint64_t, std::size_t> blocks_;
  std::map<std::uint64_t, std::size_t> imported_;
  std::map<std::byte*, std::size_t> mappings_;
  std::map<std::byte*, std::size_t> reservations_;
  std::map<std::byte*, bool> fresh_;
  std::uint64_t maps_ = 0;
  std::uint64_t unmaps_ = 0;
  std::uint64_t exports_ = 0;
  std::uint64_t imports_ = 0;
};

}  // namespace dormouse::testing
