#include "transfer/ipc/span_copier.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/streaming_copy.h"

namespace dormouse {
namespace {

constexpr std::size_t kStretch = std::size_t{256} << 10;
constexpr std::size_t kStretchesWorthThreads = 4;
constexpr std::size_t kStretchesWorthStreaming = 128;

// A place in the spans as if they stood one behind the other.
struct Place {
  std::size_t span = 0;
  std::size_t offset = 0;
};

// Where each stretch begins.
std::vector<Place> cut(std::span<const ReadSpan> spans) {
  std::vector<Place> stretches;
  std::size_t to_next = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    std::size_t offset = to_next;
    for (; offset < spans[i].bytes; offset += kStretch)
      stretches.push_back({i, offset});
    to_next = offset - spans[i].bytes;
  }
  return stretches;
}

using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t size);

void copy_plain(std::byte* to, const std::byte* from, std::size_t size) {
  std::memcpy(to, from, size);
}

void copy_stretch(Copy copy, const std::byte* remote, std::span<const ReadSpan> spans, Place at) {
  for (std::size_t left = kStretch; left > 0 && at.span < spans.size(); ++at.span, at.offset = 0) {
    const ReadSpan& span = spans[at.span];
    const std::size_t part = std::min(left, span.bytes - at.offset);
    if (part > 0)
      copy(span.local + at.offset, remote + span.remote_offset + at.offset, part);
    left -= part;
  }
}

Status check(const ReadControl& control) {
  if (control.cancelled && *control.cancelled)
    return fail(ErrorCode::kCancelled, "the read was cancelled");
  if (std::chrono::steady_clock::now() >= control.deadline)
    return fail(ErrorCode::kDeadlineExceeded, "the read did not end in time");
  return {};
}

}  // namespace

Status SpanCopier::copy(const std::byte* remote, std::span<const ReadSpan> spans,
                        const ReadControl& control) {
  const std::vector<Place> stretches = cut(spans);
  const Copy copy_part = stretches.size() >= kStretchesWorthStreaming ? copy_streaming : copy_plain;
  std::atomic<bool> stopped = false;
  const auto copy_one = [&](std::size_t i) {
    if (stopped || !check(control))
      stopped = true;
    else
      copy_stretch(copy_part, remote, spans, stretches[i]);
  };
  std::unique_lock threads(busy_, std::defer_lock);
  if (stretches.size() >= kStretchesWorthThreads && threads.try_lock())
    pool_.parallel_for(stretches.size(), copy_one);
  else
    for (std::size_t i = 0; i < stretches.size() && !stopped; ++i)
      copy_one(i);
  if (!stopped)
    return {};
  DM_TRY(check(control));
  return fail(ErrorCode::kCancelled, "the read was cancelled");
}

}  // namespace dormouse
