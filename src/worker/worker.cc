#include "worker/worker.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/hash.h"
#include "device/host/host_memory.h"
#include "format/gguf.h"
#include "kernels/cpu/isa.h"

namespace dormouse {
namespace {

constexpr std::uint64_t kDefaultCacheBytes = std::uint64_t{256} << 20;

TaggedAllocator::Options allocator_options(const EngineConfig& config) {
  return {.host_memory_limit = config.host_memory_limit,
          .retain_backups = config.weight_backup == WeightBackup::kRetain,
          .available_host_memory = available_host_memory};
}

Result<std::uint32_t> count_blocks(const EngineConfig& config, const ModelFacts& facts) {
  const std::uint64_t block_bytes = facts.kv_layout.block_bytes();
  const std::uint64_t blocks_each =
      (facts.max_model_len + config.block_size - 1) / config.block_size;
  const std::uint64_t bytes =
      config.kv_cache_memory_bytes > 0
          ? config.kv_cache_memory_bytes
          : std::min(kDefaultCacheBytes, blocks_each * config.max_num_seqs * block_bytes);
  if (bytes < block_bytes)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--kv-cache-memory-bytes {} holds no block: one takes {} bytes", bytes,
                            block_bytes));
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes / block_bytes, UINT32_MAX / 2));
}

Status check_config(const EngineConfig& config) {
  if (config.max_num_seqs == 0 || config.max_num_batched_tokens == 0 || config.block_size == 0)
    return fail(ErrorCode::kInvalidArgument,
                "--max-num-seqs, --max-num-batched-tokens and --block-size must be at least 1");
  if (config.max_num_batched_tokens < config.max_num_seqs)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--max-num-batched-tokens {} is less than --max-num-seqs {}: every running "
                    "sequence needs one token in a step",
                    config.max_num_batched_tokens, config.max_num_seqs));
  return {};
}

}  // namespace

namespace {

KvShape shape_of(const KvLayout& layout) {
  return {.num_layers = layout.num_layers,
          .num_kv_heads = layout.num_kv_heads,
          .first_kv_head = 0,
          .last_kv_head = layout.num_kv_heads,
          .head_dim = layout.head_dim,
          .block_size = layout.block_size};
}

// A connector's view of the layers.
class ConnectorLayers final : public LayerObserver {
 public:
  explicit ConnectorLayers(KvTransferScope& scope) : scope_(scope) {}
  void before_layer(std::uint32_t layer) override { scope_.wait_for_layer_load(layer); }
  void after_layer(std::uint32_t layer) override { scope_.save_kv_layer(layer); }

 private:
  KvTransferScope& scope_;
};

}  // namespace

unsigned thread_count(const EngineConfig& config) {
  return config.threads > 0 ? config.threads : std::max(1U, std::thread::hardware_concurrency());
}

Worker::Worker(EngineConfig config, VmmDriver& driver, Copier& copier)
    : config_(std::move(config)),
      driver_(driver),
      allocator_(driver, copier, allocator_options(config_)),
      pool_(thread_count(config_)) {}

Worker::~Worker() = default;

Status Worker::allocate(const ModelPlan& plan, ModelFacts& facts) {
  const std::uint32_t trained = plan.config.context_length;
  if (config_.max_model_len > trained)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--max-model-len {} is more than the {} tokens that the model was trained "
                    "for",
                    config_.max_model_len, trained));
  facts.vocab_size = plan.config.vocab_size;
  facts.max_model_len = config_.max_model_len > 0 ? config_.max_model_len : trained;
  facts.kv_layout = layout_ = plan.config.kv_layout(config_.block_size);
  DM_TRY_ASSIGN(facts.num_blocks, count_blocks(config_, facts));

  DM_TRY_ASSIGN(weights_, allocator_.allocate(kWeightsTag, plan.weight_bytes));
  DM_TRY_ASSIGN(kv_cache_,
                allocator_.allocate(kKvCacheTag, facts.num_blocks * layout_.block_bytes()));
  return {};
}

