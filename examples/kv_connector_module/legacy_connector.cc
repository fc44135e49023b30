// A connector that does not follow the mapping: it says nothing about sleep, so an engine with
// sleep mode refuses it.
#include "dormouse/kv_connector.h"

namespace {

using namespace dormouse;

class LegacyScheduler final : public SchedulerConnector {
 public:
  static Result<std::unique_ptr<LegacyScheduler>> create(const KvConnectorContext& /*context*/) {
    return std::make_unique<LegacyScheduler>();
  }
  std::optional<KvMatch> get_num_new_matched_tokens(const KvRequest& /*request*/,
                                                    std::uint32_t /*num_computed*/) override {
    return KvMatch{};
  }
  void update_state_after_alloc(const KvRequest& /*request*/, std::span<const BlockId> /*blocks*/,
                                std::uint32_t /*num_external*/) override {}
  std::string build_connector_meta() override { return {}; }
  KvRequestFinished request_finished(const KvRequest& /*request*/,
                                     std::span<const BlockId> /*blocks*/) override {
    return {};
  }
};

class LegacyWorker final : public WorkerConnector {
 public:
  static Result<std::unique_ptr<LegacyWorker>> create(const KvConnectorContext& /*context*/) {
    return std::make_unique<LegacyWorker>();
  }
  Status register_kv_caches(const KvCaches& caches) override {
    cache_ = caches.bytes;  // and keeps it: whatever it registers would pin the old pages
    return {};
  }
  void bind_connector_metadata(const std::string& /*metadata*/) override {}
  void start_load_kv() override {}
  void get_finished(const RequestIds& /*finished*/, KvConnectorOutput& /*output*/) override {}

 private:
  std::span<std::byte> cache_;
};

}  // namespace

DORMOUSE_KV_CONNECTOR_MODULE(
    (dormouse::kv_connector_class<LegacyScheduler, LegacyWorker>("LegacyConnector")))
