// IpcConnector: pulls between engines of one host, whose blocks are mapped and copied.
#pragma once

#include "dormouse/kv_connector.h"

namespace dormouse {

KvConnectorClass ipc_connector_class();

}  // namespace dormouse
