#include "memory/tagged_allocator.h"

#include <fmt/core.h>

#include <utility>

#include "base/check.h"
#include "memory/allocator_state.h"

namespace dormouse {

using Impl = TaggedAllocator::Impl;

TaggedMemory::TaggedMemory(TaggedMemory&& other) noexcept {
  *this = std::move(other);
}

TaggedMemory& TaggedMemory::operator=(TaggedMemory&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(id_, other.id_);
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  return *this;
}

TaggedMemory::~TaggedMemory() {
  if (!allocator_)
    return;
  Impl& impl = *allocator_->impl_;
  const auto found = std::find_if(impl.allocations.begin(), impl.allocations.end(),
                                  [&](const Allocation& entry) { return entry.id == id_; });
  DM_CHECK(found != impl.allocations.end(), "memory freed twice");
  impl.unmap_pieces(*found);
  if (impl.held_bytes(*found) == 0)
    (void)impl.driver.free_reservation(found->address, found->reserved);
  impl.allocations.erase(found);
  impl.publish_usage();
}

MappingSubscription::MappingSubscription(MappingSubscription&& other) noexcept {
  *this = std::move(other);
}

MappingSubscription& MappingSubscription::operator=(MappingSubscription&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(id_, other.id_);
  return *this;
}

MappingSubscription::~MappingSubscription() {
  if (!allocator_)
    return;
  std::erase_if(allocator_->impl_->listeners,
                [&](const Listener& entry) { return entry.id == id_; });
}

WriteLease::WriteLease(WriteLease&& other) noexcept
    : allocator_(std::exchange(other.allocator_, nullptr)), tag_(other.tag_) {}

WriteLease::~WriteLease() {
  if (!allocator_)
    return;
  Impl& impl = *allocator_->impl_;
  const ContentSource source = impl.tag_states.at(tag_).source;
  const Status sealed = allocator_->seal(tag_, source);
  DM_CHECK(sealed.has_value(), "a tag under a write lease cannot be made read-only again");
}

TaggedAllocator::TaggedAllocator(VmmDriver& driver, Copier& copier, Options options)
    : impl_(std::make_unique<Impl>(driver, copier, std::move(options))) {}

TaggedAllocator::~TaggedAllocator() {
  DM_CHECK(impl_->allocations.empty(), "the allocator dies before its memory");
  DM_CHECK(impl_->listeners.empty(), "the allocator dies before its subscriptions");
}

Result<TaggedMemory> TaggedAllocator::allocate(const MemoryTag& tag, std::size_t size) {
  DM_CHECK(size > 0, "an empty allocation");
  Allocation entry{.id = ++impl_->last_id, .tag = tag, .size = size};
  const std::size_t unit = impl_->driver.granularity();
  entry.reserved = (size + unit - 1) / unit * unit;
  DM_TRY_ASSIGN(entry.address, impl_->driver.reserve(entry.reserved));
  const std::size_t piece_bytes = std::max(unit, impl_->options.block_bytes / unit * unit);
  for (std::size_t offset = 0; offset < entry.reserved; offset += piece_bytes)
    entry.pieces.push_back(
        {entry.address + offset, std::min(piece_bytes, entry.reserved - offset), {}, false});

  TagState& state = impl_->tag_states[tag];
  Status mapped = impl_->map_all({&entry});
  if (!mapped) {
    impl_->unmap_pieces(entry);
    (void)impl_->driver.free_reservation(entry.address, entry.reserved);
    return tl::unexpected(std::move(mapped).error());
  }
  entry.mapped = true;
  state.generation = std::max<std::uint64_t>(state.generation, 1);
  TaggedMemory handle(this, entry.id, entry.address, size);
  impl_->allocations.push_back(std::move(entry));
  impl_->publish_usage();
  return handle;
}

Status TaggedAllocator::seal(const MemoryTag& tag, ContentSource source) {
  for (Allocation& allocation : impl_->allocations) {
    if (allocation.tag != tag)
      continue;
    if (!allocation.mapped)
      return fail(ErrorCode::kFailedPrecondition, fmt::format("tag {} is asleep", tag.name()));
    DM_TRY(impl_->set_access(allocation, Access::kRead));
    if (source)
      allocation.hash = hash128({allocation.address, allocation.size});
  }
  TagState& state = impl_->tag_states[tag];
  state.read_only = true;
  state.source = std::move(source);
  impl_->publish_usage();
  return {};
}

Result<WriteLease> TaggedAllocator::lease_for_writing(const MemoryTag& tag) {
  if (!is_mapped(tag))
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tag {} is asleep; wake it first", tag.name()));
  for (Allocation& allocation : impl_->allocations) {
    if (allocation.tag != tag)
      continue;
    DM_TRY(impl_->set_access(allocation, Access::kReadWrite));
    allocation.backup.reset();
  }
  impl_->tag_states[tag].read_only = false;
  impl_->publish_usage();
  return WriteLease(this, tag);
}

MappingSubscription TaggedAllocator::subscribe(const MemoryTag& tag, MappingListener& listener) {
  const std::uint64_t id = ++impl_->last_id;
  impl_->tag_states[tag];
  impl_->listeners.push_back({id, tag, &listener, true});
  return MappingSubscription(this, id);
}

Status TaggedAllocator::check_sleep(const std::vector<MemoryTag>& offload) const {
  DM_TRY(impl_->check_known(offload));
  Impl::Selection to_copy;
  for (Allocation& allocation : impl_->allocations)
    if (allocation.mapped && contains(offload, allocation.tag) && impl_->needs_copy(allocation))
      to_copy.push_back(&allocation);
  return impl_->preflight(to_copy);
}

Result<MemoryReceipt> TaggedAllocator::sleep(const std::vector<MemoryTag>& offload,
                                             const TransitionControl& control) {
  DM_TRY(impl_->check_known(offload));
  auto receipt = impl_->give_back(impl_->known_tags(), offload, control);
  impl_->publish_usage();
  return receipt;
}

Result<MemoryReceipt> TaggedAllocator::discard(const std::vector<MemoryTag>& tags,
                                               const TransitionControl& control) {
  DM_TRY(impl_->check_known(tags));
  auto receipt = impl_->give_back(tags, {}, control);
  impl_->publish_usage();
  return receipt;
}

Result<MemoryReceipt> TaggedAllocator::wake_up(const std::optional<std::vector<MemoryTag>>& tags,
                                               const TransitionControl& control) {
  auto receipt = impl_->take_again(tags, control);
  impl_->publish_usage();
  return receipt;
}

void TaggedAllocator::drop_used_backups() {
  for (Allocation& allocation : impl_->allocations)
    if (allocation.mapped &&
        (!impl_->options.retain_backups || !impl_->tag_states.at(allocation.tag).read_only))
      allocation.backup.reset();
  impl_->publish_usage();
}

void Impl::publish_usage() {
  MemoryUsage next;
  for (const auto& [tag, state] : tag_states) {
    next[tag.name()].generation = state.generation;
    next[tag.name()].read_only = state.read_only;
  }
  for (const Allocation& allocation : allocations) {
    TagUsage& tag = next[allocation.tag.name()];
    (allocation.mapped ? tag.mapped : tag.asleep) += allocation.reserved;
    tag.leaked += allocation.mapped ? 0 : held_bytes(allocation);
    tag.backed_up += allocation.backup ? allocation.backup->size() : 0;
  }
  const std::lock_guard lock(usage_mutex);
  usage = std::move(next);
}

MemoryUsage TaggedAllocator::usage() const {
  const std::lock_guard lock(impl_->usage_mutex);
  return impl_->usage;
}

std::vector<MemoryTag> TaggedAllocator::tags() const {
  return impl_->known_tags();
}

bool TaggedAllocator::is_mapped(const MemoryTag& tag) const {
  return impl_->tag_states.contains(tag) && impl_->wholly_mapped(tag);
}

bool TaggedAllocator::all_restored() const {
  return std::all_of(impl_->listeners.begin(), impl_->listeners.end(), [&](const Listener& entry) {
    return entry.restored || !impl_->wholly_mapped(entry.tag);
  });
}

std::vector<BlockHandle> TaggedAllocator::blocks_of(const TaggedMemory& memory) const {
  std::vector<BlockHandle> blocks;
  for (const Allocation& allocation : impl_->allocations)
    if (allocation.id == memory.id_ && allocation.mapped)
      for (const Allocation::Piece& piece : allocation.pieces)
        blocks.push_back(*piece.block);
  return blocks;
}

}  // namespace dormouse
