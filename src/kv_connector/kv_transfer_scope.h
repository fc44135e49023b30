// A rank's KV connector for as long as it lives: built, given the cache, subscribed; in reverse at
// the end. It is the one thing of connectors that a worker knows.
//
// The subscription for `kv_cache` exists exactly when the connector's class supports sleep mode.
//
// Owns:    the worker half and its subscription.
// Threads: one, the worker's.
// Order:   before_forward, the layers if there are any, after_forward or forward_failed, again.
#pragma once

#include <memory>
#include <string>

#include "dormouse/kv_connector.h"
#include "kv_connector/registry.h"
#include "memory/tagged_allocator.h"

namespace dormouse {

class KvTransferScope {
 public:
  // `memory` is the whole cache, under kKvCacheTag of `allocator`; all outlive the scope.
  static Result<std::unique_ptr<KvTransferScope>> initialize(const KvConnectorContext& context,
                                                             TaggedAllocator& allocator,
                                                             const TaggedMemory& memory,
                                                             VmmDriver& driver);
  ~KvTransferScope();

  void before_forward(const std::string& metadata);
  void wait_for_layer_load(std::uint32_t layer) { connector_->wait_for_layer_load(layer); }
  void save_kv_layer(std::uint32_t layer) { connector_->save_kv_layer(layer); }
  // Leaves what finished for the next step's report.
  void forward_failed() { connector_->clear_connector_metadata(); }
  KvConnectorOutput after_forward(bool computed, const RequestIds& finished);

  // Empty while the cache is not mapped.
  std::string handshake_metadata() const;

 private:
  class Listener;
  KvTransferScope(std::unique_ptr<WorkerConnector> connector, TaggedAllocator& allocator);

  std::unique_ptr<WorkerConnector> connector_;
  TaggedAllocator& allocator_;
  std::unique_ptr<Listener> listener_;
  MappingSubscription subscription_;
};

}  // namespace dormouse
