#include "protocol/connector_stats.h"

#include <fmt/core.h>

#include <algorithm>

namespace dormouse {

void add_stats(KvConnectorStats& sum, const KvConnectorStats& more) {
  for (const auto& [name, value] : more) {
    const auto found = std::ranges::find(sum, name, &KvConnectorStats::value_type::first);
    if (found == sum.end())
      sum.emplace_back(name, value);
    else
      found->second += value;
  }
}

void append_histogram(KvConnectorStats& stats, const std::string& name,
                      const Histogram& histogram) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
    count += histogram.counts()[i];
    const std::string bound =
        i < histogram.bounds().size() ? fmt::format("{}", histogram.bounds()[i]) : "+Inf";
    stats.emplace_back(fmt::format("{}_bucket{{le=\"{}\"}}", name, bound),
                       static_cast<double>(count));
  }
  stats.emplace_back(name + "_sum", histogram.sum());
  stats.emplace_back(name + "_count", static_cast<double>(count));
}

}  // namespace dormouse
