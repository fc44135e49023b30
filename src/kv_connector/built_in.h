// The connectors that come with the library.
#pragma once

#include <vector>

#include "dormouse/kv_connector.h"

namespace dormouse {

std::vector<KvConnectorClass> built_in_classes();

}  // namespace dormouse
