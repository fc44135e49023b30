#include "kv_connector/pull/lease_table.h"

#include <algorithm>
#include <utility>

#include "base/secret.h"

namespace dormouse::pull {
std::string_view to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::kUnavailable:
      return "unavailable";
    case Refusal::kIncarnation:
      return "incarnation";
    case Refusal::kGeneration:
      return "generation";
    case Refusal::kExpired:
      return "expired";
    case Refusal::kToken:
      return "token";
    case Refusal::kModel:
      return "model";
    case Refusal::kPrompt:
      return "prompt";
    case Refusal::kBlocks:
      return "blocks";
  }
  return "unknown";
}

LeaseTable::LeaseTable(std::string incarnation, LeaseTimes times)
    : incarnation_(std::move(incarnation)), times_(times) {}

void LeaseTable::open(std::uint64_t generation) {
  if (generation != generation_)
    end_all();
  generation_ = generation;
  open_ = true;
}

void LeaseTable::close() {
  open_ = false;
  for (auto lease = leases_.begin(); lease != leases_.end();)
    lease = is_read(lease->first) ? std::next(lease) : end(lease);
}

void LeaseTable::end_all() {
  open_ = false;
  for (auto lease = leases_.begin(); lease != leases_.end();)
    lease = end(lease);
}

void LeaseTable::add(LeaseOrder order, Time now) {
  const auto [lease, added] = leases_.try_emplace(std::to_string(order.request));
  if (!added)
    return;
  lease->second = {.order = std::move(order), .expiry = now + times_.duration};
  if (!open_)
    end(lease);
}

tl::expected<GrantId, Refusal> LeaseTable::grant(const Pull& pull, ReaderId reader, Time now) {
  const auto granted = try_grant(pull, reader, now);
  if (granted)
    ++counters_.granted;
  else
    ++counters_.refused[static_cast<std::size_t>(granted.error())];
  return granted;
}

tl::expected<GrantId, Refusal> LeaseTable::try_grant(const Pull& pull, ReaderId reader, Time now) {
  if (pull.incarnation != incarnation_)
    return tl::unexpected(Refusal::kIncarnation);
  if (pull.generation != generation_)
    return tl::unexpected(Refusal::kGeneration);
  if (!open_)
    return tl::unexpected(Refusal::kUnavailable);
  const auto found = find(pull.name, now);
  if (!found)
    return tl::unexpected(found.error());
  Lease& lease = (*found)->second;
  if (lease.order.model_hash != pull.model_hash)
    return tl::unexpected(Refusal::kModel);
  if (lease.order.prompt_hash != pull.prompt_hash)
    return tl::unexpected(Refusal::kPrompt);
  const std::vector<BlockId>& leased = lease.order.blocks;
  if (pull.first_block > leased.size() || pull.blocks.size() > leased.size() - pull.first_block ||
      !std::equal(pull.blocks.begin(), pull.blocks.end(), leased.begin() + pull.first_block))
    return tl::unexpected(Refusal::kBlocks);
  extend(lease, now);
  grants_[++last_grant_] = {(*found)->first, reader, pull.consumer};
  return last_grant_;
}

tl::expected<LeaseTable::Leases::iterator, Refusal> LeaseTable::find(const LeaseName& name,
                                                                     Time now) {
  const auto lease = leases_.find(name.lease);
  if (lease == leases_.end() || lease->second.expiry <= now)
    return tl::unexpected(Refusal::kExpired);
  if (!same_secret(lease->second.order.token, name.token))
    return tl::unexpected(Refusal::kToken);
  return lease;
}

bool LeaseTable::confirm(GrantId id, ReaderId reader, Time now) {
  const auto grant = grants_.find(id);
  if (grant == grants_.end() || grant->second.reader != reader)
    return false;
  const Grant ended = std::move(grant->second);
  grants_.erase(grant);
  const auto lease = leases_.find(ended.lease);  // it ends together with its grants
  if (lease->second.expiry <= now) {
    end_unless_read(lease);
    return false;
  }
  consumer_done(lease, ended.consumer);
  return true;
}

bool LeaseTable::heartbeat(const LeaseName& name, Time now) {
  const auto lease = find(name, now);
  if (lease)
    extend((*lease)->second, now);
  return lease.has_value();
}

bool LeaseTable::release(const LeaseName& name, const Consumer& consumer, Time now) {
  const auto lease = find(name, now);
  if (lease)
    consumer_done(*lease, consumer);
  return lease.has_value();
}

void LeaseTable::reader_gone(ReaderId reader) {
  for (auto grant = grants_.begin(); grant != grants_.end();) {
    if (grant->second.reader != reader) {
      ++grant;
      continue;
    }
    const std::string lease = grant->second.lease;
    grant = grants_.erase(grant);
    end_unless_read(leases_.find(lease));
  }
}

std::vector<LeaseTable::Expired> LeaseTable::expire(Time now) {
  std::vector<Expired> expired;
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    if (lease->second.expiry > now) {
      ++lease;
      continue;
    }
    expired.push_back({lease->second.order.request, lease->second.done.size()});
    ++counters_.expired;
    lease = end(lease);
  }
  return expired;
}

RequestIds LeaseTable::take_ended() {
  return std::exchange(ended_, {});
}

bool LeaseTable::is_read(const std::string& lease) const {
  return std::any_of(grants_.begin(), grants_.end(),
                     [&](const auto& grant) { return grant.second.lease == lease; });
}

void LeaseTable::extend(Lease& lease, Time now) {
  lease.expiry = std::max(lease.expiry, now + times_.extension);
}

void LeaseTable::consumer_done(Leases::iterator lease, const Consumer& consumer) {
  lease->second.done.insert(consumer.rank);
  if (lease->second.done.size() >= consumer.ranks)
    end(lease);
  else
    end_unless_read(lease);
}

// While the table is open a lease waits for its consumers; afterwards nobody new can come.
void LeaseTable::end_unless_read(Leases::iterator lease) {
  if (!open_ && !is_read(lease->first))
    end(lease);
}

LeaseTable::Leases::iterator LeaseTable::end(Leases::iterator lease) {
  std::erase_if(grants_, [&](const auto& grant) { return grant.second.lease == lease->first; });
  ended_.push_back(lease->second.order.request);
  return leases_.erase(lease);
}

}  // namespace dormouse::pull
