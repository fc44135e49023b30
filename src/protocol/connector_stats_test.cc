#include "protocol/connector_stats.h"

#include <gmock/gmock.h>

namespace dormouse {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(ConnectorStats, HistogramsAddUpAsCountersDo) {
  static constexpr double kBounds[] = {0.5, 2};
  Histogram histogram(kBounds);
  for (const double value : {0.25, 0.5, 1.0, 7.0})
    histogram.observe(value);
  KvConnectorStats stats = {{"kv_pins", 3}};
  append_histogram(stats, "kv_seconds", histogram);
  add_stats(stats, KvConnectorStats(stats));
  EXPECT_THAT(stats, ElementsAre(Pair("kv_pins", 6), Pair("kv_seconds_bucket{le=\"0.5\"}", 4),
                                 Pair("kv_seconds_bucket{le=\"2\"}", 6),
                                 Pair("kv_seconds_bucket{le=\"+Inf\"}", 8),
                                 Pair("kv_seconds_sum", 17.5), Pair("kv_seconds_count", 8)));
}

}  // namespace
}  // namespace dormouse
