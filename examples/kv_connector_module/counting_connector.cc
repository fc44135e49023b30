// A connector that moves nothing: it counts requests, steps and layers, and shows what every
// connector has.
#include <utility>

#include "dormouse/kv_connector.h"

namespace {

using namespace dormouse;

class CountingScheduler final : public SchedulerConnector {
 public:
  static Result<std::unique_ptr<CountingScheduler>> create(const KvConnectorContext& /*context*/) {
    return std::make_unique<CountingScheduler>();
  }

  std::optional<KvMatch> get_num_new_matched_tokens(const KvRequest& /*request*/,
                                                    std::uint32_t /*num_computed*/) override {
    return KvMatch{};  // nothing beyond what is computed here
  }
  void update_state_after_alloc(const KvRequest& /*request*/, std::span<const BlockId> /*blocks*/,
                                std::uint32_t /*num_external*/) override {
    ++admitted_;
  }
  std::string build_connector_meta() override { return {}; }
  KvRequestFinished request_finished(const KvRequest& /*request*/,
                                     std::span<const BlockId> /*blocks*/) override {
    ++finished_;
    return {};  // the blocks may go at once
  }
  KvConnectorStats get_kv_connector_stats() const override {
    return {{"counting_admitted_total", admitted_}, {"counting_finished_total", finished_}};
  }

 private:
  double admitted_ = 0;
  double finished_ = 0;
};

class CountingWorker final : public WorkerConnector, public FollowsMapping {
 public:
  static Result<std::unique_ptr<CountingWorker>> create(const KvConnectorContext& /*context*/) {
    return std::make_unique<CountingWorker>();
  }

  Status register_kv_caches(const KvCaches& caches) override { return restore_kv_caches(caches); }
  void bind_connector_metadata(const std::string& /*metadata*/) override {}
  void start_load_kv() override { ++steps_; }
  void wait_for_layer_load(std::uint32_t /*layer*/) override { ++layers_loaded_; }
  void save_kv_layer(std::uint32_t /*layer*/) override { ++layers_saved_; }
  void get_finished(const RequestIds& /*finished*/, KvConnectorOutput& /*output*/) override {}
  KvConnectorStats get_kv_connector_stats() const override {
    return {{"counting_steps_total", steps_},
            {"counting_layers_loaded_total", layers_loaded_},
            {"counting_layers_saved_total", layers_saved_},
            {"counting_mappings_total", mappings_}};
  }

  // Nothing is in flight between steps and nothing is registered anywhere.
  Status release_kv_caches(Unmapping& /*unmapping*/) override { return {}; }
  Status restore_kv_caches(const KvCaches& caches) override {
    mappings_ += std::exchange(generation_, caches.generation) != caches.generation;
    return {};
  }

 private:
  double steps_ = 0;
  double layers_loaded_ = 0;
  double layers_saved_ = 0;
  double mappings_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace

DORMOUSE_KV_CONNECTOR_MODULE(
    (dormouse::kv_connector_class<CountingScheduler, CountingWorker>("CountingConnector")))
