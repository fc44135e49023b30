#include "kv_connector/kv_transfer_scope.h"

#include "base/check.h"

namespace dormouse {
namespace {

KvCaches caches_now(const TaggedAllocator& allocator, const TaggedMemory& memory,
                    VmmDriver& driver) {
  KvCaches caches{.bytes = memory.bytes(), .driver = &driver};
  caches.generation = allocator.usage().at(kKvCacheTag.name()).generation;
  for (const BlockHandle block : allocator.blocks_of(memory))
    caches.device_blocks.push_back(block.id);
  return caches;
}

}  // namespace

class KvTransferScope::Listener final : public MappingListener {
 public:
  Listener(FollowsMapping& connector, const TaggedAllocator& allocator, const TaggedMemory& memory,
           VmmDriver& driver)
      : connector_(connector), allocator_(allocator), memory_(memory), driver_(driver) {}

  Status before_unmap(Unmapping& unmapping) override {
    return connector_.release_kv_caches(unmapping);
  }
  Status after_map() override {
    return connector_.restore_kv_caches(caches_now(allocator_, memory_, driver_));
  }

 private:
  FollowsMapping& connector_;
  const TaggedAllocator& allocator_;
  const TaggedMemory& memory_;
  VmmDriver& driver_;
};

KvTransferScope::KvTransferScope(std::unique_ptr<WorkerConnector> connector,
                                 TaggedAllocator& allocator)
    : connector_(std::move(connector)), allocator_(allocator) {}

Result<std::unique_ptr<KvTransferScope>> KvTransferScope::initialize(
    const KvConnectorContext& context, TaggedAllocator& allocator, const TaggedMemory& memory,
    VmmDriver& driver) {
  DM_TRY_ASSIGN(const KvConnectorClass found, find_kv_connector(context.config));
  DM_TRY_ASSIGN(std::unique_ptr<WorkerConnector> connector, found.make_worker(context));
  std::unique_ptr<KvTransferScope> scope(new KvTransferScope(std::move(connector), allocator));
  DM_TRY(scope->connector_->register_kv_caches(caches_now(allocator, memory, driver)));
  if (!found.follows_mapping(context.config))
    return scope;
  auto* follower = dynamic_cast<FollowsMapping*>(scope->connector_.get());
  DM_CHECK(follower != nullptr, "a class that declares support for sleep mode can be called");
  scope->listener_ = std::make_unique<Listener>(*follower, allocator, memory, driver);
  scope->subscription_ = allocator.subscribe(kKvCacheTag, *scope->listener_);
  return scope;
}

KvTransferScope::~KvTransferScope() {
  subscription_ = {};
  connector_->shutdown();
}

void KvTransferScope::before_forward(const std::string& metadata) {
  connector_->bind_connector_metadata(metadata);
  connector_->handle_preemptions();
  connector_->start_load_kv();
}

KvConnectorOutput KvTransferScope::after_forward(bool computed, const RequestIds& finished) {
  if (computed)
    connector_->wait_for_save();
  KvConnectorOutput output;
  connector_->get_finished(finished, output);
  connector_->get_block_ids_with_load_errors(output);
  output.worker_meta = connector_->build_connector_worker_meta();
  connector_->clear_connector_metadata();
  if (!computed)
    output.stats = connector_->get_kv_connector_stats();
  return output;
}

std::string KvTransferScope::handshake_metadata() const {
  return allocator_.is_mapped(kKvCacheTag) ? connector_->get_handshake_metadata() : std::string();
}

}  // namespace dormouse
