#include "kv_connector/offload/host_tier.h"

#include "base/check.h"

namespace dormouse {

std::optional<std::uint32_t> HostTier::holds(const std::string& key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::uint32_t> HostTier::find(const std::string& key) const {
  const auto slot = holds(key);
  return slot && slots_[*slot].ready ? slot : std::nullopt;
}

std::optional<std::uint32_t> HostTier::take_free() {
  if (!free_.empty()) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (slots_.size() == num_slots_)
    return std::nullopt;
  slots_.emplace_back();
  return static_cast<std::uint32_t>(slots_.size() - 1);
}

std::optional<std::uint32_t> HostTier::evict() {
  for (const std::uint32_t slot : order_) {
    if (slots_[slot].uses > 0)
      continue;
    forget(slot);
    ++evictions_;
    return take_free();
  }
  return std::nullopt;
}

std::optional<std::uint32_t> HostTier::allocate(const std::string& key) {
  DM_CHECK(!index_.contains(key), "a block is held once");
  auto slot = take_free();
  if (!slot)
    slot = evict();
  if (!slot)
    return std::nullopt;
  slots_[*slot] = {.key = key, .place = order_.insert(order_.end(), *slot)};
  index_.emplace(key, *slot);
  return slot;
}

void HostTier::acquire(std::uint32_t slot, std::uint32_t uses) {
  slots_[slot].uses += uses;
}

void HostTier::release(std::uint32_t slot, std::uint32_t uses) {
  DM_CHECK(slots_[slot].uses >= uses, "a slot is released as often as it was acquired");
  slots_[slot].uses -= uses;
  if (slots_[slot].uses == 0 && uses > 0 && slots_[slot].key.empty())
    free_.push_back(slot);
}

void HostTier::set_ready(std::uint32_t slot) {
  slots_[slot].ready = !slots_[slot].key.empty();
}

void HostTier::touch(std::uint32_t slot) {
  if (!slots_[slot].key.empty())
    order_.splice(order_.end(), order_, slots_[slot].place);
}

void HostTier::forget(std::uint32_t slot) {
  Slot& each = slots_[slot];
  if (each.key.empty())
    return;
  index_.erase(each.key);
  order_.erase(each.place);
  each.key.clear();
  each.ready = false;
  if (each.uses == 0)
    free_.push_back(slot);
}

void HostTier::forget_all() {
  while (!order_.empty())
    forget(order_.front());
}

}  // namespace dormouse
