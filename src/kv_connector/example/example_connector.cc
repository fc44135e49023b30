#include "kv_connector/example/example_connector.h"

#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "kv_connector/block_key.h"
#include "kv_connector/extra_config.h"
#include "kv_connector/offload/disk_tier.h"

namespace dormouse {
namespace {

Result<std::string> storage_path(const KvTransferConfig& config) {
  std::string path;
  DM_TRY(read_extra_config(
      config, [&](FieldReader& fields) { fields.string("shared_storage_path", path, 4000); }));
  if (path.empty())
    return fail(ErrorCode::kInvalidArgument, "the ExampleConnector needs a shared_storage_path",
                "shared_storage_path");
  return path;
}

class ExampleScheduler final : public SchedulerConnector {
 public:
  static Result<std::unique_ptr<ExampleScheduler>> create(const KvConnectorContext& context) {
    DM_TRY_ASSIGN(std::string path, storage_path(context.config));
    return std::make_unique<ExampleScheduler>(context, std::move(path));
  }
  ExampleScheduler(const KvConnectorContext& context, std::string path)
      : context_(context), path_(std::move(path)) {}

  std::optional<KvMatch> get_num_new_matched_tokens(const KvRequest& request,
                                                    std::uint32_t num_computed) override {
    const auto keys = keys_of(request);
    std::size_t at = num_computed / context_.shape.block_size;
    std::uint32_t tokens = 0;
    for (; at < keys.size() && exists(keys[at]); ++at)
      tokens += context_.shape.block_size;
    return KvMatch{.tokens = tokens, .load_is_async = false};
  }

  void update_state_after_alloc(const KvRequest& request, std::span<const BlockId> blocks,
                                std::uint32_t num_external) override {
    const auto keys = keys_of(request);
    const std::size_t first = request.num_computed / context_.shape.block_size;
    for (std::size_t i = 0; i < num_external / context_.shape.block_size; ++i)
      loads_.push_back(Json::Array{keys[first + i], blocks[first + i]});
    admitted_.insert(request.id);
  }

  std::string build_connector_meta() override {
    if (loads_.empty() && saves_.empty())
      return {};
    Json::Array saves;
    for (auto& [request, blocks] : std::exchange(saves_, {}))
      saves.push_back(Json::Array{request, std::move(blocks)});
    return to_msgpack(Json::Array{std::exchange(loads_, {}), std::move(saves)});
  }
  bool has_pending_work() const override { return !saves_.empty(); }

  KvRequestFinished request_finished(const KvRequest& request,
                                     std::span<const BlockId> blocks) override {
    if (admitted_.erase(request.id) == 0 || request.finished == FinishReason::kError)
      return {};
    const auto keys = keys_of(request);
    Json::Array wanted;
    for (std::size_t i = 0; i < keys.size(); ++i)
      if ((i + 1) * context_.shape.block_size <= request.num_computed && !exists(keys[i]))
        wanted.push_back(Json::Array{keys[i], blocks[i]});
    if (wanted.empty())
      return {};
    saves_.emplace(request.id, std::move(wanted));
    return {.delay_free = true};
  }

  // The mapping of the blocks that are still to be saved is gone; that they go is still reported.
  void set_xfer_handshake_metadata(const std::vector<std::string>& /*by_rank*/) override {
    for (auto& [request, blocks] : saves_)
      blocks.clear();
  }
  // What runs now may be computed with both: it is not saved.
  void set_model_hash(const std::string& model_hash) override {
    context_.model_hash = model_hash;
    admitted_.clear();
  }

 private:
  std::vector<std::string> keys_of(const KvRequest& request) const {
    const std::uint32_t size = context_.shape.block_size;
    std::vector<std::string> keys;
    std::string key =
        root_key(context_.shape, context_.world_size, context_.model_hash, request.cache_salt);
    for (std::size_t at = 0; at + size <= request.prompt_length; at += size)
      keys.push_back(key = child_key(key, request.tokens.subspan(at, size)));
    return keys;
  }
  bool exists(const std::string& key) const {
    for (std::uint32_t rank = 0; rank < context_.world_size; ++rank)
      if (!DiskTier::exists(path_, key, rank))
        return false;
    return true;
  }

