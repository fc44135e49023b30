#include "model/llama_forward.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/cpu/pack.h"

namespace dormouse {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kTasksPerThread = 8;  // so that threads that are held up leave work to others
constexpr std::size_t kProductRows = 128;   // their activations stay in the second-level cache
constexpr std::size_t kProductTiles = 64;
constexpr std::size_t kFfnRows = 64;
constexpr std::size_t kFfnTiles = 4;  // even: whole blocks of the next product's activations

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}

  template <class T>
  T* take(std::size_t count) {
    const std::size_t offset = bytes_;
    bytes_ += round_up(count * sizeof(T), kAlignment);
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }
  kernels::Activations take_activations(std::size_t rows, std::size_t cols) {
    return {cols, take<float>(rows * cols), take<std::int8_t>(rows * cols),
            take<float>(rows * cols / kQuantBlock), take<float>(rows * cols / kQuantBlock)};
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

bool any_quantized(std::span<const PackedMatrix> matrices) {
  return std::any_of(matrices.begin(), matrices.end(),
                     [](const PackedMatrix& each) { return is_quantized(each.form); });
}

}  // namespace

ForwardBuffers::ForwardBuffers(const LlamaConfig& config, std::size_t tokens, unsigned threads,
                               std::byte* base) {
  Layout layout(base);
  residual = layout.take<float>(tokens * config.hidden_size);
  queries = layout.take<float>(tokens * config.query_size());
  keys = layout.take<float>(tokens * config.kv_size());
  values = layout.take<float>(tokens * config.kv_size());
  cosines = layout.take<float>(tokens * config.head_dim / 2);
  sines = layout.take<float>(tokens * config.head_dim / 2);
  normed = layout.take_activations(tokens, config.hidden_size);
  attended = layout.take_activations(tokens, config.query_size());
  gated = layout.take_activations(tokens, config.ffn_size);
  thread_floats = round_up(std::max(2 * kFfnRows * kFfnTiles * kTileRows,
                                    kernels::attention_scratch_floats(
                                        config.num_heads / config.num_kv_heads, config.head_dim)),
                           kAlignment / sizeof(float));
  thread_scratch = layout.take<float>(threads * thread_floats);
  bytes = layout.bytes();
}

ForwardPass::ForwardPass(const ModelPlan& plan, const std::byte* arena,
                         const kernels::CpuKernels& kernels, const StepPlan& step,
                         std::byte* kv_cache, const KvLayout& layout, const ForwardBuffers& buffers,
                         unsigned threads)
    : plan_(plan),
      config_(plan.config),
      index_(plan.config),
      arena_(arena),
      kernels_(kernels),
      kv_cache_(kv_cache),
      layout_(layout),
      buffers_(buffers),
      threads_(threads) {
  for (const ScheduledSequence& sequence : step.sequences) {
    for (std::size_t t = 0; t < sequence.tokens.size(); t += kernels::kAttentionTokens)
      tiles_.push_back({&sequence, rows_.size() + t,
                        sequence.first_position + static_cast<std::uint32_t>(t),
                        std::min(kernels::kAttentionTokens, sequence.tokens.size() - t)});
    for (std::size_t t = 0; t < sequence.tokens.size(); ++t)
      rows_.push_back(
          {&sequence, sequence.first_position + static_cast<std::uint32_t>(t), sequence.tokens[t]});
    if (sequence.samples)
      sampled_rows_.push_back(rows_.size() - 1);
  }
  all_rows_.resize(rows_.size());
  std::iota(all_rows_.begin(), all_rows_.end(), std::size_t{0});
  std::stable_sort(tiles_.begin(), tiles_.end(), [](const auto& a, const auto& b) {
    return a.first_position + a.tokens > b.first_position + b.tokens;
  });
}

PackedMatrix ForwardPass::matrix(std::size_t tensor) const {
  const PlacedTensor& placed = plan_.tensors[tensor];
  return {placed.form, placed.rows, placed.cols, arena_ + placed.offset};
}

const float* ForwardPass::vector(std::size_t tensor) const {
  return reinterpret_cast<const float*>(arena_ + plan_.tensors[tensor].offset);
}

