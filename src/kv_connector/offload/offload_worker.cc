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
  return create(context, {.copy = copy_bytes, .before_read = [] {}});
}

Result<std::unique_ptr<OffloadWorker>> OffloadWorker::create(const KvConnectorContext& context,
                                                             Steps steps) {
  DM_TRY_ASSIGN(const OffloadConfig config, parse_offload_config(context));
  DM_TRY_ASSIGN(SlotMemory slots,
                SlotMemory::create(config.num_slots, context.shape.block_bytes()));
  std::unique_ptr<OffloadWorker> worker(
      new OffloadWorker(context, config, std::move(slots), std::move(steps)));
  if (!config.disk_path.empty()) {
    DM_TRY_ASSIGN(worker->disk_, DiskTier::create({.path = config.disk_path,
                                                   .limit_bytes = config.disk_bytes,
                                                   .rank = context.rank}));
  }
  return worker;
}

OffloadWorker::OffloadWorker(const KvConnectorContext& context, const OffloadConfig& config,
                             SlotMemory slots, Steps steps)
    : rank_(context.rank),
      num_blocks_(context.num_blocks),
      verify_(context.config.verify_kv),
      num_threads_(config.num_threads),
      timeout_(config.transfer_timeout),
      slots_(std::move(slots)),
      steps_(std::move(steps)) {
  if (verify_)
    sums_.resize(slots_.num_slots());
}

Status OffloadWorker::register_kv_caches(const KvCaches& caches) {
  DM_CHECK(threads_.empty(), "the cache is registered once");
  DM_CHECK(caches.bytes.size() >= num_blocks_ * slots_.slot_bytes(), "the cache has all blocks");
  DM_TRY(restore_kv_caches(caches));
  for (std::uint32_t i = 0; i < num_threads_; ++i) {
    threads_.emplace_back([this] { serve(memory_tasks_); });
    if (disk_)
      threads_.emplace_back([this] { serve(file_tasks_); });
  }
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
    bool files = false;
    for (const OffloadBlock& each : job.blocks) {
      DM_CHECK(each.block < num_blocks_ && each.slot.value_or(0) < slots_.num_slots() &&
                   (job.load || each.slot),
               "a job names blocks and slots that exist");
      files = files || !each.slot;
    }
    const auto task = std::make_shared<Task>(
        Task{.job = std::move(job), .deadline = std::chrono::steady_clock::now() + timeout_});
    tasks_.insert(task);
    if (!is_current(task->job))
      end(task, not_mapped());
    else if (files && !disk_)
      end(task, fail(ErrorCode::kNotFound, "the block is on disk, and there is no disk tier"));
    else
      (files ? file_tasks_ : memory_tasks_).push_back(task);
  }
  bound_.clear();
  work_.notify_all();
}

bool OffloadWorker::is_current(const OffloadJob& job) const {
  return mapped_ && rank_ < job.generations.size() &&
         job.generations[rank_] == std::to_string(generation_);
}

void OffloadWorker::serve(Queue& queue) {
  std::vector<std::byte> staging(disk_ ? slots_.slot_bytes() : 0);
  const bool writes = &queue == &file_tasks_;
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || !queue.empty() || (writes && !writes_.empty()); });
    if (stopping_)
      return;
    if (queue.empty()) {
      write_next(lock);
      continue;
    }
    const auto task = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    run(task, staging);
    lock.lock();
  }
}

void OffloadWorker::write_next(std::unique_lock<std::mutex>& lock) {
  const Write next = std::move(writes_.front());
  writes_.pop_front();
  lock.unlock();
  disk_->write(next.key, slots_.slot(next.slot));
  lock.lock();
  report_.written.push_back(next.slot);
}

void OffloadWorker::run(const std::shared_ptr<Task>& task, std::span<std::byte> staging) {
  Status status;
  for (const OffloadBlock& block : task->job.blocks) {
    status = move_block(task, block, staging);
    if (!status)
      break;
  }
  const std::lock_guard lock(mutex_);
  end(task, status);
}

