#include "kv_connector/multi/multi_worker.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "kv_connector/multi/multi_config.h"
#include "kv_connector/multi/multi_messages.h"
#include "protocol/connector_stats.h"

namespace dormouse {

Result<std::unique_ptr<MultiWorker>> MultiWorker::create(const KvConnectorContext& context) {
  DM_TRY_ASSIGN(Children halves, make_halves(context, &KvConnectorClass::make_worker));
  return std::make_unique<MultiWorker>(std::move(halves));
}

MultiWorker::MultiWorker(Children children)
    : children_(std::move(children)), outputs_(children_.size()) {
  for (const auto& child : children_)
    if (auto* follower = dynamic_cast<FollowsMapping*>(child.get()))
      followers_.push_back(follower);
}

Status MultiWorker::register_kv_caches(const KvCaches& caches) {
  caches_ = caches;
  for (const auto& child : children_)
    DM_TRY(child->register_kv_caches(caches));
  return {};
}

void MultiWorker::bind_connector_metadata(const std::string& metadata) {
  const auto decoded = decode_multi_metadata(metadata, children_.size());
  DM_CHECK(decoded.has_value(), "the scheduler half speaks the same language");
  for (const MultiHolders& each : decoded->holders)
    holders_.emplace(each.request, each.count);
  for (std::size_t i = 0; i < children_.size(); ++i)
    children_[i]->bind_connector_metadata(decoded->by_child[i]);
}

void MultiWorker::clear_connector_metadata() {
  for (const auto& child : children_)
    child->clear_connector_metadata();
}

void MultiWorker::handle_preemptions() {
  for (const auto& child : children_)
    child->handle_preemptions();
}

void MultiWorker::start_load_kv() {
  for (const auto& child : children_)
    child->start_load_kv();
}

void MultiWorker::wait_for_layer_load(std::uint32_t layer) {
  for (const auto& child : children_)
    child->wait_for_layer_load(layer);
}

void MultiWorker::save_kv_layer(std::uint32_t layer) {
  for (const auto& child : children_)
    child->save_kv_layer(layer);
}

void MultiWorker::wait_for_save() {
  for (const auto& child : children_)
    child->wait_for_save();
}

bool MultiWorker::is_last_holder(RequestId request) {
  const auto found = holders_.find(request);
  if (found == holders_.end())
    return true;
  if (--found->second > 0)
    return false;
  holders_.erase(found);
  return true;
}

void MultiWorker::get_finished(const RequestIds& finished, KvConnectorOutput& output) {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    KvConnectorOutput own;
    children_[i]->get_finished(finished, own);
    for (const RequestId request : own.finished_sending)
      if (is_last_holder(request))
        output.finished_sending.push_back(request);
    output.finished_recving.insert(output.finished_recving.end(), own.finished_recving.begin(),
                                   own.finished_recving.end());
    outputs_[i] = std::move(own);
  }
}

void MultiWorker::get_block_ids_with_load_errors(KvConnectorOutput& output) {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    KvConnectorOutput& own = outputs_[i];
    children_[i]->get_block_ids_with_load_errors(own);
    output.invalid_block_ids.insert(output.invalid_block_ids.end(), own.invalid_block_ids.begin(),
                                    own.invalid_block_ids.end());
    if (output.failure.empty())
      output.failure = own.failure;
  }
}

std::string MultiWorker::build_connector_worker_meta() {
  for (std::size_t i = 0; i < children_.size(); ++i)
    outputs_[i].worker_meta = children_[i]->build_connector_worker_meta();
  return encode(std::exchange(outputs_, std::vector<KvConnectorOutput>(children_.size())));
}

std::string MultiWorker::get_handshake_metadata() {
  std::vector<std::string> by_child;
  for (const auto& child : children_)
    by_child.push_back(child->get_handshake_metadata());
  return join_children(by_child);
}

KvConnectorStats MultiWorker::get_kv_connector_stats() const {
  KvConnectorStats stats;
  for (const auto& child : children_)
    add_stats(stats, child->get_kv_connector_stats());
  return stats;
}

void MultiWorker::shutdown() {
  for (const auto& child : children_)
    child->shutdown();
}

Status MultiWorker::release_kv_caches(Unmapping& unmapping) {
  for (std::size_t released = 0; released < followers_.size(); ++released) {
    Status status = followers_[released]->release_kv_caches(unmapping);
    if (status)
      continue;
    while (released-- > 0)
      if (const Status restored = followers_[released]->restore_kv_caches(caches_); !restored)
        log(LogLevel::kError, "kv_connector", "a connector could not be restored: {}",
            restored.error().message);
    return status;
  }
  return {};
}

Status MultiWorker::restore_kv_caches(const KvCaches& caches) {
  // With the mapping went every block that anybody held.
  if (caches.generation != caches_.generation)
    holders_.clear();
  caches_ = caches;
  Status first;
  for (FollowsMapping* follower : followers_)
    keep_first(first, follower->restore_kv_caches(caches));
  return first;
}

}  // namespace dormouse
