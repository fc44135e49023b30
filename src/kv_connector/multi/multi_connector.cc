#include "kv_connector/multi/multi_connector.h"

#include "base/check.h"
#include "kv_connector/multi/multi_config.h"
#include "kv_connector/multi/multi_scheduler.h"
#include "kv_connector/multi/multi_worker.h"

namespace dormouse {

KvConnectorClass multi_connector_class() {
  auto result = kv_connector_class<MultiScheduler, MultiWorker>(kMultiConnector);
  result.follows_mapping = multi_follows_mapping;
  result.check_config = [](const KvTransferConfig& config) -> Status {
    DM_TRY_ASSIGN([[maybe_unused]] const auto children, multi_children(config));
    return {};
  };
  return result;
}

}  // namespace dormouse
