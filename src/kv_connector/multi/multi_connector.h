// MultiConnector: several connectors side by side. A request is loaded by the first that has
// something and stored by all. It follows the mapping exactly if every configured child does.
// Its configuration: multi_config.h.
#pragma once

#include "dormouse/kv_connector.h"

namespace dormouse {

KvConnectorClass multi_connector_class();

}  // namespace dormouse
