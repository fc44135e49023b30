#include <fmt/core.h>

#include "base/check.h"
#include "memory/allocator_state.h"

namespace dormouse {

using Impl = TaggedAllocator::Impl;

namespace {

bool deferrable(const MemoryTag& tag) {
  return tag == kWeightsTag || tag == kKvCacheTag;
}

}  // namespace

bool Impl::wholly_mapped(const MemoryTag& tag) const {
  return std::none_of(allocations.begin(), allocations.end(), [&](const Allocation& allocation) {
    return allocation.tag == tag && !allocation.mapped;
  });
}

std::vector<MemoryTag> Impl::known_tags() const {
  std::vector<MemoryTag> known;
  for (const auto& [tag, state] : tag_states)
    known.push_back(tag);
  return known;
}

Status Impl::check_known(const std::vector<MemoryTag>& tags) const {
  for (const MemoryTag& tag : tags) {
    if (tag_states.contains(tag))
      continue;
    std::string names;
    for (const MemoryTag& known : known_tags())
      names += (names.empty() ? "" : ", ") + known.name();
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("unknown tag \"{}\"; there are: {}", tag.name(), names), "tags");
  }
  return {};
}

void Impl::retry_leaked() {
  for (Allocation& allocation : allocations)
    if (!allocation.mapped)
      unmap_pieces(allocation);
}

Status Impl::map_all(const Selection& chosen) {
  for (Allocation* allocation : chosen) {
    Status mapped = map_pieces(*allocation);
    if (mapped)
      mapped = set_access(*allocation, Access::kReadWrite);
    if (mapped)
      continue;
    mapped.error().message = fmt::format("tag {} needs {} bytes: {}", allocation->tag.name(),
                                         allocation->reserved, mapped.error().message);
    return mapped;
  }
  return {};
}

Status Impl::refill_from_sources(const Selection& chosen) {
  std::vector<MemoryTag> refilled;
  for (const Allocation* allocation : chosen) {
    const TagState& tag = tag_states.at(allocation->tag);
    if (!allocation->has_content || allocation->backup || !tag.source)
      continue;
    if (!contains(refilled, allocation->tag)) {
      DM_TRY(tag.source());
      refilled.push_back(allocation->tag);
    }
    if (hash128({allocation->address, allocation->size}) != allocation->hash)
      return fail(
          ErrorCode::kDataLoss,
          fmt::format("tag {}: its source gave other bytes than before the sleep; the model "
                      "file has changed. Put the old file back, or restart",
                      allocation->tag.name()));
  }
  return {};
}

Status Impl::bring_content(const Selection& chosen, const TransitionControl& control,
                           MemoryReceipt& receipt) {
  std::uint64_t total = 0;
  std::uint64_t done = 0;
  for (const Allocation* allocation : chosen)
    total += allocation->backup ? allocation->size : 0;
  for (const Allocation* allocation : chosen) {
    if (!allocation->backup)
      continue;
    for (const Allocation::Piece& piece : allocation->pieces) {
      const auto offset = static_cast<std::size_t>(piece.address - allocation->address);
      const std::size_t size = std::min(piece.size, allocation->size - offset);
      DM_TRY(copier.to_device(piece.address, allocation->backup->bytes().subspan(offset, size)));
      done += size;
      if (control.progress)
        control.progress("copy", done, total);
    }
    receipt.tags[allocation->tag.name()].copied_in += allocation->size;
  }
  return refill_from_sources(chosen);
}

Status Impl::set_final_access(const Selection& chosen) {
  for (Allocation* allocation : chosen)
    if (tag_states.at(allocation->tag).read_only)
      DM_TRY(set_access(*allocation, Access::kRead));
  return {};
}

void Impl::commit_mapping(const Selection& chosen, MemoryReceipt& receipt) {
  std::vector<MemoryTag> remapped;
  for (Allocation* allocation : chosen) {
    allocation->mapped = true;
    receipt.tags[allocation->tag.name()].mapped += allocation->reserved;
    if (!contains(remapped, allocation->tag))
      remapped.push_back(allocation->tag);
  }
  for (const MemoryTag& tag : remapped)
    ++tag_states.at(tag).generation;
  publish_usage();  // listeners tell their peers this generation
}

Status Impl::restore_listeners() {
  Status first;
  for (Listener& entry : listeners) {
    if (!wholly_mapped(entry.tag))
      continue;
    Status status = entry.listener->after_map();
    entry.restored = status.has_value();
    keep_first(first, std::move(status));
  }
  return first;
}

Result<MemoryReceipt> Impl::take_again(const std::optional<std::vector<MemoryTag>>& tags,
                                       const TransitionControl& control) {
  if (tags)
    DM_TRY(check_known(*tags));
  MemoryReceipt receipt;
  PhaseClock clock(receipt);
  retry_leaked();
  Selection chosen;
  for (Allocation& allocation : allocations)
    if (!allocation.mapped &&
        (!tags || contains(*tags, allocation.tag) || !deferrable(allocation.tag)))
      chosen.push_back(&allocation);

  const auto prepare = [&]() -> Status {
    DM_TRY(map_all(chosen));
    clock.done("map");
    DM_TRY(bring_content(chosen, control, receipt));
    clock.done("copy");
    return set_final_access(chosen);
  };
  if (Status prepared = prepare(); !prepared) {
    for (Allocation* allocation : chosen)
      unmap_pieces(*allocation);
    return tl::unexpected(std::move(prepared).error());
  }
  commit_mapping(chosen, receipt);
  DM_TRY(restore_listeners());
  clock.done("hooks");
  return receipt;
}

}  // namespace dormouse
