#include "kv_connector/offload/offload_scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv_connector/block_key.h"
#include "kv_connector/offload/disk_tier.h"

namespace dormouse {
namespace {

constexpr std::size_t kMaxBadFiles = 1 << 16;
constexpr std::chrono::seconds kLookupTimeout(1);  // later it is a miss

bool exists_on_every_rank(const std::string& path, const std::string& key, std::uint32_t ranks) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    if (!DiskTier::exists(path, key, rank))
      return false;
  return true;
}

}  // namespace

Result<std::unique_ptr<OffloadScheduler>> OffloadScheduler::create(
    const KvConnectorContext& context) {
  DM_TRY_ASSIGN(OffloadConfig config, parse_offload_config(context));
  return std::unique_ptr<OffloadScheduler>(new OffloadScheduler(context, std::move(config)));
}

OffloadScheduler::OffloadScheduler(const KvConnectorContext& context, OffloadConfig config)
    : config_(std::move(config)),
      shape_(context.shape),
      world_size_(context.world_size),
      model_hash_(context.model_hash),
      tier_(config_.num_slots) {
  if (!config_.disk_path.empty())
    disk_ = std::make_unique<DiskLookup>(
        [path = config_.disk_path, ranks = world_size_](const std::string& key) {
          return exists_on_every_rank(path, key, ranks);
        },
        kLookupTimeout);
}

void OffloadScheduler::on_new_request(const KvRequest& request) {
  known_.try_emplace(request.id);
}

// The chain grows with the request and is kept, since the same request is asked about often.
const std::vector<std::string>& OffloadScheduler::keys_of(Known& known, const KvRequest& request,
                                                          std::size_t count) {
  std::vector<std::string>& keys = known.keys;
  std::string parent =
      keys.empty() ? root_key(shape_, world_size_, model_hash_, request.cache_salt) : keys.back();
  while (keys.size() < count) {
    parent = child_key(parent,
                       request.tokens.subspan(keys.size() * shape_.block_size, shape_.block_size));
    keys.push_back(parent);
  }
  return keys;
}

// Of these blocks, those that only a file holds, before the first that nothing holds.
std::optional<DiskLookup::Keys> OffloadScheduler::find_on_disk(RequestId request,
                                                               std::span<const std::string> keys) {
  std::vector<std::string> wanted;
  for (const std::string& key : keys) {
    if (tier_.find(key))
      continue;
    if (disk_ == nullptr || bad_.contains(key))
      break;
    wanted.push_back(key);
  }
  if (wanted.empty())
    return DiskLookup::Keys();
  return disk_->find(request, std::move(wanted));
}

std::optional<KvMatch> OffloadScheduler::get_num_new_matched_tokens(const KvRequest& request,
                                                                    std::uint32_t num_computed) {
  const std::uint32_t block_size = shape_.block_size;
  const std::uint32_t end = request.prompt_length / block_size;
  const std::uint32_t first = num_computed / block_size;
  if (num_computed % block_size != 0 || first >= end)
    return KvMatch{};
  const auto& keys = keys_of(known_[request.id], request, end);
  const auto files = find_on_disk(request.id, std::span(keys).subspan(first, end - first));
  if (!files)
    return std::nullopt;
  std::uint32_t at = first;
  while (at < end &&
         (tier_.find(keys[at]) || (files->contains(keys[at]) && !bad_.contains(keys[at]))))
    ++at;
  return KvMatch{.tokens = (at - first) * block_size, .load_is_async = at > first};
}

void OffloadScheduler::update_state_after_alloc(const KvRequest& request,
                                                std::span<const BlockId> blocks,
                                                std::uint32_t num_external) {
  if (disk_)
    disk_->forget(request.id);
  if (num_external == 0) {
    ++misses_;
    return;
  }
  ++hits_;
  const std::uint32_t first = request.num_computed / shape_.block_size;
  const std::uint32_t end = first + (num_external + shape_.block_size - 1) / shape_.block_size;
  DM_CHECK(end <= blocks.size() && end * shape_.block_size <= request.tokens.size(),
           "blocks for all tokens are allocated");
  Known& known = known_[request.id];
  const auto& keys = keys_of(known, request, end);
  OffloadJob job{.load = true, .request = request.id};
  for (std::uint32_t at = first; at < end; ++at)
    job.blocks.push_back({.key = keys[at], .slot = tier_.find(keys[at]), .block = blocks[at]});
  // From the end, so that the beginning of a prefix is what stays longest.
  for (auto each = job.blocks.rbegin(); each != job.blocks.rend(); ++each) {
    if (!each->slot)
      continue;
    tier_.acquire(*each->slot);
    tier_.touch(*each->slot);
  }
  ++known.loads;
  submit(std::move(job));
}

void OffloadScheduler::submit(OffloadJob job) {
  job.id = next_job_++;
  job.generations = generations_;
  flights_.emplace(job.id,
                   Flight{.job = job, .done = static_cast<std::uint32_t>(job.blocks.size())});
  queue_.push_back(std::move(job));
}

