#include "cli/bench_transfer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/check.h"
#include "base/thread_pool.h"
#include "cli/bench_peer.h"
#include "cli/demo_answers.h"
#include "cli/units.h"
#include "device/host/host_copier.h"
#include "device/host/host_vmm_driver.h"
#include "dormouse/engine.h"
#include "dormouse/metrics.h"
#include "kv_connector/kv_transfer_scope.h"
#include "memory/tagged_allocator.h"
#include "text/tokenizer.h"

namespace dormouse::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Llama 2 7B: 32 layers, 32 heads of 128; a block of 16 tokens takes 8 MiB.
constexpr std::uint32_t kBlockTokens = 16;
const KvShape kShape7B{.num_layers = 32,
                       .num_kv_heads = 32,
                       .first_kv_head = 0,
                       .last_kv_head = 32,
                       .head_dim = 128,
                       .block_size = kBlockTokens};
constexpr std::size_t kPrefixTokens = 768;

struct Folder {
  std::string path = std::filesystem::temp_directory_path() / "dormouse-bench-XXXXXX";
  bool made = ::mkdtemp(path.data()) != nullptr;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

// An engine's connector without an engine: both halves over a cache of its own.
class Side {
 public:
  static Result<std::unique_ptr<Side>> start(const std::string& folder, std::uint16_t port,
                                             std::uint16_t peer, std::uint32_t num_blocks,
                                             std::uint32_t threads) {
    auto side = std::unique_ptr<Side>(new Side(threads));
    KvConnectorContext context{.incarnation = std::to_string(port),
                               .model_hash = "benchmark",
                               .shape = kShape7B,
                               .num_blocks = num_blocks,
                               .threads = threads};
    context.config = {
        .kv_connector = "IpcConnector", .engine_id = std::to_string(port), .kv_port = port};
    context.config.kv_connector_extra_config = fmt::format(
        R"({{"ipc_dir":"{}","peers":["127.0.0.1:{}"],"num_threads":1,"pull_timeout":60}})", folder,
        peer);
    DM_TRY_ASSIGN(side->memory_,
                  side->allocator_.allocate(kKvCacheTag, num_blocks * kShape7B.block_bytes()));
    std::ranges::fill(side->memory_.bytes(), static_cast<std::byte>(port));
    DM_TRY_ASSIGN(side->worker_, KvTransferScope::initialize(context, side->allocator_,
                                                             side->memory_, side->driver_));
    DM_TRY_ASSIGN(const KvConnectorClass found, find_kv_connector(context.config));
    DM_TRY_ASSIGN(side->scheduler_, found.make_scheduler(context));
    side->publish();
    return side;
  }
  ~Side() {
    if (scheduler_)
      scheduler_->shutdown();
  }

  SchedulerConnector& scheduler() { return *scheduler_; }
  TaggedAllocator& allocator() { return allocator_; }
  std::span<std::byte> bytes() const { return memory_.bytes(); }

  // A step without tokens.
  KvConnectorOutput step() {
    worker_->before_forward(scheduler_->build_connector_meta());
    KvConnectorOutput output = worker_->after_forward(false, {});
    scheduler_->update_connector_output(output);
    return output;
  }
  void publish() { scheduler_->set_xfer_handshake_metadata({worker_->handshake_metadata()}); }

 private:
  explicit Side(std::uint32_t threads) : copier_(threads) {}

