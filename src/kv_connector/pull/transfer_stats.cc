#include "kv_connector/pull/transfer_stats.h"

namespace dormouse::pull {

void TransferStats::note(const TransferSample& sample) {
  using Seconds = std::chrono::duration<double>;
  post_seconds_.observe(Seconds(sample.post).count());
  seconds_.observe(Seconds(sample.transfer).count());
  bytes_.observe(static_cast<double>(sample.bytes));
  descriptors_.observe(static_cast<double>(sample.descriptors));
}

void TransferStats::append_to(KvConnectorStats& stats) const {
  append_histogram(stats, "kv_transfer_post_seconds", post_seconds_);
  append_histogram(stats, "kv_transfer_seconds", seconds_);
  append_histogram(stats, "kv_transfer_bytes", bytes_);
  append_histogram(stats, "kv_transfer_descriptors", descriptors_);
}

}  // namespace dormouse::pull
