#include "kv_connector/built_in.h"

#include "kv_connector/example/example_connector.h"
#include "kv_connector/multi/multi_connector.h"
#include "kv_connector/offload/offloading_connector.h"
#include "kv_connector/pull/ipc_connector.h"

namespace dormouse {

std::vector<KvConnectorClass> built_in_classes() {
  return {example_connector_class(), ipc_connector_class(), multi_connector_class(),
          offloading_connector_class()};
}

}  // namespace dormouse