  HostVmmDriver driver_;
  HostCopier copier_;
  TaggedAllocator allocator_{driver_, copier_, {}};
  TaggedMemory memory_;
  std::unique_ptr<KvTransferScope> worker_;
  std::unique_ptr<SchedulerConnector> scheduler_;
};

// One request from the end of its prefill leg until its blocks are in the consumer's cache.
Result<double> time_pull(Side& producer, Side& consumer, RequestId id, std::uint32_t num_blocks) {
  std::vector<BlockId> blocks(num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0U);
  const std::vector<TokenId> tokens(std::size_t{num_blocks} * kBlockTokens, 1);
  const std::string salt;
  const std::string wanted = R"({"do_remote_decode":true,"do_remote_prefill":false})";
  const auto length = static_cast<std::uint32_t>(tokens.size());
  const KvRequest made{.id = id,
                       .tokens = tokens,
                       .prompt_length = length,
                       .num_computed = length,
                       .cache_salt = salt,
                       .kv_transfer_params = wanted,
                       .finished = FinishReason::kLength};
  const KvRequestFinished leg = producer.scheduler().request_finished(made, blocks);
  producer.step();

  const KvRequest asked{.id = id,
                        .tokens = tokens,
                        .prompt_length = length,
                        .num_computed = 0,
                        .cache_salt = salt,
                        .kv_transfer_params = leg.kv_transfer_params};
  const auto start = Clock::now();
  consumer.scheduler().on_new_request(asked);
  consumer.scheduler().update_state_after_alloc(asked, blocks, length);
  while (true) {
    const KvConnectorOutput output = consumer.step();
    if (!output.invalid_block_ids.empty())
      return fail(ErrorCode::kTransferFailed, "a pull failed: " + output.failure);
    if (std::ranges::find(output.finished_recving, id) != output.finished_recving.end())
      return ms_since(start);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

double time_memcpy(std::span<const std::byte> from, std::span<std::byte> to, ThreadPool& pool) {
  const auto start = Clock::now();
  const std::size_t share = (from.size() + pool.size() - 1) / pool.size();
  pool.parallel_for(pool.size(), [&](std::size_t i) {
    const std::size_t offset = std::min(from.size(), i * share);
    std::memcpy(to.data() + offset, from.data() + offset, std::min(share, from.size() - offset));
  });
  return ms_since(start);
}

struct Figures {
  std::uint64_t bytes = 0;
  std::uint32_t threads = 0;
  std::vector<double> cold_ms, pull_ms, memcpy_ms, release_ms, restore_ms;
  std::vector<double> computed_ms, from_tier_ms;  // first token
  std::uint64_t tier_tokens = 0;                  // of the prompt, that came from the tier
};

// The hooks' part of a sleep and of a wake-up of the producer, its memory imported by the consumer.
Status measure_release(Side& producer, Figures& figures) {
  DM_TRY_ASSIGN(const MemoryReceipt slept, producer.allocator().discard({kKvCacheTag}));
  figures.release_ms.push_back(phase_ms(slept, "hooks"));
  DM_TRY_ASSIGN(const MemoryReceipt woken, producer.allocator().wake_up(std::nullopt));
  figures.restore_ms.push_back(phase_ms(woken, "hooks"));
  producer.publish();
  std::ranges::fill(producer.bytes(), std::byte{1});
  return {};
}

Status measure_pulls(const BenchOptions& options, Figures& figures) {
  const Folder folder;
  const auto num_blocks = static_cast<std::uint32_t>(
      std::max<std::uint64_t>(1, options.bytes / kShape7B.block_bytes()));
  figures.bytes = std::uint64_t{num_blocks} * kShape7B.block_bytes();
  DM_TRY_ASSIGN(const auto producer, Side::start(folder.path, 1, 2, num_blocks, figures.threads));
  DM_TRY_ASSIGN(const auto consumer, Side::start(folder.path, 2, 1, num_blocks, figures.threads));
  ThreadPool pool(figures.threads);
  RequestId id = 0;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    DM_TRY_ASSIGN(const double cold, time_pull(*producer, *consumer, ++id, num_blocks));
    figures.cold_ms.push_back(cold);
    DM_TRY_ASSIGN(const double warm, time_pull(*producer, *consumer, ++id, num_blocks));
    figures.pull_ms.push_back(warm);
    if (!std::ranges::equal(producer->bytes(), consumer->bytes()))
      return fail(ErrorCode::kDataLoss, "the bytes pulled are not the producer's");
    figures.memcpy_ms.push_back(time_memcpy(producer->bytes(), consumer->bytes(), pool));
    std::ranges::fill(consumer->bytes(), std::byte{9});
    DM_TRY(measure_release(*producer, figures));
  }
  return {};
}

Result<double> time_first_token(Engine& engine, const std::vector<TokenId>& prompt) {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<RequestOutput> last;
  const auto start = Clock::now();
  DM_TRY_ASSIGN([[maybe_unused]] const RequestId id,
                engine.submit(greedy_request(prompt, 1), [&](RequestOutput output) {
                  const std::lock_guard lock(mutex);
                  if (output.finished)
                    last = std::move(output);
                  changed.notify_all();
                }));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return last.has_value(); });
  if (last->finished == FinishReason::kError)
    return tl::unexpected(last->error);
  return ms_since(start);
}