Result<ModelFacts> Worker::load(const LoadControl& control) {
  DM_TRY(check_config(config_));
  ModelFacts facts;
  DM_TRY_ASSIGN(const kernels::Isa isa, kernels::choose_isa_from_environment());
  facts.kernel = kernels::to_string(isa);
  DM_TRY_ASSIGN(const format::GgufFile file, format::GgufFile::open(config_.model));
  DM_TRY_ASSIGN(ModelPlan plan, LlamaModel::plan(file));
  DM_TRY(allocate(plan, facts));
  model_.emplace(std::move(plan), weights_.bytes(), kernels::cpu_kernels(isa));

  logits_offset_ = model_->scratch_bytes(config_.max_num_batched_tokens, pool_.size());
  const std::size_t logits = std::size_t{config_.max_num_seqs} * facts.vocab_size * sizeof(float);
  DM_TRY_ASSIGN(scratch_, allocator_.allocate(kScratchTag, logits_offset_ + logits));
  DM_TRY(model_->load(file, pool_, control.progress, control.cancelled));
  DM_TRY(seal_weights());
  weights_valid_ = true;
  facts.kv_shape = shape_of(layout_);
  DM_TRY(start_kv_transfer(facts));
  return facts;
}

Status Worker::start_kv_transfer(const ModelFacts& facts) {
  if (config_.kv_transfer.kv_connector.empty())
    return {};
  hash_model();
  const KvConnectorContext context{.config = config_.kv_transfer,
                                   .incarnation = config_.incarnation,
                                   .model_hash = model_hash_,
                                   .shape = facts.kv_shape,
                                   .num_blocks = facts.num_blocks,
                                   .threads = thread_count(config_)};
  DM_TRY_ASSIGN(kv_transfer_, KvTransferScope::initialize(context, allocator_, kv_cache_, driver_));
  return {};
}

void Worker::hash_model() {
  constexpr std::size_t kStretch = std::size_t{1} << 20;
  const std::span<const std::byte> bytes = weights_.bytes();
  std::vector<Hash128> parts((bytes.size() + kStretch - 1) / kStretch);
  pool_.parallel_for(parts.size(), [&](std::size_t i) {
    parts[i] =
        hash128(bytes.subspan(i * kStretch, std::min(kStretch, bytes.size() - i * kStretch)));
  });
  const std::string config = model_->config().text();
  parts.push_back(hash128(std::as_bytes(std::span(config))));
  const Hash128 all = hash128(std::as_bytes(std::span(parts)));
  model_hash_ = fmt::format("{:016x}{:016x}", all.high, all.low);
}

// Reads the weights from the model file into mapped, writable memory.
Status Worker::refill_weights(const format::GgufFile& file) {
  const std::atomic<bool> never = false;
  return model_->load(file, pool_, {}, never);
}

Status Worker::seal_weights() {
  if (config_.weight_backup == WeightBackup::kFile)
    return allocator_.seal(kWeightsTag, [this]() -> Status {
      DM_TRY_ASSIGN(const format::GgufFile file, format::GgufFile::open(config_.model));
      return refill_weights(file);
    });
  return allocator_.seal(kWeightsTag);
}

// A file that cannot be read or is another model is refused while the old weights still serve.
Status Worker::reload_weights() {
  DM_TRY_ASSIGN(const format::GgufFile file, format::GgufFile::open(config_.model));
  DM_TRY(model_->check_same(file));
  DM_TRY_ASSIGN(const WriteLease lease, allocator_.lease_for_writing(kWeightsTag));
  weights_valid_ = false;
  DM_TRY(refill_weights(file));
  weights_valid_ = true;
  if (kv_transfer_)
    hash_model();
  return {};
}

