#include <fmt/core.h>

#include "base/check.h"
#include "base/log.h"
#include "memory/allocator_state.h"

namespace dormouse {

using Impl = TaggedAllocator::Impl;

Status Impl::map_pieces(Allocation& allocation) {
  for (Allocation::Piece& piece : allocation.pieces) {
    if (piece.block)
      return fail(
          ErrorCode::kInternal,
          fmt::format("the driver still holds {} bytes of tag {} that it refused to take back",
                      piece.size, allocation.tag.name()));
    DM_TRY_ASSIGN(piece.block, driver.create(piece.size));
    DM_TRY(driver.map(piece.address, piece.size, *piece.block));
    piece.joined = true;
  }
  return {};
}

void Impl::unmap_pieces(Allocation& allocation) {
  for (Allocation::Piece& piece : allocation.pieces) {
    if (!piece.block)
      continue;
    Status done;
    if (piece.joined)
      done = driver.unmap(piece.address, piece.size);
    piece.joined = piece.joined && !done;
    if (done)
      done = driver.release(*piece.block);
    if (done)
      piece.block.reset();
    else
      log(LogLevel::kError, "memory", "leaked tag={} bytes={} error={}", allocation.tag.name(),
          piece.size, done.error().message);
  }
}

Status Impl::set_access(Allocation& allocation, Access access) {
  for (const Allocation::Piece& piece : allocation.pieces)
    DM_TRY(driver.set_access(piece.address, piece.size, access));
  return {};
}

std::uint64_t Impl::held_bytes(const Allocation& allocation) const {
  std::uint64_t bytes = 0;
  for (const Allocation::Piece& piece : allocation.pieces)
    bytes += piece.block ? piece.size : 0;
  return bytes;
}

}  // namespace dormouse
