#include "protocol/connector_stats.h"

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

}  // namespace dormouse