  KvConnectorContext context_;
  const std::string path_;
  Json::Array loads_;                       // [key, block]
  std::map<RequestId, Json::Array> saves_;  // [key, block]
  std::set<RequestId> admitted_;
};

class ExampleWorker final : public WorkerConnector, public FollowsMapping {
 public:
  static Result<std::unique_ptr<ExampleWorker>> create(const KvConnectorContext& context) {
    DM_TRY_ASSIGN(std::string path, storage_path(context.config));
    DM_TRY_ASSIGN(auto files, DiskTier::create({.path = std::move(path), .rank = context.rank}));
    return std::make_unique<ExampleWorker>(context.shape, std::move(files));
  }
  ExampleWorker(KvShape shape, std::unique_ptr<DiskTier> files)
      : shape_(std::move(shape)), files_(std::move(files)) {}

  Status register_kv_caches(const KvCaches& caches) override { return restore_kv_caches(caches); }
  Status release_kv_caches(Unmapping& /*unmapping*/) override { return {}; }
  Status restore_kv_caches(const KvCaches& caches) override {
    cache_ = caches.bytes;
    return {};
  }

  void bind_connector_metadata(const std::string& metadata) override {
    const auto message = metadata.empty() ? Json::Array{Json::Array{}, Json::Array{}}
                                          : *parse_msgpack(metadata)->array();
    wanted_ = *message[0].array();
    saves_ = *message[1].array();
  }
  void clear_connector_metadata() override { loads_.clear(); }

  void start_load_kv() override {
    for (const Json& save : std::exchange(saves_, {})) {
      for (const Json& each : *(*save.array())[1].array())
        files_->write(*(*each.array())[0].string(), block((*each.array())[1]));
      finished_.push_back((*save.array())[0].as_unsigned());
    }
    for (const Json& each : std::exchange(wanted_, {})) {
      Load load{block((*each.array())[1]), std::vector<std::byte>(shape_.block_bytes())};
      if (const Status read = files_->read(*(*each.array())[0].string(), load.bytes); !read) {
        failed_.invalid_block_ids.push_back(static_cast<BlockId>((*each.array())[1].as_unsigned()));
        failed_.failure = read.error().message;
      } else {
        loads_.push_back(std::move(load));
      }
    }
  }
  void wait_for_layer_load(std::uint32_t layer) override {
    const std::size_t bytes = 2 * shape_.plane_bytes();  // keys, then values
    for (const Load& load : loads_)
      std::memcpy(load.to.data() + layer * bytes, load.bytes.data() + layer * bytes, bytes);
  }

  void get_finished(const RequestIds& /*finished*/, KvConnectorOutput& output) override {
    output.finished_sending = std::exchange(finished_, {});
  }
  void get_block_ids_with_load_errors(KvConnectorOutput& output) override {
    output.invalid_block_ids = std::exchange(failed_.invalid_block_ids, {});
    output.failure = std::exchange(failed_.failure, {});
  }

 private:
  struct Load {
    std::span<std::byte> to;
    std::vector<std::byte> bytes;
  };
  std::span<std::byte> block(const Json& id) const {
    return cache_.subspan(id.as_unsigned() * shape_.block_bytes(), shape_.block_bytes());
  }

  const KvShape shape_;
  const std::unique_ptr<DiskTier> files_;
  std::span<std::byte> cache_;
  Json::Array wanted_;
  Json::Array saves_;
  std::vector<Load> loads_;
  RequestIds finished_;
  KvConnectorOutput failed_;
};

}  // namespace

KvConnectorClass example_connector_class() {
  return kv_connector_class<ExampleScheduler, ExampleWorker>("ExampleConnector");
}

}  // namespace dormouse
