#include "kv_connector/multi/multi_scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "kv_connector/multi/multi_config.h"
#include "kv_connector/multi/multi_messages.h"
#include "protocol/connector_stats.h"

namespace dormouse {
namespace {

// Adds the members of `params`; tells how many were there already.
std::uint64_t merge_params(Json& merged, const std::string& params) {
  const auto json = parse_json(params);
  DM_CHECK(json && json->object() != nullptr, "kv_transfer_params are a JSON object");
  std::uint64_t clashes = 0;
  for (const auto& [key, value] : *json->object()) {
    if (merged.find(key) == nullptr) {
      merged.add(key, value);
      continue;
    }
    ++clashes;
    log(LogLevel::kError, "kv_connector",
        "Key clash in kv_transfer_params from multiple connectors: {}", key);
  }
  return clashes;
}

}  // namespace

Result<std::unique_ptr<MultiScheduler>> MultiScheduler::create(const KvConnectorContext& context) {
  DM_TRY_ASSIGN(Children halves, make_halves(context, &KvConnectorClass::make_scheduler));
  return std::make_unique<MultiScheduler>(std::move(halves));
}

Status MultiScheduler::check_request(const Request& request) const {
  for (const auto& child : children_)
    DM_TRY(child->check_request(request));
  return {};
}

void MultiScheduler::on_new_request(const KvRequest& request) {
  for (const auto& child : children_)
    child->on_new_request(request);
}

std::optional<KvMatch> MultiScheduler::get_num_new_matched_tokens(const KvRequest& request,
                                                                  std::uint32_t num_computed) {
  KvMatch first;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    const auto match = children_[i]->get_num_new_matched_tokens(request, num_computed);
    if (!match)
      return std::nullopt;
    if (first.tokens > 0 || match->tokens == 0)
      continue;
    first = *match;
    loads_from_[request.id] = i;
  }
  if (first.tokens == 0)
    loads_from_.erase(request.id);
  return first;
}

void MultiScheduler::update_state_after_alloc(const KvRequest& request,
                                              std::span<const BlockId> blocks,
                                              std::uint32_t num_external) {
  const auto chosen = loads_from_.extract(request.id);
  DM_CHECK(num_external == 0 || !chosen.empty(), "what is loaded was matched before");
  for (std::size_t i = 0; i < children_.size(); ++i) {
    const bool loads = !chosen.empty() && chosen.mapped() == i;
    children_[i]->update_state_after_alloc(request, blocks, loads ? num_external : 0);
  }
}

std::string MultiScheduler::build_connector_meta() {
  MultiMetadata metadata{.holders = std::exchange(holders_, {})};
  for (const auto& child : children_)
    metadata.by_child.push_back(child->build_connector_meta());
  return encode(metadata);
}

bool MultiScheduler::has_pending_work() const {
  return !holders_.empty() || std::ranges::any_of(children_, [](const auto& child) {
    return child->has_pending_work();
  });
}

// Each child hears of its own worker half alone.
void MultiScheduler::update_connector_output(const KvConnectorOutput& output) {
  const auto by_child = decode_multi_outputs(output.worker_meta, children_.size());
  DM_CHECK(by_child.has_value(), "the worker half speaks the same language");
  for (std::size_t i = 0; i < children_.size(); ++i)
    children_[i]->update_connector_output((*by_child)[i]);
}

KvRequestFinished MultiScheduler::request_finished(const KvRequest& request,
                                                   std::span<const BlockId> blocks) {
  loads_from_.erase(request.id);
  Json merged;
  std::uint32_t holders = 0;
  for (const auto& child : children_) {
    const KvRequestFinished one = child->request_finished(request, blocks);
    holders += one.delay_free;
    if (!one.kv_transfer_params.empty())
      key_clashes_ += merge_params(merged, one.kv_transfer_params);
  }
  if (holders > 1)
    holders_.push_back({request.id, holders});
  return {.delay_free = holders > 0,
          .kv_transfer_params = merged.is_null() ? std::string() : merged.dump()};
}

void MultiScheduler::set_xfer_handshake_metadata(const std::vector<std::string>& by_rank) {
  std::vector<std::vector<std::string>> by_child(children_.size());
  for (const std::string& rank : by_rank) {
    const auto split = split_children(rank, children_.size());
    DM_CHECK(split.has_value(), "the worker half speaks the same language");
    for (std::size_t i = 0; i < children_.size(); ++i)
      by_child[i].push_back((*split)[i]);
  }
  for (std::size_t i = 0; i < children_.size(); ++i)
    children_[i]->set_xfer_handshake_metadata(by_child[i]);
}

void MultiScheduler::set_model_hash(const std::string& model_hash) {
  for (const auto& child : children_)
    child->set_model_hash(model_hash);
}

bool MultiScheduler::reset_cache() {
  bool all = true;
  for (const auto& child : children_)
    all = child->reset_cache() && all;
  return all;
}

KvConnectorStats MultiScheduler::get_kv_connector_stats() const {
  KvConnectorStats stats = {{"kv_multi_key_clashes_total", static_cast<double>(key_clashes_)}};
  for (const auto& child : children_)
    add_stats(stats, child->get_kv_connector_stats());
  return stats;
}

void MultiScheduler::shutdown() {
  for (const auto& child : children_)
    child->shutdown();
}

}  // namespace dormouse
