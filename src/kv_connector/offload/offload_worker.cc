#include "kv_connector/offload/offload_worker.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace dormouse {
namespace {

constexpr std::chrono::milliseconds kCancelLatency(20);

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) {
  std::memcpy(to.data(), from.data(), to.size());
}

Status not_mapped() {
  return fail(ErrorCode::kUnavailable, "the KV cache was released before the block was copied");
}

}  // namespace

Result<std::unique_ptr<OffloadWorker>> OffloadWorker::create(const KvConnectorContext& context) {
  return create(context, copy_bytes);
}

Result<std::unique_ptr<OffloadWorker>> OffloadWorker::create(const KvConnectorContext& context,
                                                             Copy copy) {
  DM_TRY_ASSIGN(const OffloadConfig config, parse_offload_config(context));
  DM_TRY_ASSIGN(SlotMemory slots,
                SlotMemory::create(config.num_slots, context.shape.block_bytes()));
  std::unique_ptr<OffloadWorker> worker(
      new OffloadWorker(context, std::move(slots), std::move(copy)));
  worker->num_threads_ = config.num_threads;
  if (!config.disk_path.empty()) {
    DM_TRY_ASSIGN(worker->disk_, DiskTier::create({.path = config.disk_path,
                                                   .limit_bytes = config.disk_bytes,
                                                   .rank = context.rank}));
  }
  return worker;
}

OffloadWorker::OffloadWorker(const KvConnectorContext& context, SlotMemory slots, Copy copy)
    : rank_(context.rank),
      num_blocks_(context.num_blocks),
      verify_(context.config.verify_kv),
      slots_(std::move(slots)),
      copy_(std::move(copy)) {
  if (verify_)
    sums_.resize(slots_.num_slots());
}

Status OffloadWorker::register_kv_caches(const KvCaches& caches) {
  DM_CHECK(threads_.empty(), "the cache is registered once");
  DM_CHECK(caches.bytes.size() >= num_blocks_ * slots_.slot_bytes(), "the cache has all blocks");
  DM_TRY(restore_kv_caches(caches));
  for (std::uint32_t i = 0; i < num_threads_; ++i)
    threads_.emplace_back([this] { work(); });
  return {};
}

void OffloadWorker::bind_connector_metadata(const std::string& metadata) {
  bound_.clear();
  if (metadata.empty())
    return;
  auto jobs = decode_offload_jobs(metadata);
  DM_CHECK(jobs.has_value(), "the scheduler half speaks the same language");
  bound_ = std::move(*jobs);
}

void OffloadWorker::start_load_kv() {
  const std::lock_guard lock(mutex_);
  for (OffloadJob& job : bound_) {
    for (const OffloadBlock& each : job.blocks)
      DM_CHECK(each.block < num_blocks_ && each.slot.value_or(0) < slots_.num_slots() &&
                   (job.load || each.slot),
               "a job names blocks and slots that exist");
    if (is_current(job))
      jobs_.push_back(std::move(job));
    else
      finish(job, 0, not_mapped());
  }
  bound_.clear();
  work_.notify_all();
}

bool OffloadWorker::is_current(const OffloadJob& job) const {
  return mapped_ && rank_ < job.generations.size() &&
         job.generations[rank_] == std::to_string(generation_);
}

void OffloadWorker::work() {
  std::vector<std::byte> staging(disk_ ? slots_.slot_bytes() : 0);
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stopping_ || !jobs_.empty() || !writes_.empty(); });
    if (stopping_)
      return;
    if (!jobs_.empty()) {
      const OffloadJob job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      run(job, staging);
      lock.lock();
    } else {
      const Write next = std::move(writes_.front());
      writes_.pop_front();
      lock.unlock();
      disk_->write(next.key, slots_.slot(next.slot));
      lock.lock();
      report_.written.push_back(next.slot);
    }
  }
}

void OffloadWorker::run(const OffloadJob& job, std::span<std::byte> staging) {
  std::uint32_t done = 0;
  Status status;
  for (const OffloadBlock& block : job.blocks) {
    status = move_block(job, block, staging);
    if (!status)
      break;
    ++done;
  }
  const std::lock_guard lock(mutex_);
  finish(job, done, status);
}

Status OffloadWorker::move_block(const OffloadJob& job, const OffloadBlock& block,
                                 std::span<std::byte> staging) {
  const auto cached = cache_.subspan(block.block * slots_.slot_bytes(), slots_.slot_bytes());
  if (!job.load) {
    DM_TRY(copy_if_mapped(job, slots_.slot(*block.slot), cached));
    if (verify_)
      sums_[*block.slot] = hash128(slots_.slot(*block.slot));
    return {};
  }
  if (!block.slot) {
    DM_TRY(read_file(block.key, staging));
    return copy_if_mapped(job, cached, staging);
  }
  if (verify_)
    DM_TRY(verify_slot(block));
  return copy_if_mapped(job, cached, slots_.slot(*block.slot));
}

// The one place where the cache is touched.
Status OffloadWorker::copy_if_mapped(const OffloadJob& job, std::span<std::byte> to,
                                     std::span<const std::byte> from) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_current(job))
      return not_mapped();
    ++copying_;
  }
  copy_(to, from);
  const std::lock_guard lock(mutex_);
  if (--copying_ == 0)
    idle_.notify_all();
  return {};
}