// Each round another prompt: computed, then asked again after a sleep and a wake-up.
Status measure_tier(const BenchOptions& options, Figures& figures) {
  EngineConfig config = options.engine;
  config.kv_transfer.kv_connector = "OffloadingConnector";
  config.kv_transfer.kv_connector_extra_config = R"({"cpu_bytes_to_use":536870912})";
  const auto engine = Engine::start(config);
  DM_TRY(engine->wait_until_loaded());
  const Workload workload{.vocab_size = engine->tokenizer()->vocab_size()};
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    const std::vector<TokenId> prompt = workload.prompt(kPrefixTokens, round);
    DM_TRY_ASSIGN(const double computed, time_first_token(*engine, prompt));
    figures.computed_ms.push_back(computed);
    while (engine->status().kv_sends > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    DM_TRY_ASSIGN([[maybe_unused]] const TransitionReport slept, engine->sleep({}));
    DM_TRY_ASSIGN([[maybe_unused]] const TransitionReport woken, engine->wake_up(std::nullopt));
    DM_TRY_ASSIGN(const double loaded, time_first_token(*engine, prompt));
    figures.from_tier_ms.push_back(loaded);
  }
  figures.tier_tokens = engine->counters().transferred_tokens;
  return {};
}

double ratio(const Figures& figures) {
  return median(figures.memcpy_ms) / median(figures.pull_ms);
}

std::string to_text(const Figures& figures) {
  const auto row = [](std::string_view what, const std::vector<double>& times) {
    return fmt::format("{:<52} {:>9.2f} {:>9.2f}\n", what, median(times), best(times));
  };
  std::string text = fmt::format(
      "{} of KV in the layout of a 7B model, {} threads, {} rounds\n\n{:<52} {:>9} {:>9}\n",
      format_bytes(static_cast<double>(figures.bytes)), figures.threads, figures.pull_ms.size(), "",
      "median ms", "best ms");
  text += row("pull, first: shake hands, import, ask, copy, confirm", figures.cold_ms);
  text += row("pull, warm: ask, copy, confirm", figures.pull_ms);
  text += row("memcpy of the same bytes", figures.memcpy_ms);
  text += row("release: revoke, acknowledge, verify, deregister", figures.release_ms);
  text += row("restore: register", figures.restore_ms);
  text +=
      row(fmt::format("first token after {} tokens, computed", kPrefixTokens), figures.computed_ms);
  text += row("the same after a sleep, prefix on the tier", figures.from_tier_ms);
  return text + fmt::format(
                    "\nthe pull reaches {:.2f} of memcpy; the tier's first token comes "
                    "{:.1f} times sooner",
                    ratio(figures), median(figures.computed_ms) / median(figures.from_tier_ms));
}

Json to_json(const Figures& figures) {
  return Json::Object{
      {"bench", "transfer"},
      {"bytes", figures.bytes},
      {"threads", figures.threads},
      {"first_pull_ms", times_json(figures.cold_ms)},
      {"pull_ms", times_json(figures.pull_ms)},
      {"pull_gb_per_s", gigabytes_per_second(figures.bytes, median(figures.pull_ms))},
      {"memcpy_ms", times_json(figures.memcpy_ms)},
      {"memcpy_gb_per_s", gigabytes_per_second(figures.bytes, median(figures.memcpy_ms))},
      {"ratio", ratio(figures)},
      {"release_ms", times_json(figures.release_ms)},
      {"restore_ms", times_json(figures.restore_ms)},
      {"prefix_tokens", kPrefixTokens},
      {"tier_tokens", figures.tier_tokens},
      {"first_token_computed_ms", times_json(figures.computed_ms)},
      {"first_token_from_tier_ms", times_json(figures.from_tier_ms)}};
}

}  // namespace

Result<BenchReport> bench_transfer(const BenchOptions& options) {
  Figures figures;
  figures.threads = options.engine.threads > 0 ? options.engine.threads
                                               : std::max(1U, std::thread::hardware_concurrency());
  DM_TRY(measure_pulls(options, figures));
  DM_TRY(measure_tier(options, figures));
  return BenchReport{to_text(figures), to_json(figures)};
}

}  // namespace dormouse::cli
