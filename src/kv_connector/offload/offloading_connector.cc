#include "kv_connector/offload/offloading_connector.h"

#include "kv_connector/offload/offload_scheduler.h"
#include "kv_connector/offload/offload_worker.h"

namespace dormouse {

KvConnectorClass offloading_connector_class() {
  return kv_connector_class<OffloadScheduler, OffloadWorker>("OffloadingConnector");
}

}  // namespace dormouse