kernels::KvHead ForwardPass::kv_head(std::size_t layer, std::size_t head) const {
  const auto elements = [&](std::uint32_t v) {
    return layout_.plane_offset(0, static_cast<std::uint32_t>(layer), v) / KvLayout::kElementBytes +
           head * layout_.head_stride();
  };
  return {reinterpret_cast<std::uint16_t*>(kv_cache_),
          layout_.block_bytes() / KvLayout::kElementBytes,
          elements(0),
          elements(1),
          layout_.block_size,
          config_.head_dim};
}

void ForwardPass::run(Team& team, float* logits, LayerObserver* observer) {
  team.share(rows_.size(), [&](std::size_t row) { start_row(row); });
  for (std::size_t layer = 0; layer < config_.num_layers; ++layer) {
    if (observer != nullptr)
      team.share(1,
                 [&](std::size_t) { observer->before_layer(static_cast<std::uint32_t>(layer)); });
    const PackedMatrix inputs[] = {matrix(layer, LayerTensor::kQuery),
                                   matrix(layer, LayerTensor::kKey),
                                   matrix(layer, LayerTensor::kValue)};
    normalize(team, all_rows_, vector(index_.layer(layer, LayerTensor::kAttentionNorm)), inputs);
    const Product projections[] = {
        {inputs[0], buffers_.queries}, {inputs[1], buffers_.keys}, {inputs[2], buffers_.values}};
    multiply(team, buffers_.normed, rows_.size(), projections);
    team.share(rows_.size(), [&](std::size_t row) { append_and_rotate(layer, row); });
    attend(team, layer);
    const Product output[] = {
        {matrix(layer, LayerTensor::kAttentionOutput), buffers_.residual, true}};
    multiply(team, buffers_.attended, rows_.size(), output);
    feed_forward(team, layer);
    if (observer != nullptr)
      team.share(1, [&](std::size_t) { observer->after_layer(static_cast<std::uint32_t>(layer)); });
  }
  const PackedMatrix head[] = {matrix(index_.output)};
  normalize(team, sampled_rows_, vector(index_.output_norm), head);
  const Product product[] = {{head[0], logits}};
  multiply(team, buffers_.normed, sampled_rows_.size(), product);
}

// The token's embedding, and the angles of its position.
void ForwardPass::start_row(std::size_t row) const {
  kernels::unpack_row(matrix(index_.embedding), static_cast<std::size_t>(rows_[row].token),
                      buffers_.residual + row * config_.hidden_size);
  const std::size_t half = config_.head_dim / 2;
  const float* factors = config_.has_rope_factors ? vector(index_.rope_factors) : nullptr;
  for (std::size_t i = 0; i < half; ++i) {
    const double exponent = -static_cast<double>(i) / static_cast<double>(half);
    const double frequency = std::pow(static_cast<double>(config_.rope_base), exponent) /
                             (factors == nullptr ? 1.0 : static_cast<double>(factors[i]));
    const double angle = rows_[row].position * frequency;
    buffers_.cosines[row * half + i] = static_cast<float>(std::cos(angle));
    buffers_.sines[row * half + i] = static_cast<float>(std::sin(angle));
  }
}

// Row i of the result is the norm of residual row rows[i], in the forms that its readers want.
void ForwardPass::normalize(Team& team, std::span<const std::size_t> rows, const float* weight,
                            std::span<const PackedMatrix> readers) const {
  const std::size_t size = config_.hidden_size;
  const kernels::Activations& to = buffers_.normed;
  const bool quantized = any_quantized(readers);
  team.share(rows.size(), [&](std::size_t i) {
    kernels_.rms_norm(buffers_.residual + rows[i] * size, weight, size, config_.rms_epsilon,
                      to.values + i * size);
    if (quantized)
      kernels_.quantize(to.values + i * size, size, to.quants + i * size,
                        to.scales + i * size / kQuantBlock, to.sums + i * size / kQuantBlock);
  });
}

ForwardPass::Split ForwardPass::split(std::size_t rows, std::size_t tiles, std::size_t most_rows,
                                      std::size_t most_tiles) const {
  const std::size_t row_chunks = std::max<std::size_t>(1, (rows + most_rows - 1) / most_rows);
  const std::size_t wanted = threads_ == 1 ? 1 : kTasksPerThread * threads_;
  const std::size_t even = round_up(std::max<std::size_t>(1, tiles * row_chunks / wanted), 2);
  return {most_rows, row_chunks, std::min(even, most_tiles)};
}

