#include <fmt/core.h>

#include "base/check.h"
#include "memory/allocator_state.h"

namespace dormouse {

using Impl = TaggedAllocator::Impl;

bool Impl::needs_copy(const Allocation& allocation) const {
  const TagState& tag = tag_states.at(allocation.tag);
  return !tag.source && (!allocation.backup || !tag.read_only);
}

Status Impl::preflight(const Selection& to_copy) const {
  std::uint64_t needed = 0;
  std::uint64_t held = 0;
  for (const Allocation* allocation : to_copy)
    needed += allocation->backup ? 0 : allocation->size;
  for (const Allocation& allocation : allocations)
    held += allocation.backup ? allocation.backup->size() : 0;
  if (needed == 0)
    return {};
  if (options.host_memory_limit > 0 && held + needed > options.host_memory_limit)
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("the backup needs {} bytes of host memory, the limit is {} bytes with {} in "
                    "use. Raise --host-memory-limit, or use level 2",
                    needed, options.host_memory_limit, held));
  if (!options.available_host_memory)
    return {};
  DM_TRY_ASSIGN(const std::uint64_t available, options.available_host_memory());
  if (needed > available)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("the backup needs {} bytes of host memory, {} are available. Free host "
                            "memory, or use level 2",
                            needed, available));
  return {};
}

Status Impl::back_up(const Selection& to_copy, const TransitionControl& control) {
  std::uint64_t total = 0;
  std::uint64_t done = 0;
  for (const Allocation* allocation : to_copy)
    total += allocation->size;
  for (Allocation* allocation : to_copy) {
    if (!allocation->backup) {
      DM_TRY_ASSIGN(allocation->backup, HostBackup::create(allocation->size));
    }
    for (const Allocation::Piece& piece : allocation->pieces) {
      if (control.cancelled && control.cancelled->load())
        return fail(ErrorCode::kCancelled, "cancelled while backing up");
      const auto offset = static_cast<std::size_t>(piece.address - allocation->address);
      const std::size_t size = std::min(piece.size, allocation->size - offset);
      DM_TRY(copier.to_host(allocation->backup->bytes().subspan(offset, size), piece.address));
      done += size;
      if (control.progress)
        control.progress("backup", done, total);
    }
  }
  return {};
}

Status Impl::restore_after_failure(std::vector<Listener*> released) {
  Status first;
  for (auto entry = released.rbegin(); entry != released.rend(); ++entry) {
    Status restored_one = (*entry)->listener->after_map();
    (*entry)->restored = restored_one.has_value();
    keep_first(first, std::move(restored_one));
  }
  return first;
}

Status Impl::release_listeners(const std::vector<MemoryTag>& tags, Unmapping& unmapping) {
  std::vector<Listener*> released;
  for (Listener& entry : listeners) {
    if (!contains(tags, entry.tag))
      continue;
    released.push_back(&entry);
    entry.restored = false;
    Status status = entry.listener->before_unmap(unmapping);
    if (status)
      continue;
    if (const Status undone = restore_after_failure(released); !undone)
      status.error().message += "; restoring failed too: " + undone.error().message;
    return status;
  }
  return {};
}

void Impl::unmap_all(const Selection& chosen, const std::vector<MemoryTag>& offload,
                     MemoryReceipt& receipt) {
  for (Allocation* allocation : chosen) {
    MemoryReceipt::Tag& tag = receipt.tags[allocation->tag.name()];
    if (allocation->mapped) {
      allocation->mapped = false;
      allocation->has_content = true;
      unmap_pieces(*allocation);
      tag.unmapped += allocation->reserved;
      receipt.expected_freed += allocation->reserved;
    }
    if (!contains(offload, allocation->tag)) {
      allocation->has_content = false;
      allocation->backup.reset();
    }
    tag.backup_kept += allocation->backup ? allocation->backup->size() : 0;
    if (const std::uint64_t leaked = held_bytes(*allocation); leaked > 0)
      receipt.kept.push_back(
          {allocation->tag.name(), leaked,
           "the driver refused to take it back; the next transition tries again"});
    if (allocation->backup)
      receipt.kept.push_back({allocation->tag.name() + " backup", allocation->backup->size(),
                              "host memory, to wake from"});
  }
}

Result<MemoryReceipt> Impl::give_back(const std::vector<MemoryTag>& tags,
                                      const std::vector<MemoryTag>& offload,
                                      const TransitionControl& control) {
  MemoryReceipt receipt;
  PhaseClock clock(receipt);
  retry_leaked();
  Selection chosen;
  Selection to_copy;
  std::vector<MemoryTag> concerned;
  for (Allocation& allocation : allocations) {
    if (!contains(tags, allocation.tag))
      continue;
    chosen.push_back(&allocation);
    if (!allocation.mapped)
      continue;
    if (!contains(concerned, allocation.tag))
      concerned.push_back(allocation.tag);
    if (contains(offload, allocation.tag) && needs_copy(allocation))
      to_copy.push_back(&allocation);
  }

  Unmapping unmapping{.force = control.force, .cancelled = control.cancelled};
  std::vector<bool> had_backup;
  for (const Allocation* allocation : to_copy)
    had_backup.push_back(allocation->backup != nullptr);
  const auto prepare = [&]() -> Status {
    DM_TRY(preflight(to_copy));
    clock.done("preflight");
    DM_TRY(back_up(to_copy, control));
    clock.done("backup");
    if (control.cancelled && control.cancelled->load())
      return fail(ErrorCode::kCancelled, "cancelled before anything was unmapped");
    unmapping.deadline = std::chrono::steady_clock::now() + control.release_timeout;
    DM_TRY(release_listeners(concerned, unmapping));
    clock.done("hooks");
    return {};
  };
  if (Status prepared = prepare(); !prepared) {
    for (std::size_t i = 0; i < to_copy.size(); ++i)
      if (!had_backup[i])
        to_copy[i]->backup.reset();
    return tl::unexpected(std::move(prepared).error());
  }

  for (const Allocation* allocation : to_copy)
    receipt.tags[allocation->tag.name()].copied_out += allocation->size;
  const auto before = driver.device_bytes_in_use();
  unmap_all(chosen, offload, receipt);
  receipt.kept.insert(receipt.kept.end(), unmapping.kept.begin(), unmapping.kept.end());
  clock.done("unmap");
  if (const auto after = driver.device_bytes_in_use(); before && after)
    receipt.measured_freed = static_cast<std::int64_t>(*before - *after);
  return receipt;
}

}  // namespace dormouse
