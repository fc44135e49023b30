#include "kv_connector/multi/multi_connector.h"

#include "kv_connector/multi/multi_config.h"
#include "kv_connector/multi/multi_scheduler.h"
#include "kv_connector/multi/multi_worker.h"

namespace dormouse {

KvConnectorClass multi_connector_class() {
  auto result = kv_connector_class<MultiScheduler, MultiWorker>(kMultiConnector);
  result.follows_mapping = multi_follows_mapping;
  return result;
}

}  // namespace dormouse
