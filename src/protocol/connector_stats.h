// What connectors count, and sums of it.
#pragma once

#include <string>

#include "dormouse/metrics.h"

namespace dormouse {

// Adds what ranks, halves or children of a connector count under the same name.
void add_stats(KvConnectorStats& sum, const KvConnectorStats& more);

// Appends it under this name.
void append_histogram(KvConnectorStats& stats, const std::string& name, const Histogram& histogram);

}  // namespace dormouse
