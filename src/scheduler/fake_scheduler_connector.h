// A connector's scheduler half that answers as it is told, and writes down what it is asked.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "dormouse/kv_connector.h"

namespace dormouse::testing {

class FakeSchedulerConnector final : public SchedulerConnector {
 public:
  std::optional<KvMatch> get_num_new_matched_tokens(const KvRequest& request,
                                                    std::uint32_t num_computed) override {
    if (ask_later.contains(request.id))
      return std::nullopt;
    const auto found = available.find(request.id);
    if (found == available.end() || found->second <= num_computed)
      return KvMatch{};
    return KvMatch{found->second - num_computed, load_is_async};
  }
  void update_state_after_alloc(const KvRequest& request, std::span<const BlockId> blocks,
                                std::uint32_t num_external) override {
    allocated[request.id] = {blocks.begin(), blocks.end()};
    external[request.id] += num_external;
    pending = true;
  }
  std::string build_connector_meta() override {
    pending = false;
    return "meta " + std::to_string(++metas);
  }
  bool has_pending_work() const override { return pending; }
  void update_connector_output(const KvConnectorOutput& output) override {
    worker_metas.push_back(output.worker_meta);
  }
  KvRequestFinished request_finished(const KvRequest& request,
                                     std::span<const BlockId> blocks) override {
    ended.push_back({request.id, *request.finished, request.num_computed, blocks.size()});
    return {.delay_free = keep.contains(request.id) && !blocks.empty(),
            .kv_transfer_params = keep.contains(request.id) ? "{\"token\":1}" : ""};
  }

  struct Ended {
    RequestId id;
    FinishReason reason;
    std::uint32_t computed;
    std::size_t blocks;
  };
  std::map<RequestId, std::uint32_t> available;  // tokens, from the first
  std::set<RequestId> ask_later;
  std::set<RequestId> keep;  // blocks are sent after the end
  bool load_is_async = true;

  std::map<RequestId, std::vector<BlockId>> allocated;
  std::map<RequestId, std::uint32_t> external;
  std::vector<Ended> ended;
  std::vector<std::string> worker_metas;
  bool pending = false;
  int metas = 0;
};

}  // namespace dormouse::testing
