#include "kv_connector/pull/lease_table.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <ranges>
#include <utility>

#include "base/secret.h"

namespace dormouse::pull {
namespace {

constexpr int kLongestLife = 4;  // durations

std::optional<RequestId> request_of(const std::string& lease) {
  RequestId request = 0;
  const char* last = lease.data() + lease.size();
  const auto [end, bad] = std::from_chars(lease.data(), last, request);
  return bad == std::errc() && end == last ? std::optional(request) : std::nullopt;
}

}  // namespace

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

LeaseTable::LeaseTable(std::string incarnation, HeadRange heads, LeaseTimes times)
    : incarnation_(std::move(incarnation)), heads_(heads), times_(times) {}

void LeaseTable::open(std::uint64_t generation) {
  if (generation != generation_)
    end_all();
  generation_ = generation;
  open_ = true;
}

void LeaseTable::close() {
  open_ = false;
  for (auto lease = leases_.begin(); lease != leases_.end();)
    lease = end_unless_read(lease);
}

void LeaseTable::end_all() {
  open_ = false;
  for (auto lease = leases_.begin(); lease != leases_.end();)
    lease = end(lease);
}

void LeaseTable::add(LeaseOrder order, Time now) {
  const auto [lease, added] = leases_.try_emplace(order.request);
  if (!added)
    return;
  const auto heads = std::views::iota(heads_.first, heads_.last);
  lease->second = {.order = std::move(order),
                   .expiry = now + times_.duration,
                   .last_expiry = now + kLongestLife * times_.duration,
                   .wanted = {heads.begin(), heads.end()}};
  if (!open_)
    end(lease);
}

tl::expected<GrantId, Refusal> LeaseTable::grant(const Pull& pull, ReaderId reader, Time now) {
  const auto granted = try_grant(pull, reader, now);
  if (granted)
    ++counters_.granted;
  else
    refuse(granted.error());
  return granted;
}

Refusal LeaseTable::refuse(Refusal refusal) {
  ++counters_.refused[static_cast<std::size_t>(refusal)];
  return refusal;
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
  lease.readers[++last_grant_] = {reader, pull.heads};
  return last_grant_;
}

tl::expected<LeaseTable::Leases::iterator, Refusal> LeaseTable::find(const LeaseName& name,
                                                                     Time now) {
  const auto request = request_of(name.lease);
  const auto lease = request ? leases_.find(*request) : leases_.end();
  if (lease == leases_.end() || lease->second.expiry <= now)
    return tl::unexpected(Refusal::kExpired);
  if (!same_secret(lease->second.order.token, name.token))
    return tl::unexpected(Refusal::kToken);
  return lease;
}

bool LeaseTable::confirm(const LeaseName& name, GrantId grant, ReaderId reader, Time now) {
  const auto lease = find(name, now);
  if (!lease)
    return false;
  auto& [request, found] = **lease;
  const auto reading = found.readers.find(grant);
  if (reading == found.readers.end() || reading->second.id != reader)
    return false;
  const HeadRange heads = reading->second.heads;
  found.readers.erase(reading);
  ++found.pulled;
  heads_done(*lease, heads);
  return true;
}

bool LeaseTable::heartbeat(const LeaseName& name, Time now) {
  const auto lease = find(name, now);
  if (lease)
    extend((*lease)->second, now);
  return lease.has_value();
}

bool LeaseTable::release(const LeaseName& name, HeadRange heads, Time now) {
  const auto lease = find(name, now);
  if (lease)
    heads_done(*lease, heads);
  return lease.has_value();
}

void LeaseTable::reader_gone(ReaderId reader) {
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    std::erase_if(lease->second.readers,
                  [&](const auto& reading) { return reading.second.id == reader; });
    lease = end_unless_read(lease);
  }
}

std::vector<LeaseTable::Expired> LeaseTable::expire(Time now) {
  std::vector<Expired> expired;
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    if (lease->second.expiry > now) {
      ++lease;
      continue;
    }
    expired.push_back({lease->second.order.request, lease->second.pulled});
    ++counters_.expired;
    lease = end(lease);
  }
  return expired;
}

RequestIds LeaseTable::take_ended() {
  return std::exchange(ended_, {});
}

void LeaseTable::extend(Lease& lease, Time now) {
  lease.expiry = std::max(lease.expiry, std::min(now + times_.extension, lease.last_expiry));
}

void LeaseTable::heads_done(Leases::iterator lease, HeadRange heads) {
  std::set<std::uint32_t>& wanted = lease->second.wanted;
  if (!heads.empty())
    wanted.erase(wanted.lower_bound(heads.first), wanted.lower_bound(heads.last));
  if (wanted.empty())
    end(lease);
  else
    end_unless_read(lease);
}

// While the table is open a lease waits for its consumers; afterwards nobody new can come.
LeaseTable::Leases::iterator LeaseTable::end_unless_read(Leases::iterator lease) {
  return open_ || !lease->second.readers.empty() ? std::next(lease) : end(lease);
}

LeaseTable::Leases::iterator LeaseTable::end(Leases::iterator lease) {
  ended_.push_back(lease->second.order.request);
  return leases_.erase(lease);
}

}  // namespace dormouse::pull
