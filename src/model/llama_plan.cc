#include <fmt/core.h>

#include <set>
#include <string>

#include "base/check.h"
#include "kernels/cpu/pack.h"
#include "model/llama.h"
#include "model/llama_tensors.h"

namespace dormouse {
namespace {

using format::GgmlType;
using Dims = std::vector<std::uint64_t>;

constexpr std::size_t kAlignment = 64;

struct Expected {
  std::string name;
  Dims dims;  // one: a vector of floats
  RowOrder order = RowOrder::kAsStored;
};

// In the order of TensorIndex.
std::vector<Expected> expected_tensors(const LlamaConfig& config) {
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t ffn = config.ffn_size;
  const std::uint64_t queries = config.query_size();
  const std::uint64_t keys = config.kv_size();
  std::vector<Expected> all = {{"token_embd.weight", {hidden, config.vocab_size}},
                               {"output_norm.weight", {hidden}}};
  if (!config.tied_output)
    all.push_back({"output.weight", {hidden, config.vocab_size}});
  if (config.has_rope_factors)
    all.push_back({"rope_freqs.weight", {config.head_dim / 2}});
  for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto add = [&](const char* name, Dims dims, RowOrder order = RowOrder::kAsStored) {
      all.push_back({fmt::format("blk.{}.{}.weight", layer, name), std::move(dims), order});
    };
    add("attn_norm", {hidden});
    add("attn_q", {hidden, queries}, RowOrder::kUnpairHeads);
    add("attn_k", {hidden, keys}, RowOrder::kUnpairHeads);
    add("attn_v", {hidden, keys});
    add("attn_output", {queries, hidden});
    add("ffn_norm", {hidden});
    add("ffn_gate", {hidden, ffn});
    add("ffn_up", {hidden, ffn});
    add("ffn_down", {ffn, hidden});
  }
  return all;
}

std::string shape(const Dims& dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", dims[i]);
  return text + "]";
}

// A shape may be written with ones behind it.
Dims without_ones(Dims dims) {
  while (dims.size() > 1 && dims.back() == 1)
    dims.pop_back();
  return dims;
}

tl::unexpected<Error> wrong_type(const format::GgufFile& file, const format::TensorInfo& info,
                                 std::string_view wanted) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: tensor {} has type {}, which is not supported here; use {}",
                          file.path(), info.name, type_name(info.type), wanted));
}

Result<PlacedTensor> place(const format::GgufFile& file, const Expected& expected,
                           std::size_t offset) {
  const format::TensorInfo* info = file.find_tensor(expected.name);
  if (info == nullptr)
    return fail(ErrorCode::kDataLoss,
                fmt::format("{}: tensor {} is missing", file.path(), expected.name));
  if (without_ones(info->dims) != without_ones(expected.dims))
    return fail(ErrorCode::kDataLoss,
                fmt::format("{}: tensor {} has shape {}, but the model's metadata says {}",
                            file.path(), expected.name, shape(info->dims), shape(expected.dims)));
  const std::optional<PackedForm> form = kernels::packed_form(info->type);
  if (!form)
    return wrong_type(file, *info, "F32, F16, BF16, Q4_0, Q4_1, Q5_0 or Q8_0");
  PlacedTensor placed{
      expected.name,  info->type, *form, 1, static_cast<std::uint32_t>(expected.dims[0]),
      expected.order, offset,     0};
  if (expected.dims.size() == 1) {
    if (is_quantized(*form))
      return wrong_type(file, *info, "F32, F16 or BF16");
    placed.form = PackedForm::kF32;
    placed.bytes = std::size_t{placed.cols} * sizeof(float);
  } else {
    placed.rows = static_cast<std::uint32_t>(expected.dims[1]);
    placed.bytes = PackedMatrix{*form, placed.rows, placed.cols, nullptr}.bytes();
  }
  placed.bytes = (placed.bytes + kAlignment - 1) / kAlignment * kAlignment;
  return placed;
}

}  // namespace

Result<ModelPlan> LlamaModel::plan(const format::GgufFile& file) {
  ModelPlan plan;
  DM_TRY_ASSIGN(plan.config, LlamaConfig::read(file));
  std::set<std::string, std::less<>> names;
  for (const Expected& expected : expected_tensors(plan.config)) {
    DM_TRY_ASSIGN(PlacedTensor placed, place(file, expected, plan.weight_bytes));
    plan.weight_bytes += placed.bytes;
    names.insert(placed.name);
    plan.tensors.push_back(std::move(placed));
  }
  for (const format::TensorInfo& info : file.tensors())
    if (!names.contains(info.name))
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: tensor {} {} has no place in a llama model of {} layers",
                              file.path(), info.name, shape(info.dims), plan.config.num_layers));
  return plan;
}

}  // namespace dormouse