Status OffloadWorker::read_file(const std::string& key, std::span<std::byte> staging) {
  if (!disk_)
    return fail(ErrorCode::kNotFound, "the block left the host tier, and there is no disk tier");
  Status status = disk_->read(key, staging);
  if (!status && disk_->exists(key)) {
    const std::lock_guard lock(mutex_);
    report_.bad.push_back(key);
  }
  return status;
}

Status OffloadWorker::verify_slot(const OffloadBlock& block) {
  if (sums_[*block.slot] == hash128(slots_.slot(*block.slot)))
    return {};
  const std::lock_guard lock(mutex_);
  report_.bad.push_back(block.key);
  return fail(ErrorCode::kDataLoss, "a block in the host tier is not what was stored");
}

// With mutex_ held.
void OffloadWorker::finish(const OffloadJob& job, std::uint32_t done, const Status& status) {
  report_.ended.push_back({job.id, done});
  if (job.load) {
    loaded_ += done;
    output_.finished_recving.push_back(job.request);
    for (std::size_t i = done; i < job.blocks.size(); ++i)
      output_.invalid_block_ids.push_back(job.blocks[i].block);
    if (!status && output_.failure.empty())
      output_.failure = "OffloadingConnector: " + status.error().message;
    return;
  }
  stored_ += done;
  dropped_ += job.blocks.size() - done;
  output_.finished_sending.push_back(job.request);
  for (std::size_t i = 0; i < job.blocks.size(); ++i) {
    const OffloadBlock& each = job.blocks[i];
    if (i < done)
      slots_touched_ = std::max<std::uint64_t>(slots_touched_, *each.slot + 1);
    if (!disk_)
      continue;
    if (i < done)
      writes_.push_back({each.key, *each.slot});
    else
      report_.written.push_back(*each.slot);
  }
  work_.notify_all();
}

void OffloadWorker::get_finished(const RequestIds& /*finished*/, KvConnectorOutput& output) {
  const std::lock_guard lock(mutex_);
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), from.begin(), from.end());
    from.clear();
  };
  append(output.finished_sending, output_.finished_sending);
  append(output.finished_recving, output_.finished_recving);
  // Together, so that no job ends between these calls.
  if (report_told_.empty())
    report_told_ = std::exchange(report_, {});
  append(told_.invalid_block_ids, output_.invalid_block_ids);
  if (told_.failure.empty())
    told_.failure = std::exchange(output_.failure, {});
}

void OffloadWorker::get_block_ids_with_load_errors(KvConnectorOutput& output) {
  output.invalid_block_ids.insert(output.invalid_block_ids.end(), told_.invalid_block_ids.begin(),
                                  told_.invalid_block_ids.end());
  if (output.failure.empty())
    output.failure = told_.failure;
  told_ = {};
}

std::string OffloadWorker::build_connector_worker_meta() {
  const std::lock_guard lock(mutex_);
  return report_told_.empty() ? std::string() : encode(std::exchange(report_told_, {}));
}

std::string OffloadWorker::get_handshake_metadata() {
  const std::lock_guard lock(mutex_);
  return std::to_string(generation_);
}

KvConnectorStats OffloadWorker::get_kv_connector_stats() const {
  const std::lock_guard lock(mutex_);
  const std::uint64_t bytes = slots_touched_ * slots_.slot_bytes();
  KvConnectorStats stats = {
      {"kv_offload_stored_blocks_total", static_cast<double>(stored_)},
      {"kv_offload_dropped_blocks_total", static_cast<double>(dropped_)},
      {"kv_offload_loaded_blocks_total", static_cast<double>(loaded_)},
      {"kv_offload_host_bytes", static_cast<double>(bytes)},
  };
  if (disk_)
    disk_->add_stats(stats);
  return stats;
}

Status OffloadWorker::release_kv_caches(Unmapping& unmapping) {
  std::unique_lock lock(mutex_);
  mapped_ = false;
  for (const OffloadJob& job : std::exchange(jobs_, {}))
    finish(job, 0, not_mapped());
  const auto over = [&] {
    return std::chrono::steady_clock::now() >= unmapping.deadline ||
           (unmapping.cancelled != nullptr && unmapping.cancelled->load());
  };
  while (copying_ > 0 && !over())
    idle_.wait_until(
        lock, std::min(unmapping.deadline, std::chrono::steady_clock::now() + kCancelLatency));
  if (copying_ > 0)
    return fail(ErrorCode::kDeadlineExceeded,
                fmt::format("OffloadingConnector: {} copies of KV blocks were still under way at "
                            "the deadline; sleep again with a longer one",
                            copying_));
  return {};
}

Status OffloadWorker::restore_kv_caches(const KvCaches& caches) {
  const std::lock_guard lock(mutex_);
  cache_ = caches.bytes;
  generation_ = caches.generation;
  mapped_ = true;
  return {};
}

void OffloadWorker::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& each : threads_)
    each.join();
  threads_.clear();
}

}  // namespace dormouse
