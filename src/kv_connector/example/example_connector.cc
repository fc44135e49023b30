#include "kv_connector/example/example_connector.h"

#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "kv_connector/block_key.h"
#include "kv_connector/extra_config.h"
#include "kv_connector/offload/disk_tier.h"
#include "kv_connector/wire.h"

namespace dormouse {
namespace {

constexpr JsonLimits kLimits = {.depth = 8, .values = std::size_t{1} << 24};

struct NamedBlock {
  std::string key;
  BlockId block = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("key", self.key);
    io("block", self.block);
  }
};

struct Save {
  RequestId request = 0;
  std::vector<NamedBlock> blocks;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("request", self.request);
    io("blocks", self.blocks);
  }
};

// What the scheduler half asks of the workers.
struct Work {
  std::vector<NamedBlock> loads;
  std::vector<Save> saves;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("loads", self.loads);
    io("saves", self.saves);
  }
};

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
      work_.loads.push_back({keys[first + i], blocks[first + i]});
    admitted_.insert(request.id);
  }

  std::string build_connector_meta() override {
    if (work_.loads.empty() && work_.saves.empty())
      return {};
    return encode_fields(std::exchange(work_, {}));
  }
  bool has_pending_work() const override { return !work_.saves.empty(); }

  KvRequestFinished request_finished(const KvRequest& request,
                                     std::span<const BlockId> blocks) override {
    if (admitted_.erase(request.id) == 0 || request.finished == FinishReason::kError)
      return {};
    const auto keys = keys_of(request);
    Save save{.request = request.id};
    for (std::size_t i = 0; i < keys.size(); ++i)
      if ((i + 1) * context_.shape.block_size <= request.num_computed && !exists(keys[i]))
        save.blocks.push_back({keys[i], blocks[i]});
    if (save.blocks.empty())
      return {};
    work_.saves.push_back(std::move(save));
    return {.delay_free = true};
  }

  // The mapping of the blocks that are still to be saved is gone; that they go is still reported.
  void set_xfer_handshake_metadata(const std::vector<std::string>& /*by_rank*/) override {
    for (Save& save : work_.saves)
      save.blocks.clear();
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
  Work work_;
  std::set<RequestId> admitted_;
};

class ExampleWorker final : public WorkerConnector, public FollowsMapping {
 public:
  static Result<std::unique_ptr<ExampleWorker>> create(const KvConnectorContext& context) {
    DM_TRY_ASSIGN(std::string path, storage_path(context.config));
    auto files = DiskTier::create({.path = std::move(path), .rank = context.rank});
    if (!files)
      return fail(files.error().code, files.error().message, "shared_storage_path");
    return std::make_unique<ExampleWorker>(context.shape, std::move(*files));
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
    if (metadata.empty())
      return;
    auto work = decode_fields<Work>(metadata, "what to load and to save", kLimits);
    DM_CHECK(work.has_value(), "the scheduler half speaks the same language");
    work_ = std::move(*work);
  }
  void clear_connector_metadata() override { loads_.clear(); }

  void start_load_kv() override {
    for (const Save& save : work_.saves) {
      for (const NamedBlock& each : save.blocks)
        files_->write(each.key, block(each.block));
      finished_.push_back(save.request);
    }
    for (const NamedBlock& each : work_.loads) {
      Load load{block(each.block), std::vector<std::byte>(shape_.block_bytes())};
      if (const Status read = files_->read(each.key, load.bytes); !read) {
        failed_.invalid_block_ids.push_back(each.block);
        failed_.failure = read.error().message;
      } else {
        loads_.push_back(std::move(load));
      }
    }
    work_ = {};
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
  std::span<std::byte> block(BlockId id) const {
    const std::size_t size = shape_.block_bytes();
    DM_CHECK(id < cache_.size() / size, "a block of the cache");
    return cache_.subspan(id * size, size);
  }

  const KvShape shape_;
  const std::unique_ptr<DiskTier> files_;
  std::span<std::byte> cache_;
  Work work_;
  std::vector<Load> loads_;
  RequestIds finished_;
  KvConnectorOutput failed_;
};

}  // namespace

KvConnectorClass example_connector_class() {
  return kv_connector_class<ExampleScheduler, ExampleWorker>("ExampleConnector");
}

}  // namespace dormouse
