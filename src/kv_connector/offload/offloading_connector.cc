#include "kv_connector/offload/offloading_connector.h"

#include "base/check.h"
#include "kv_connector/offload/offload_config.h"
#include "kv_connector/offload/offload_scheduler.h"
#include "kv_connector/offload/offload_worker.h"

namespace dormouse {

KvConnectorClass offloading_connector_class() {
  auto result = kv_connector_class<OffloadScheduler, OffloadWorker>("OffloadingConnector");
  result.check_config = [](const KvTransferConfig& config) -> Status {
    DM_TRY_ASSIGN([[maybe_unused]] const auto read, parse_offload_config(config));
    return {};
  };
  return result;
}

}  // namespace dormouse
