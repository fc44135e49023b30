// OffloadingConnector: keeps the KV of requests that ended in host memory, and on disk if a folder
// is named, and brings it back for requests that begin alike, also after a sleep; from disk also
// after a restart. Its configuration: offload_config.h.
#pragma once

#include "dormouse/kv_connector.h"

namespace dormouse {

KvConnectorClass offloading_connector_class();

}  // namespace dormouse
