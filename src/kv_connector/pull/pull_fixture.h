// What the tests of pulling share: engines of one rank whose two halves are driven by hand, over
// real memory, that meet in a folder of their own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/host/host_copier.h"
#include "device/host/host_vmm_driver.h"
#include "kv_connector/pull/pull_scheduler.h"
#include "kv_connector/pull/pull_worker.h"
#include "kv_connector/pull/read_plan.h"
#include "memory/tagged_allocator.h"
#include "transfer/ipc/ipc_agent.h"

namespace dormouse::pull {

using std::chrono::milliseconds;

struct Folder {
  Folder() {
    std::string name = ::testing::TempDir() + "/pull.XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

inline bool eventually(const std::function<bool()>& condition,
                       milliseconds patience = std::chrono::seconds(20)) {
  for (const Time end = Clock::now() + patience; !condition();) {
    if (Clock::now() > end)
      return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// The condition holds now and for this time on.
inline bool stays(const std::function<bool()>& condition, milliseconds time) {
  return !eventually([&] { return !condition(); }, time);
}

// Forwards; `after_read` sees what was copied, `before_read` may hold a read back.
class WatchedAgent final : public TransferAgent {
 public:
  struct Hooks {
    std::function<Status()> before_import = [] { return Status(); };
    std::function<void()> before_drop = [] {};  // of what was imported
    std::function<void()> before_read = [] {};
    std::function<void(const ReadControl&)> during_read = [](auto) {};
    std::function<void(std::span<const ReadSpan>)> after_read = [](auto) {};
    std::function<void()> before_census = [] {};
    bool sees_holders = true;  // false: as where the system cannot tell
  };
  WatchedAgent(std::unique_ptr<TransferAgent> inner, Hooks& hooks)
      : inner_(std::move(inner)), hooks_(hooks) {}

  Result<std::unique_ptr<MemoryRegistration>> register_memory(const KvCaches& caches) override {
    return inner_->register_memory(caches);
  }
  Result<std::unique_ptr<RemoteMemory>> import_memory(ExportedMemory exported) override {
    DM_TRY(hooks_.before_import());
    DM_TRY_ASSIGN(auto imported, inner_->import_memory(std::move(exported)));
    return std::make_unique<WatchedMemory>(std::move(imported), hooks_);
  }
  Status read(const RemoteMemory& remote, std::span<const ReadSpan> spans,
              const ReadControl& control) override {
    hooks_.before_read();
    hooks_.during_read(control);
    const Status read =
        inner_->read(*dynamic_cast<const WatchedMemory&>(remote).inner, spans, control);
    hooks_.after_read(spans);
    return read;
  }
  Result<BytesHeldBy> holding(const KvCaches& caches) const override {
    DM_TRY_ASSIGN(BytesHeldBy inner, inner_->holding(caches));
    return [&hooks = hooks_, inner](pid_t process) -> Result<std::uint64_t> {
      hooks.before_census();
      if (!hooks.sees_holders)
        return fail(ErrorCode::kUnavailable, "not to be known");
      return inner(process);
    };
  }

 private:
  struct WatchedMemory final : RemoteMemory {
    WatchedMemory(std::unique_ptr<RemoteMemory> memory, Hooks& watching)
        : inner(std::move(memory)), hooks(watching) {}
    ~WatchedMemory() override { hooks.before_drop(); }
    std::size_t size() const override { return inner->size(); }
    std::unique_ptr<RemoteMemory> inner;
    Hooks& hooks;
  };

  std::unique_ptr<TransferAgent> inner_;
  Hooks& hooks_;
};

// Of a message.
inline std::string type_of(std::string_view bytes) {
  const auto head = decode_fields<MessageHead>(bytes, "message");
  return head ? head->type : head.error().message;
}

inline constexpr std::uint32_t kBlockSize = 4;
inline constexpr std::uint32_t kNumBlocks = 32;

inline KvShape test_shape() {
  return {.num_layers = 2,
          .num_kv_heads = 2,
          .first_kv_head = 0,
          .last_kv_head = 2,
          .head_dim = 8,
          .block_size = kBlockSize};
}

struct EngineOptions {
  std::string folder;
  std::string name = "engine";
  std::uint16_t port = 1;
  std::string peers = "[]";
  std::string extra = "";  // more keys of the configuration, each with a comma before
  KvRole role = KvRole::kBoth;
  bool verify = false;
  std::string incarnation = "first";
  std::string model_hash = "weights";
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  HeadRange heads = {0, 2};
};

inline KvConnectorContext context_of(const EngineOptions& options) {
  KvConnectorContext context;
  context.config.kv_role = options.role;
  context.config.engine_id = options.name;
  context.config.kv_port = options.port;
  context.config.verify_kv = options.verify;
  context.config.kv_connector_extra_config =
      R"({"ipc_dir": ")" + options.folder + R"(", "peers": )" + options.peers + options.extra + "}";
  context.incarnation = options.incarnation;
  context.model_hash = options.model_hash;
  context.rank = options.rank;
  context.world_size = options.world_size;
  context.shape = test_shape();
  context.shape.first_kv_head = options.heads.first;
  context.shape.last_kv_head = options.heads.last;
  context.num_blocks = kNumBlocks;
  return context;
}

class Engine final : public MappingListener {
 public:
  explicit Engine(const EngineOptions& options) : context(context_of(options)) {
    cache = std::move(*allocator.allocate(kKvCacheTag, kNumBlocks * test_shape().block_bytes()));
    const auto make_agent = [this](VmmDriver& used, unsigned threads) {
      return std::make_unique<WatchedAgent>(make_ipc_agent(used, threads), hooks);
    };
    worker = *PullWorker::create(context, "IpcConnector", make_agent);
    if (options.rank == 0)
      scheduler = *PullScheduler::create(context);
    const Status registered = worker->register_kv_caches(caches());
    EXPECT_TRUE(registered) << registered.error().message;
    subscription = allocator.subscribe(kKvCacheTag, *this);
    if (scheduler != nullptr)
      publish();
  }
  ~Engine() override {
    subscription = {};
    if (scheduler != nullptr)
      scheduler->shutdown();
    worker->shutdown();
  }

  Status before_unmap(Unmapping& unmapping) override {
    return worker->release_kv_caches(unmapping);
  }
  Status after_map() override { return worker->restore_kv_caches(caches()); }

  KvCaches caches() {
    KvCaches now{.bytes = cache.bytes(), .driver = &driver};
    now.generation = allocator.usage().at(kKvCacheTag.name()).generation;
    for (const BlockHandle block : allocator.blocks_of(cache))
      now.device_blocks.push_back(block.id);
    return now;
  }
  void publish() { scheduler->set_xfer_handshake_metadata({worker->get_handshake_metadata()}); }

  Result<MemoryReceipt> sleep(milliseconds timeout = std::chrono::seconds(10), bool force = false) {
    auto slept = allocator.discard({kKvCacheTag}, {.release_timeout = timeout, .force = force});
    if (slept)
      scheduler->set_xfer_handshake_metadata({});
    return slept;
  }
  void wake_up() {
    ASSERT_TRUE(allocator.wake_up(std::nullopt));
    publish();
  }

  KvConnectorOutput step() {
    const std::string orders = scheduler->build_connector_meta();
    for (PullWorker* rank : {worker.get(), other_rank})
      if (rank != nullptr) {
        rank->bind_connector_metadata(orders);
        rank->start_load_kv();
      }
    KvConnectorOutput output;
    worker->get_finished({}, output);
    scheduler->update_connector_output(output);
    for (const RequestId request : output.finished_sending)
      sent.push_back(request);
    return output;
  }

  std::byte* block(BlockId id) { return cache.data() + id * test_shape().block_bytes(); }
  void fill(BlockId id, int seed) {
    for (std::size_t i = 0; i < test_shape().block_bytes(); ++i)
      block(id)[i] = static_cast<std::byte>(i * 7 + i / 256 + static_cast<std::size_t>(seed));
  }
  bool holds(BlockId id, int seed) {
    for (std::size_t i = 0; i < test_shape().block_bytes(); ++i) {
      if (block(id)[i] != static_cast<std::byte>(i * 7 + i / 256 + static_cast<std::size_t>(seed)))
        return false;
    }
    return true;
  }

  // Ends a prefill leg that left its prompt in these blocks, block i filled with seed + i.
  std::string prefill(RequestId id, std::vector<BlockId> blocks, std::uint32_t tokens, int seed) {
    for (std::size_t i = 0; i < blocks.size(); ++i)
      fill(blocks[i], seed + static_cast<int>(i));
    const std::string params = R"({"do_remote_decode": true})";
    const std::vector<TokenId> prompt(tokens);
    KvRequest request{.id = id,
                      .tokens = prompt,
                      .prompt_length = tokens,
                      .num_computed = tokens,
                      .cache_salt = none,
                      .kv_transfer_params = params,
                      .finished = FinishReason::kLength};
    const KvRequestFinished finished = scheduler->request_finished(request, blocks);
    EXPECT_TRUE(finished.delay_free);
    step();
    return finished.kv_transfer_params;
  }

  // A decode leg from its arrival until it is known what became of its load.
  struct Loaded {
    std::uint32_t tokens = 0;
    KvConnectorOutput output;
  };
  Loaded load(RequestId id, const std::string& params, std::vector<BlockId> blocks,
              std::uint32_t tokens) {
    Loaded loaded{start(id, params, std::move(blocks), tokens), {}};
    if (loaded.tokens > 0)
      loaded.output = finish(id);
    return loaded;
  }
  std::uint32_t start(RequestId id, const std::string& params, std::vector<BlockId> blocks,
                      std::uint32_t tokens, std::uint32_t computed = 0) {
    const std::vector<TokenId> prompt(tokens);
    const KvRequest request{.id = id,
                            .tokens = prompt,
                            .prompt_length = tokens,
                            .num_computed = computed,
                            .cache_salt = none,
                            .kv_transfer_params = params};
    scheduler->on_new_request(request);
    const auto match = scheduler->get_num_new_matched_tokens(request, computed);
    scheduler->update_state_after_alloc(request, blocks, match->tokens);
    return match->tokens;
  }
  KvConnectorOutput finish(RequestId id) {
    KvConnectorOutput output;
    EXPECT_TRUE(eventually([&] {
      output = step();
      return std::ranges::count(output.finished_recving, id) > 0;
    }));
    return output;
  }

  double stat(std::string_view name) const {
    for (const auto& [key, value] : worker->get_kv_connector_stats()) {
      if (key == name)
        return value;
    }
    ADD_FAILURE() << "no counter " << name;
    return -1;
  }

  static inline const std::string none;
  KvConnectorContext context;
  HostVmmDriver driver;
  HostCopier copier{1};
  TaggedAllocator allocator{
      driver, copier, {.block_bytes = std::size_t{2} << 20, .available_host_memory = {}}};
  TaggedMemory cache;
  WatchedAgent::Hooks hooks;
  std::unique_ptr<PullWorker> worker;
  std::unique_ptr<PullScheduler> scheduler;
  MappingSubscription subscription;
  RequestIds sent;
  PullWorker* other_rank = nullptr;  // of this engine, that hears what the scheduler orders
};

// Holds up an engine's reads until it is told to go on, once and for all.
class HeldReads {
 public:
  explicit HeldReads(Engine& engine) {
    engine.hooks.before_read = [this] {
      reading_ = true;
      EXPECT_TRUE(eventually([this] { return go_on_.load(); }));
    };
  }
  // Waits until one is held up.
  bool begun() const {
    return eventually([this] { return reading_.load(); });
  }
  void go_on() { go_on_ = true; }

 private:
  std::atomic<bool> reading_ = false;
  std::atomic<bool> go_on_ = false;
};

}  // namespace dormouse::pull
