#include "kv_connector/offload/offload_transfers.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace dormouse {
namespace {

constexpr std::chrono::milliseconds kCancelLatency(20);
constexpr std::chrono::seconds kStopPatience(2);

Status not_mapped() {
  return fail(ErrorCode::kUnavailable, "the KV cache was released before the block was copied");
}

bool needs_files(const OffloadJob& job) {
  return std::ranges::any_of(job.blocks, [](const OffloadBlock& each) { return !each.slot; });
}

}  // namespace

OffloadTransfers::OffloadTransfers(Options options, SlotMemory slots,
                                   std::unique_ptr<DiskTier> disk, Steps steps)
    : options_(options),
      slots_(std::move(slots)),
      disk_(std::move(disk)),
      steps_(std::move(steps)) {
  if (options_.verify)
    sums_.resize(slots_.num_slots());
}

void OffloadTransfers::start() {
  const std::lock_guard lock(mutex_);
  DM_CHECK(threads_ == 0, "transfers are started once");
  const auto begin = [this](Lane& lane) {
    ++threads_;
    std::thread([self = shared_from_this(), &lane] { self->serve(lane); }).detach();
  };
  for (std::uint32_t i = 0; i < options_.num_threads; ++i) {
    begin(memory_);
    if (disk_)
      begin(files_);
  }
}

void OffloadTransfers::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  mapped_ = false;
  changed_.notify_all();
  changed_.wait(lock, [this] { return copying_ == 0; });
  if (!changed_.wait_for(lock, kStopPatience, [this] { return threads_ == 0; }))
    log(LogLevel::kError, "kv_connector",
        "the file system of the KV tier does not answer; {} transfers are left behind", threads_);
}

void OffloadTransfers::set_mapping(std::span<std::byte> cache, std::uint64_t generation) {
  const std::lock_guard lock(mutex_);
  DM_CHECK(cache.size() >= options_.num_blocks * slots_.slot_bytes(), "the cache has all blocks");
  if (generation != generation_) {
    // What is said of blocks of an older mapping would be taken for those of this one.
    for (const TaskPtr& task : std::vector(tasks_))
      end(task, not_mapped());
    outcome_.output = {};
  }
  cache_ = cache;
  generation_ = generation;
  mapped_ = true;
}

Status OffloadTransfers::release(const Unmapping& unmapping) {
  std::unique_lock lock(mutex_);
  mapped_ = false;
  for (const TaskPtr& task : std::vector(tasks_))
    if (!task->copying)
      end(task, not_mapped());
  while (copying_ > 0) {
    if (const Status waits = unmapping.may_wait(); !waits)
      return fail(
          waits.error().code,
          fmt::format("OffloadingConnector: {} copies of KV blocks were still under way: {}",
                      copying_, waits.error().message));
    changed_.wait_until(lock, std::min(unmapping.deadline, Clock::now() + kCancelLatency));
  }
  return {};
}

std::string OffloadTransfers::generation() const {
  const std::lock_guard lock(mutex_);
  return std::to_string(generation_);
}

void OffloadTransfers::submit(OffloadJob job) {
  for (const OffloadBlock& each : job.blocks)
    DM_CHECK(each.block < options_.num_blocks && each.slot.value_or(0) < slots_.num_slots() &&
                 (job.load || each.slot),
             "a job names blocks and slots that exist");
  const std::lock_guard lock(mutex_);
  const auto task = std::make_shared<Task>(
      Task{.job = std::move(job), .deadline = Clock::now() + options_.timeout});
  tasks_.push_back(task);
  if (const Status can = check_can_begin(task->job); !can)
    return end(task, can);
  (needs_files(task->job) ? files_ : memory_).tasks.push_back(task);
  changed_.notify_all();
}

Status OffloadTransfers::check_can_begin(const OffloadJob& job) const {
  if (!is_current(job))
    return not_mapped();
  if (!needs_files(job))
    return {};
  if (!disk_)
    return fail(ErrorCode::kNotFound, "the block left the host tier, and there is no disk tier");
  if (!files_answer())
    return fail(ErrorCode::kUnavailable, "the file system of the disk tier does not answer");
  return {};
}

bool OffloadTransfers::files_answer() const {
  const auto overdue = std::ranges::count_if(files_.busy, [&](Clock::time_point since) {
    return Clock::now() - since > options_.timeout;
  });
  return overdue < options_.num_threads;
}

// A slot that waits for its file cannot be used for anything else.
void OffloadTransfers::drop_overdue_writes() {
  if (files_answer())
    return;
  while (!writes_.empty() && Clock::now() >= writes_.front().deadline) {
    outcome_.report.written.push_back(writes_.front().slot);
    ++counters_.unwritten;
    writes_.pop_front();
  }
}

bool OffloadTransfers::is_current(const OffloadJob& job) const {
  return mapped_ && options_.rank < job.generations.size() &&
         job.generations[options_.rank] == std::to_string(generation_);
}