void ForwardPass::multiply(Team& team, const kernels::Activations& inputs, std::size_t rows,
                           std::span<const Product> products) const {
  if (rows == 0)
    return;
  std::size_t tiles = 0;
  for (const Product& product : products)
    tiles += product.weights.tiles();
  const Split parts = split(rows, tiles, kProductRows, kProductTiles);
  const auto chunks = [&](const Product& product) {
    return (product.weights.tiles() + parts.tile_chunk - 1) / parts.tile_chunk;
  };
  std::size_t tasks = 0;
  for (const Product& product : products)
    tasks += chunks(product) * parts.row_chunks;
  team.share(tasks, [&](std::size_t task) {
    const Product* product = products.data();
    for (; task >= chunks(*product) * parts.row_chunks; ++product)
      task -= chunks(*product) * parts.row_chunks;
    const std::size_t tile = task / parts.row_chunks * parts.tile_chunk;
    const std::size_t row = task % parts.row_chunks * parts.row_chunk;
    const PackedMatrix& weights = product->weights;
    kernels_.matmul({&weights, &inputs, tile, std::min(tile + parts.tile_chunk, weights.tiles()),
                     row, std::min(row + parts.row_chunk, rows),
                     product->out + row * weights.rows + tile * kTileRows, weights.rows,
                     product->accumulate});
  });
}

void ForwardPass::append_and_rotate(std::size_t layer, std::size_t row) const {
  const std::size_t dim = config_.head_dim;
  const float* cosines = buffers_.cosines + row * dim / 2;
  const float* sines = buffers_.sines + row * dim / 2;
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  for (std::size_t head = 0; head < config_.num_heads; ++head)
    kernels_.rotate(buffers_.queries + row * config_.query_size() + head * dim, cosines, sines, dim,
                    scale);
  const TokenRow& token = rows_[row];
  const std::uint32_t block = token.sequence->block_table[token.position / layout_.block_size];
  for (std::size_t head = 0; head < config_.num_kv_heads; ++head) {
    float* key = buffers_.keys + row * config_.kv_size() + head * dim;
    kernels_.rotate(key, cosines, sines, dim, 1.0F);
    kernels_.append(kv_head(layer, head), block, token.position % layout_.block_size, key,
                    buffers_.values + row * config_.kv_size() + head * dim);
  }
}

void ForwardPass::attend(Team& team, std::size_t layer) const {
  const std::size_t group = config_.num_heads / config_.num_kv_heads;
  const std::size_t size = group * config_.head_dim;
  const std::size_t stride = config_.query_size();
  const kernels::Activations& to = buffers_.attended;
  const PackedMatrix reader[] = {matrix(layer, LayerTensor::kAttentionOutput)};
  const bool quantized = any_quantized(reader);
  team.share(tiles_.size() * config_.num_kv_heads, [&](std::size_t task) {
    const AttentionTile& tile = tiles_[task / config_.num_kv_heads];
    const std::size_t head = task % config_.num_kv_heads;
    const std::size_t at = tile.first_row * stride + head * size;
    kernels::Attention call;
    call.kv = kv_head(layer, head);
    call.block_table = tile.sequence->block_table.data();
    call.first_position = tile.first_position;
    call.tokens = tile.tokens;
    call.heads = group;
    call.queries = buffers_.queries + at;
    call.query_stride = stride;
    call.out = to.values + at;
    call.out_stride = stride;
    call.scratch = scratch_of(team);
    kernels_.attend(call);
    for (std::size_t t = 0; quantized && t < tile.tokens; ++t) {
      const std::size_t start = at + t * stride;
      kernels_.quantize(to.values + start, size, to.quants + start, to.scales + start / kQuantBlock,
                        to.sums + start / kQuantBlock);
    }
  });
}

