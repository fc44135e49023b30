#include "model/llama.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/pack.h"
#include "model/llama_tensors.h"

namespace dormouse {
namespace {

// Which of the file's rows becomes row `row` of the arena.
std::size_t stored_row(const PlacedTensor& tensor, std::size_t row, std::size_t head_dim) {
  if (tensor.order == RowOrder::kAsStored)
    return row;
  const std::size_t inside = row % head_dim;
  const std::size_t half = head_dim / 2;
  return row - inside + (inside < half ? 2 * inside : 2 * (inside - half) + 1);
}

bool is_vector(const PlacedTensor& tensor) {
  return tensor.rows == 1;
}

void pack_matrix(const PlacedTensor& tensor, const std::byte* source, std::size_t head_dim,
                 std::byte* target, ThreadPool& pool) {
  const StoredMatrix stored{tensor.type, tensor.rows, tensor.cols, source};
  const PackedMatrix packed{tensor.form, tensor.rows, tensor.cols, target};
  const std::size_t bytes = tile_bytes(tensor.form, tensor.cols);
  pool.parallel_for(packed.tiles(), [&](std::size_t tile) {
    std::array<const std::byte*, kTileRows> rows{};
    for (std::size_t r = 0; r < kTileRows && tile * kTileRows + r < tensor.rows; ++r)
      rows[r] = stored.row(stored_row(tensor, tile * kTileRows + r, head_dim));
    kernels::pack_tile(tensor.type, rows, tensor.cols, target + tile * bytes);
  });
  std::memset(target + packed.bytes(), 0, tensor.bytes - packed.bytes());
}

void pack_vector(const PlacedTensor& tensor, const std::byte* source, std::byte* target) {
  std::memset(target, 0, tensor.bytes);
  dequantize_row(tensor.type, source, tensor.cols, reinterpret_cast<float*>(target));
}

Status check_rope_factors(const format::GgufFile& file, const PlacedTensor& tensor,
                          const std::byte* packed) {
  const auto* factors = reinterpret_cast<const float*>(packed);
  for (std::size_t i = 0; i < tensor.cols; ++i)
    if (!std::isfinite(factors[i]) || factors[i] <= 0)
      return fail(ErrorCode::kDataLoss,
                  fmt::format("{}: tensor {}: value {} is {}, not a positive number", file.path(),
                              tensor.name, i, factors[i]));
  return {};
}

}  // namespace

LlamaModel::LlamaModel(ModelPlan plan, std::span<std::byte> arena,
                       const kernels::CpuKernels& kernels)
    : plan_(std::move(plan)), arena_(arena), kernels_(kernels) {
  DM_CHECK(arena.size() >= plan_.weight_bytes, "the arena holds the planned weights");
  DM_CHECK(reinterpret_cast<std::uintptr_t>(arena.data()) % 64 == 0, "the arena is aligned");
}

Status LlamaModel::check_same(const format::GgufFile& file) const {
  DM_TRY_ASSIGN(const ModelPlan found, plan(file));
  if (found.config != plan_.config || found.tensors != plan_.tensors)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("{} is not the model that this one was planned from", file.path()));
  return {};
}

Status LlamaModel::load(const format::GgufFile& file, ThreadPool& pool, const Progress& progress,
                        const std::atomic<bool>& cancel) {
  DM_TRY(check_same(file));
  std::vector<std::byte> stored;
  for (const PlacedTensor& tensor : plan_.tensors) {
    if (cancel.load(std::memory_order_relaxed))
      return fail(ErrorCode::kCancelled, "loading was cancelled");
    const format::TensorInfo& info = *file.find_tensor(tensor.name);
    stored.resize(info.bytes);
    DM_TRY(file.read_tensor(info, stored));
    const std::byte* source = stored.data();
    std::byte* target = arena_.data() + tensor.offset;
    if (is_vector(tensor))
      pack_vector(tensor, source, target);
    else
      pack_matrix(tensor, source, plan_.config.head_dim, target, pool);
    if (tensor.name == "rope_freqs.weight")
      DM_TRY(check_rope_factors(file, tensor, target));
    if (progress)
      progress(tensor.offset + tensor.bytes, plan_.weight_bytes);
  }
  std::memset(arena_.data() + plan_.weight_bytes, 0, arena_.size() - plan_.weight_bytes);
  return file.verify_unchanged();
}

}  // namespace dormouse
