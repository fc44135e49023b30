#include "kv_connector/pull/ipc_connector.h"

#include "base/check.h"
#include "kv_connector/pull/pull_scheduler.h"
#include "kv_connector/pull/pull_worker.h"
#include "transfer/ipc/ipc_agent.h"

namespace dormouse {
namespace {

constexpr const char* kName = "IpcConnector";

struct IpcWorker : pull::PullWorker {
  static Result<std::unique_ptr<pull::PullWorker>> create(const KvConnectorContext& context) {
    return pull::PullWorker::create(context, kName, make_ipc_agent);
  }
};

}  // namespace

KvConnectorClass ipc_connector_class() {
  auto result = kv_connector_class<pull::PullScheduler, IpcWorker>(kName);
  result.check_config = [](const KvTransferConfig& config) -> Status {
    DM_TRY_ASSIGN([[maybe_unused]] const auto read, pull::read_pull_config(config));
    return {};
  };
  return result;
}

}  // namespace dormouse