Status OffloadWorker::move_block(const std::shared_ptr<Task>& task, const OffloadBlock& block,
                                 std::span<std::byte> staging) {
  if (!block.slot)
    DM_TRY(read_file(block.key, staging));
  DM_TRY(begin_copy(task));
  const Status status = copy_block(task->job, block, staging);
  end_copy(*task, status.has_value());
  return status;
}

// Between this and end_copy a task may touch the cache and its slots, and at no other time.
Status OffloadWorker::begin_copy(const std::shared_ptr<Task>& task) {
  const std::lock_guard lock(mutex_);
  if (!is_current(task->job))
    return not_mapped();
  if (!tasks_.contains(task) || std::chrono::steady_clock::now() >= task->deadline)
    return too_late();
  task->copying = true;
  ++copying_;
  return {};
}

Status OffloadWorker::copy_block(const OffloadJob& job, const OffloadBlock& block,
                                 std::span<std::byte> staging) {
  const auto cached = cache_.subspan(block.block * slots_.slot_bytes(), slots_.slot_bytes());
  if (job.load) {
    if (block.slot && verify_)
      DM_TRY(verify_slot(block));
    steps_.copy(cached, block.slot ? slots_.slot(*block.slot) : staging);
    return {};
  }
  steps_.copy(slots_.slot(*block.slot), cached);
  if (verify_)
    sums_[*block.slot] = hash128(slots_.slot(*block.slot));
  return {};
}

void OffloadWorker::end_copy(Task& task, bool copied) {
  const std::lock_guard lock(mutex_);
  task.copying = false;
  task.done += copied ? 1 : 0;
  if (--copying_ == 0)
    idle_.notify_all();
}

Status OffloadWorker::read_file(const std::string& key, std::span<std::byte> staging) {
  steps_.before_read();
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

Status OffloadWorker::too_late() const {
  return fail(ErrorCode::kDeadlineExceeded,
              fmt::format("KV blocks were not copied within {} s (transfer_timeout)",
                          std::chrono::duration<double>(timeout_).count()));
}

void OffloadWorker::end_overdue() {
  const auto now = std::chrono::steady_clock::now();
  for (const auto& task : std::set(tasks_))
    if (now >= task->deadline && !task->copying)
      end(task, too_late());
}

// Once for each task, whoever comes first: its thread, its deadline, a release.
void OffloadWorker::end(const std::shared_ptr<Task>& task, const Status& status) {
  if (tasks_.erase(task) == 0)
    return;
  std::erase(memory_tasks_, task);
  std::erase(file_tasks_, task);
  const OffloadJob& job = task->job;
  report_.ended.push_back({job.id, task->done});
  if (!job.load)
    return report_store(*task);
  loaded_ += task->done;
  output_.finished_recving.push_back(job.request);
  for (std::size_t i = task->done; i < job.blocks.size(); ++i)
    output_.invalid_block_ids.push_back(job.blocks[i].block);
  if (!status && output_.failure.empty())
    output_.failure = "OffloadingConnector: " + status.error().message;
}

void OffloadWorker::report_store(const Task& task) {
  const auto& blocks = task.job.blocks;
  stored_ += task.done;
  dropped_ += blocks.size() - task.done;
  output_.finished_sending.push_back(task.job.request);
  for (std::size_t i = 0; i < task.done; ++i)
    slots_touched_ = std::max<std::uint64_t>(slots_touched_, *blocks[i].slot + 1);
  if (!disk_)
    return;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i < task.done)
      writes_.push_back({blocks[i].key, *blocks[i].slot});
    else
      report_.written.push_back(*blocks[i].slot);
  }
  work_.notify_all();
}

void OffloadWorker::get_finished(const RequestIds& /*finished*/, KvConnectorOutput& output) {
  const std::lock_guard lock(mutex_);
  end_overdue();
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
  for (const auto& task : std::set(tasks_))
    if (!task->copying)
      end(task, not_mapped());
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