Result<MemoryReceipt> Worker::transition(const RankCall& call, const TransitionControl& control) {
  if (const auto* check = std::get_if<CheckSleepCall>(&call)) {
    DM_TRY(allocator_.check_sleep(check->offload));
  } else if (const auto* sleep = std::get_if<SleepCall>(&call)) {
    DM_TRY_ASSIGN(MemoryReceipt receipt, allocator_.sleep(sleep->offload, control));
    if (std::ranges::find(sleep->offload, kWeightsTag) == sleep->offload.end())
      weights_valid_ = false;
    return receipt;
  } else if (const auto* discard = std::get_if<DiscardCall>(&call)) {
    DM_TRY_ASSIGN(MemoryReceipt receipt, allocator_.discard(discard->tags, control));
    if (std::ranges::find(discard->tags, kWeightsTag) != discard->tags.end())
      weights_valid_ = false;
    return receipt;
  } else if (const auto* wake_up = std::get_if<WakeUpCall>(&call)) {
    return allocator_.wake_up(wake_up->tags, control);
  } else if (std::holds_alternative<CommitWakeUpCall>(call)) {
    allocator_.drop_used_backups();
  } else if (std::holds_alternative<ReloadWeightsCall>(call)) {
    DM_TRY(reload_weights());
  }
  return MemoryReceipt{};
}

Result<RankReply> Worker::call(const RankCall& call, const TransitionControl& control) {
  RankReply reply;
  DM_TRY_ASSIGN(reply.receipt, transition(call, control));
  reply.state = state();
  return reply;
}

RankState Worker::state() const {
  RankState now{.memory = allocator_.usage(),
                .restored = allocator_.all_restored(),
                .weights_valid = weights_valid_,
                .model_hash = model_hash_};
  if (kv_transfer_)
    now.handshake = kv_transfer_->handshake_metadata();
  for (const MemoryTag& tag : allocator_.tags())
    if (!allocator_.is_mapped(tag))
      now.tags_asleep.push_back(tag.name());
  return now;
}

Result<StepResult> Worker::execute(const StepPlan& plan, std::span<const TokenId> end_tokens) {
  StepResult result{.step = plan.step};
  const bool computes = !plan.sequences.empty();
  if (kv_transfer_)
    kv_transfer_->before_forward(plan.connector_meta);
  if (computes) {
    if (Status done = forward(plan, result, end_tokens); !done) {
      if (kv_transfer_)
        kv_transfer_->forward_failed();
      return tl::unexpected(std::move(done).error());
    }
  }
  if (kv_transfer_)
    result.connector.push_back(kv_transfer_->after_forward(computes, plan.finished));
  return result;
}

Status Worker::forward(const StepPlan& plan, StepResult& result,
                       std::span<const TokenId> end_tokens) {
  for (const MemoryTag& tag : {kWeightsTag, kKvCacheTag, kScratchTag})
    DM_CHECK(allocator_.is_mapped(tag), fmt::format("a step while tag {} is asleep", tag.name()));
  DM_CHECK(weights_valid_, "a step with invalid weights");

  const std::size_t vocab = model_->config().vocab_size;
  const auto rows = static_cast<std::size_t>(
      std::ranges::count_if(plan.sequences, [](const auto& entry) { return entry.samples; }));
  std::byte* const scratch = scratch_.data();
  const std::span logits(reinterpret_cast<float*>(scratch + logits_offset_), rows * vocab);
  std::optional<ConnectorLayers> layers;
  if (kv_transfer_)
    layers.emplace(*kv_transfer_);
  DM_TRY(model_->forward(plan, kv_cache_.data(), layout_, pool_, {scratch, logits_offset_}, logits,
                         layers ? &*layers : nullptr));

  for (const ScheduledSequence& entry : plan.sequences) {
    if (!entry.samples)
      continue;
    const SampleInput input{.logits = logits.subspan(result.sampled.size() * vocab, vocab),
                            .history = entry.history,
                            .prompt_length = entry.history.empty() ? 0 : entry.prompt_length,
                            .sample_index = entry.sample_index,
                            .end_tokens = end_tokens};
    result.sampled.push_back({entry.id, sampler_.sample(input, *entry.sampling)});
  }
  return {};
}

}  // namespace dormouse