void ForwardPass::feed_forward(Team& team, std::size_t layer) const {
  const PackedMatrix gate[] = {matrix(layer, LayerTensor::kGate), matrix(layer, LayerTensor::kUp)};
  const PackedMatrix down[] = {matrix(layer, LayerTensor::kDown)};
  const bool quantized = any_quantized(down);
  normalize(team, all_rows_, vector(index_.layer(layer, LayerTensor::kFfnNorm)), gate);
  const kernels::Activations& to = buffers_.gated;
  const std::size_t tiles = gate[0].tiles();
  const Split parts = split(rows_.size(), tiles, kFfnRows, kFfnTiles);
  const std::size_t tile_chunks = (tiles + parts.tile_chunk - 1) / parts.tile_chunk;
  team.share(tile_chunks * parts.row_chunks, [&](std::size_t task) {
    const std::size_t tile = task / parts.row_chunks * parts.tile_chunk;
    const std::size_t tile_end = std::min(tile + parts.tile_chunk, tiles);
    const std::size_t row = task % parts.row_chunks * parts.row_chunk;
    const std::size_t row_end = std::min(row + parts.row_chunk, rows_.size());
    const std::size_t cols = (tile_end - tile) * kTileRows;
    float* gates = scratch_of(team);
    float* ups = gates + kFfnRows * kFfnTiles * kTileRows;
    kernels_.matmul({&gate[0], &buffers_.normed, tile, tile_end, row, row_end, gates, cols, false});
    kernels_.matmul({&gate[1], &buffers_.normed, tile, tile_end, row, row_end, ups, cols, false});
    for (std::size_t r = row; r < row_end; ++r, gates += cols, ups += cols) {
      const std::size_t at = r * to.cols + tile * kTileRows;
      kernels_.swiglu(gates, ups, cols, to.values + at);
      if (quantized)
        kernels_.quantize(to.values + at, cols, to.quants + at, to.scales + at / kQuantBlock,
                          to.sums + at / kQuantBlock);
    }
  });
  const Product product[] = {{down[0], buffers_.residual, true}};
  multiply(team, to, rows_.size(), product);
}

std::size_t LlamaModel::scratch_bytes(std::uint32_t max_tokens, unsigned threads) const {
  return ForwardBuffers(plan_.config, max_tokens, threads, nullptr).bytes;
}

namespace {

Status check_step(const StepPlan& step, const LlamaConfig& config, const KvLayout& layout,
                  std::size_t logits) {
  const auto bad = [](std::string why) {
    return fail(ErrorCode::kInvalidArgument, std::move(why), "step");
  };
  if (layout.block_size == 0 || layout != config.kv_layout(layout.block_size))
    return bad("the KV cache's layout is not the model's");
  std::size_t tokens = 0;
  std::size_t sampled = 0;
  for (const ScheduledSequence& sequence : step.sequences) {
    const std::size_t end = sequence.first_position + sequence.tokens.size();
    if (sequence.tokens.empty() || sequence.block_table.size() * layout.block_size < end)
      return bad(fmt::format("request {}: {} tokens up to position {} do not fit {} blocks of {}",
                             sequence.id, sequence.tokens.size(), end, sequence.block_table.size(),
                             layout.block_size));
    for (const TokenId token : sequence.tokens)
      if (token < 0 || static_cast<std::uint32_t>(token) >= config.vocab_size)
        return bad(fmt::format("request {}: token {} is not below the vocabulary's size {}",
                               sequence.id, token, config.vocab_size));
    tokens += sequence.tokens.size();
    sampled += sequence.samples ? 1 : 0;
  }
  if (tokens != step.total_tokens)
    return bad(fmt::format("a step of {} tokens says it has {}", tokens, step.total_tokens));
  if (logits < sampled * config.vocab_size)
    return bad(fmt::format("{} sampling sequences need {} logits, there is room for {}", sampled,
                           sampled * config.vocab_size, logits));
  return {};
}

}  // namespace

Status LlamaModel::forward(const StepPlan& step, std::byte* kv_cache, const KvLayout& layout,
                           ThreadPool& pool, std::span<std::byte> scratch, std::span<float> logits,
                           LayerObserver* observer) const {
  DM_TRY(check_step(step, plan_.config, layout, logits.size()));
  const ForwardBuffers buffers(plan_.config, step.total_tokens, pool.size(), scratch.data());
  if (buffers.bytes > scratch.size())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a step of {} tokens on {} threads needs {} bytes of scratch, not {}",
                            step.total_tokens, pool.size(), buffers.bytes, scratch.size()),
                "scratch");
  ForwardPass pass(plan_, arena_.data(), kernels_, step, kv_cache, layout, buffers, pool.size());
  pool.run([&](Team& team) { pass.run(team, logits.data(), observer); });
  return {};
}

}  // namespace dormouse
