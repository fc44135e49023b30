#include "kv_connector/offload/offload_worker.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "kv_connector/offload/offload_config.h"

namespace dormouse {
namespace {

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) {
  std::memcpy(to.data(), from.data(), to.size());
}

}  // namespace

Result<std::unique_ptr<OffloadWorker>> OffloadWorker::create(const KvConnectorContext& context) {
  return create(context, {.copy = copy_bytes, .before_file = [] {}});
}

Result<std::unique_ptr<OffloadWorker>> OffloadWorker::create(const KvConnectorContext& context,
                                                             OffloadTransfers::Steps steps) {
  DM_TRY_ASSIGN(const OffloadConfig config, parse_offload_config(context));
  DM_TRY_ASSIGN(SlotMemory slots,
                SlotMemory::create(config.num_slots, context.shape.block_bytes()));
  std::unique_ptr<DiskTier> disk;
  if (!config.disk_path.empty()) {
    DM_TRY_ASSIGN(disk, DiskTier::create({.path = config.disk_path,
                                          .limit_bytes = config.disk_bytes,
                                          .rank = context.rank}));
  }
  return std::make_unique<OffloadWorker>(std::make_shared<OffloadTransfers>(
      OffloadTransfers::Options{.rank = context.rank,
                                .num_blocks = context.num_blocks,
                                .num_threads = config.num_threads,
                                .verify = context.config.verify_kv,
                                .timeout = config.transfer_timeout},
      std::move(slots), std::move(disk), std::move(steps)));
}

Status OffloadWorker::register_kv_caches(const KvCaches& caches) {
  DM_TRY(restore_kv_caches(caches));
  transfers_->start();
  return {};
}

void OffloadWorker::bind_connector_metadata(const std::string& metadata) {
  bound_.clear();
  if (metadata.empty())
    return;
  auto message = decode_fields<OffloadJobs>(metadata, "offload jobs", kOffloadMessageLimits);
  DM_CHECK(message.has_value(), "the scheduler half speaks the same language");
  bound_ = std::move(message->jobs);
}

void OffloadWorker::start_load_kv() {
  for (OffloadJob& job : std::exchange(bound_, {}))
    transfers_->submit(std::move(job));
}

// The transfers' word on jobs and on requests is taken together, so that no job ends in between.
void OffloadWorker::get_finished(const RequestIds& /*finished*/, KvConnectorOutput& output) {
  DM_CHECK(told_.report.empty(), "every step ends with the worker's metadata");
  told_ = transfers_->take();
  output.finished_sending = std::exchange(told_.output.finished_sending, {});
  output.finished_recving = std::exchange(told_.output.finished_recving, {});
}

void OffloadWorker::get_block_ids_with_load_errors(KvConnectorOutput& output) {
  output.invalid_block_ids = std::exchange(told_.output.invalid_block_ids, {});
  output.failure = std::exchange(told_.output.failure, {});
}

std::string OffloadWorker::build_connector_worker_meta() {
  const OffloadReport report = std::exchange(told_.report, {});
  return report.empty() ? std::string() : encode_fields(report);
}

KvConnectorStats OffloadWorker::get_kv_connector_stats() const {
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  const OffloadTransfers::Counters counters = transfers_->counters();
  KvConnectorStats stats = {{"kv_offload_stored_blocks_total", number(counters.stored)},
                            {"kv_offload_dropped_blocks_total", number(counters.dropped)},
                            {"kv_offload_loaded_blocks_total", number(counters.loaded)},
                            {"kv_offload_unwritten_blocks_total", number(counters.unwritten)},
                            {"kv_offload_host_bytes", number(counters.host_bytes)}};
  if (transfers_->disk() != nullptr)
    transfers_->disk()->add_stats(stats);
  return stats;
}

Status OffloadWorker::release_kv_caches(Unmapping& unmapping) {
  DM_TRY(transfers_->release(unmapping));
  if (const std::uint64_t bytes = transfers_->counters().host_bytes; bytes > 0)
    unmapping.kept.push_back({"OffloadingConnector's host tier", bytes,
                              "prefixes that come back without being computed"});
  return {};
}

Status OffloadWorker::restore_kv_caches(const KvCaches& caches) {
  transfers_->set_mapping(caches.bytes, caches.generation);
  return {};
}

}  // namespace dormouse