std::string OffloadScheduler::build_connector_meta() {
  if (queue_.empty())
    return {};
  return encode_fields(OffloadJobs{std::exchange(queue_, {})});
}

bool OffloadScheduler::has_pending_work() const {
  return !flights_.empty();
}

void OffloadScheduler::update_connector_output(const KvConnectorOutput& output) {
  if (output.worker_meta.empty())
    return;
  const auto report =
      decode_fields<OffloadReport>(output.worker_meta, "offload report", kOffloadMessageLimits);
  DM_CHECK(report.has_value(), "the worker half speaks the same language");
  for (const OffloadReport::Ended& each : report->ended)
    job_ended(each);
  for (const std::uint32_t slot : report->written)
    tier_.release(slot);
  if (bad_.size() + report->bad.size() > kMaxBadFiles)
    bad_.clear();
  for (const std::string& key : report->bad) {
    if (const auto slot = tier_.holds(key))
      tier_.forget(*slot);
    bad_.insert(key);
  }
}

void OffloadScheduler::job_ended(const OffloadReport::Ended& ended) {
  const auto found = flights_.find(ended.job);
  if (found == flights_.end())
    return;
  Flight& flight = found->second;
  flight.done = std::min(flight.done, ended.done);
  if (++flight.reports < world_size_)
    return;
  if (flight.job.load) {
    for (const OffloadBlock& each : flight.job.blocks)
      if (each.slot)
        tier_.release(*each.slot);
    const auto known = known_.find(flight.job.request);
    if (known != known_.end())
      --known->second.loads;
  } else {
    store_ended(flight);
  }
  flights_.erase(found);
}

void OffloadScheduler::store_ended(const Flight& flight) {
  for (std::size_t i = 0; i < flight.job.blocks.size(); ++i) {
    const std::uint32_t slot = *flight.job.blocks[i].slot;
    if (i < flight.done)
      tier_.set_ready(slot);
    else
      tier_.forget(slot);
    tier_.release(slot);
  }
}

KvRequestFinished OffloadScheduler::request_finished(const KvRequest& request,
                                                     std::span<const BlockId> blocks) {
  if (disk_)
    disk_->forget(request.id);
  auto node = known_.extract(request.id);
  if (node.empty() || request.finished == FinishReason::kError)
    return {};
  Known& known = node.mapped();
  const std::size_t tokens = std::min<std::size_t>(request.num_computed, request.tokens.size());
  const std::size_t count = std::min<std::size_t>(tokens / shape_.block_size, blocks.size());
  if (known.old_weights || known.loads > 0 || count == 0)
    return {};
  const auto& keys = keys_of(known, request, count);
  OffloadJob job{.request = request.id};
  job.blocks = blocks_to_store(keys, blocks.first(count));
  if (job.blocks.empty())
    return {};
  submit(std::move(job));
  return {.delay_free = true};
}

// Takes a slot for each block that has none. What a slot cannot be had for is not stored, nor what
// comes after it: it could not be found without its beginning.
std::vector<OffloadBlock> OffloadScheduler::blocks_to_store(const std::vector<std::string>& keys,
                                                            std::span<const BlockId> blocks) {
  std::vector<OffloadBlock> missing;
  std::vector<std::uint32_t> held;  // in the meantime, so that no block displaces its beginning
  std::vector<std::uint32_t> slots;
  // The copy, and with a disk tier the writing of the file on every rank.
  const std::uint32_t uses = config_.disk_path.empty() ? 1 : 1 + world_size_;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    auto slot = tier_.holds(keys[i]);
    if (slot) {
      tier_.acquire(*slot);
      held.push_back(*slot);
    } else {
      slot = tier_.allocate(keys[i]);
      if (!slot)
        break;
      tier_.acquire(*slot, uses);
      missing.push_back({.key = keys[i], .slot = slot, .block = blocks[i]});
    }
    slots.push_back(*slot);
  }
  for (const std::uint32_t slot : held)
    tier_.release(slot);
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot)
    tier_.touch(*slot);
  return missing;
}

void OffloadScheduler::set_xfer_handshake_metadata(const std::vector<std::string>& by_rank) {
  generations_ = by_rank;
}

void OffloadScheduler::set_model_hash(const std::string& model_hash) {
  if (std::exchange(model_hash_, model_hash) == model_hash)
    return;
  for (auto& [id, known] : known_) {
    known.keys.clear();
    known.old_weights = true;
  }
}

bool OffloadScheduler::reset_cache() {
  tier_.forget_all();
  return true;
}

KvConnectorStats OffloadScheduler::get_kv_connector_stats() const {
  return {{"kv_offload_hits_total", static_cast<double>(hits_)},
          {"kv_offload_misses_total", static_cast<double>(misses_)},
          {"kv_offload_host_blocks", static_cast<double>(tier_.num_blocks())},
          {"kv_offload_evictions_total", static_cast<double>(tier_.evictions())},
          {"kv_offload_lookup_timeouts_total", disk_ ? static_cast<double>(disk_->timeouts()) : 0}};
}

}  // namespace dormouse
