// Sums of what connectors count.
#pragma once

#include "dormouse/kv_connector.h"

namespace dormouse {

// Adds what ranks, halves or children of a connector count under the same name.
void add_stats(KvConnectorStats& sum, const KvConnectorStats& more);

}  // namespace dormouse
