#include "kv_connector/pull/transfer_stats.h"

namespace dormouse::pull {

void TransferStats::note(std::chrono::steady_clock::duration post,
                         std::chrono::steady_clock::duration transfer,
                         std::span<const ReadSpan> spans) {
  using Seconds = std::chrono::duration<double>;
  std::uint64_t bytes = 0;
  for (const ReadSpan& span : spans)
    bytes += span.bytes;
  post_seconds_.observe(Seconds(post).count());
  seconds_.observe(Seconds(transfer).count());
  bytes_.observe(static_cast<double>(bytes));
  descriptors_.observe(static_cast<double>(spans.size()));
}

void TransferStats::append_to(KvConnectorStats& stats) const {
  append_histogram(stats, "kv_transfer_post_seconds", post_seconds_);
  append_histogram(stats, "kv_transfer_seconds", seconds_);
  append_histogram(stats, "kv_transfer_bytes", bytes_);
  append_histogram(stats, "kv_transfer_descriptors", descriptors_);
}

}  // namespace dormouse::pull