void OffloadTransfers::serve(Lane& lane) {
  std::vector<std::byte> staging(&lane == &files_ ? slots_.slot_bytes() : 0);
  std::unique_lock lock(mutex_);
  const auto writes = [&] { return &lane == &files_ && !writes_.empty(); };
  const auto unlocked = [&](const auto& work) {
    const auto began = lane.busy.insert(Clock::now());
    lock.unlock();
    work();
    lock.lock();
    lane.busy.erase(began);
  };
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !lane.tasks.empty() || writes(); });
    if (stopping_)
      break;
    if (!lane.tasks.empty()) {
      const TaskPtr task = std::move(lane.tasks.front());
      lane.tasks.pop_front();
      unlocked([&] { run(task, staging); });
    } else {
      const Write next = std::move(writes_.front());
      writes_.pop_front();
      unlocked([&] {
        steps_.before_file();
        disk_->write(next.key, slots_.slot(next.slot));
      });
      outcome_.report.written.push_back(next.slot);
    }
  }
  --threads_;
  changed_.notify_all();
}

void OffloadTransfers::run(const TaskPtr& task, std::span<std::byte> staging) {
  Status status;
  for (const OffloadBlock& block : task->job.blocks) {
    status = move_block(task, block, staging);
    if (!status)
      break;
  }
  const std::lock_guard lock(mutex_);
  end(task, status);
}

Status OffloadTransfers::move_block(const TaskPtr& task, const OffloadBlock& block,
                                    std::span<std::byte> staging) {
  if (!block.slot)
    DM_TRY(read_file(block.key, staging));
  DM_TRY(begin_copy(task));
  const Status status = copy_block(task->job, block, staging);
  end_copy(*task, status.has_value());
  return status;
}

// Between this and end_copy a task may touch the cache and its slots, and at no other time.
Status OffloadTransfers::begin_copy(const TaskPtr& task) {
  const std::lock_guard lock(mutex_);
  if (!is_current(task->job))
    return not_mapped();
  if (Clock::now() >= task->deadline || std::ranges::find(tasks_, task) == tasks_.end())
    return too_late();
  task->copying = true;
  ++copying_;
  return {};
}

Status OffloadTransfers::copy_block(const OffloadJob& job, const OffloadBlock& block,
                                    std::span<std::byte> staging) {
  const auto cached = cache_.subspan(block.block * slots_.slot_bytes(), slots_.slot_bytes());
  if (job.load) {
    if (block.slot && options_.verify)
      DM_TRY(verify_slot(block));
    steps_.copy(cached, block.slot ? slots_.slot(*block.slot) : staging);
    return {};
  }
  steps_.copy(slots_.slot(*block.slot), cached);
  if (options_.verify)
    sums_[*block.slot] = hash128(slots_.slot(*block.slot));
  return {};
}

void OffloadTransfers::end_copy(Task& task, bool copied) {
  const std::lock_guard lock(mutex_);
  task.copying = false;
  task.done += copied ? 1 : 0;
  if (--copying_ == 0)
    changed_.notify_all();
}

Status OffloadTransfers::read_file(const std::string& key, std::span<std::byte> staging) {
  steps_.before_file();
  Status status = disk_->read(key, staging);
  if (!status && disk_->exists(key)) {
    const std::lock_guard lock(mutex_);
    outcome_.report.bad.push_back(key);
  }
  return status;
}

Status OffloadTransfers::verify_slot(const OffloadBlock& block) {
  if (sums_[*block.slot] == hash128(slots_.slot(*block.slot)))
    return {};
  const std::lock_guard lock(mutex_);
  outcome_.report.bad.push_back(block.key);
  return fail(ErrorCode::kDataLoss, "a block in the host tier is not what was stored");
}

Status OffloadTransfers::too_late() const {
  return fail(ErrorCode::kDeadlineExceeded,
              fmt::format("KV blocks were not copied within {} s (transfer_timeout)",
                          std::chrono::duration<double>(options_.timeout).count()));
}

// Once for each task, whoever comes first: its thread, its deadline, a release.
void OffloadTransfers::end(const TaskPtr& task, const Status& status) {
  if (std::erase(tasks_, task) == 0)
    return;
  std::erase(memory_.tasks, task);
  std::erase(files_.tasks, task);
  const OffloadJob& job = task->job;
  outcome_.report.ended.push_back({job.id, task->done});
  if (!job.load)
    return report_store(*task);
  KvConnectorOutput& output = outcome_.output;
  counters_.loaded += task->done;
  output.finished_recving.push_back(job.request);
  for (std::size_t i = task->done; i < job.blocks.size(); ++i)
    output.invalid_block_ids.push_back(job.blocks[i].block);
  if (!status && output.failure.empty())
    output.failure = "OffloadingConnector: " + status.error().message;
}

void OffloadTransfers::report_store(const Task& task) {
  const auto& blocks = task.job.blocks;
  counters_.stored += task.done;
  counters_.dropped += blocks.size() - task.done;
  outcome_.output.finished_sending.push_back(task.job.request);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::uint32_t slot = *blocks[i].slot;
    if (i < task.done)
      counters_.host_bytes = std::max(counters_.host_bytes, (slot + 1) * slots_.slot_bytes());
    if (!disk_)
      continue;
    if (i < task.done)
      writes_.push_back({blocks[i].key, slot, Clock::now() + options_.timeout});
    else
      outcome_.report.written.push_back(slot);
  }
  changed_.notify_all();
}

OffloadTransfers::Outcome OffloadTransfers::take() {
  const std::lock_guard lock(mutex_);
  for (const TaskPtr& task : std::vector(tasks_))
    if (Clock::now() >= task->deadline && !task->copying)
      end(task, too_late());
  drop_overdue_writes();
  return std::exchange(outcome_, {});
}

OffloadTransfers::Counters OffloadTransfers::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace dormouse
