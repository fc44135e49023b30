#include "testing/instrumented_vmm_driver.h"

#include <cstring>

#include "base/check.h"

namespace dormouse::testing {
namespace {

std::uint64_t sum(const auto& sizes) {
  std::uint64_t total = 0;
  for (const auto& [key, size] : sizes)
    total += size;
  return total;
}

}  // namespace

std::uint64_t InstrumentedVmmDriver::tracked_bytes() const {
  return sum(blocks_);
}

std::uint64_t InstrumentedVmmDriver::imported_bytes() const {
  return sum(imported_);
}

std::uint64_t InstrumentedVmmDriver::mapped_bytes() const {
  return sum(mappings_);
}

std::uint64_t InstrumentedVmmDriver::reserved_bytes() const {
  return sum(reservations_);
}

Result<std::byte*> InstrumentedVmmDriver::reserve(std::size_t size) {
  DM_TRY(check("reserve"));
  DM_TRY_ASSIGN(std::byte * address, inner_.reserve(size));
  reservations_[address] = size;
  return address;
}

Status InstrumentedVmmDriver::free_reservation(std::byte* address, std::size_t size) {
  DM_TRY(check("free_reservation"));
  DM_TRY(inner_.free_reservation(address, size));
  DM_CHECK(reservations_.erase(address) == 1, "freed a range that was not reserved");
  return {};
}

Result<BlockHandle> InstrumentedVmmDriver::create(std::size_t size) {
  DM_TRY(check("create"));
  DM_TRY_ASSIGN(const BlockHandle block, inner_.create(size));
  blocks_[block.id] = size;
  return block;
}

Status InstrumentedVmmDriver::release(BlockHandle block) {
  DM_TRY(check("release"));
  DM_TRY(inner_.release(block));
  DM_CHECK(blocks_.erase(block.id) + imported_.erase(block.id) == 1,
           "released a block that was not held");
  return {};
}

Status InstrumentedVmmDriver::map(std::byte* address, std::size_t size, BlockHandle block) {
  DM_TRY(check("map"));
  DM_CHECK(!mappings_.contains(address), "mapped over a mapping");
  DM_TRY(inner_.map(address, size, block));
  mappings_[address] = size;
  fresh_[address] = true;
  ++maps_;
  return {};
}

Status InstrumentedVmmDriver::set_access(std::byte* address, std::size_t size, Access access) {
  DM_TRY(check("set_access"));
  DM_TRY(inner_.set_access(address, size, access));
  if (access == Access::kReadWrite && fresh_[address] && poison)
    std::memset(address, std::to_integer<int>(*poison), size);
  fresh_[address] = false;
  return {};
}

Status InstrumentedVmmDriver::unmap(std::byte* address, std::size_t size) {
  if (before_unmap)
    before_unmap();
  DM_TRY(check("unmap"));
  DM_TRY(inner_.unmap(address, size));
  DM_CHECK(mappings_.erase(address) == 1, "unmapped what was not mapped");
  ++unmaps_;
  return {};
}

Result<UniqueFd> InstrumentedVmmDriver::export_block(BlockHandle block) {
  DM_TRY(check("export"));
  ++exports_;
  return inner_.export_block(block);
}

Result<BlockHandle> InstrumentedVmmDriver::import_block(UniqueFd descriptor, std::size_t size) {
  DM_TRY(check("import"));
  DM_TRY_ASSIGN(const BlockHandle block, inner_.import_block(std::move(descriptor), size));
  imported_[block.id] = size;
  ++imports_;
  return block;
}

}  // namespace dormouse::testing
