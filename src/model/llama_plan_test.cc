#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "model/llama.h"
#include "model/llama_fixture.h"

namespace dormouse {
namespace {

using format::GgmlType;
using testing::HasSubstr;

using Tensors = std::vector<TinyLlama::Tensor>;

// What plan() says to a model whose list of tensors was changed.
Result<ModelPlan> plan_with(const std::function<void(Tensors&)>& change) {
  const TinyLlama tiny;
  format::GgufWriter writer;
  tiny.add_metadata(writer);
  Tensors tensors = tiny.tensors();
  change(tensors);
  for (const TinyLlama::Tensor& tensor : tensors)
    writer.add_tensor(tensor.name, tensor.type, tensor.dims, tiny.data(tensor, 1));
  const ModelFile file(writer);
  return LlamaModel::plan(*file);
}

TinyLlama::Tensor& find(Tensors& tensors, const std::string& name) {
  for (TinyLlama::Tensor& tensor : tensors)
    if (tensor.name == name)
      return tensor;
  ADD_FAILURE() << name;
  return tensors.front();
}

TEST(LlamaPlan, PlacesEveryTensorWithoutGapsAndAligned) {
  TinyLlama tiny;
  tiny.matrices = GgmlType::kQ4_1;
  tiny.embedding = GgmlType::kQ8_0;
  const ModelFile file(tiny.writer());
  const ModelPlan plan = LlamaModel::plan(*file).value();
  EXPECT_EQ(plan.tensors.size(), 2U + 2 * 9);
  std::size_t end = 0;
  for (const PlacedTensor& tensor : plan.tensors) {
    EXPECT_EQ(tensor.offset, end) << tensor.name;
    EXPECT_EQ(tensor.offset % 64, 0U);
    end = tensor.offset + tensor.bytes;
  }
  EXPECT_EQ(plan.weight_bytes, end);
  EXPECT_EQ(plan.tensors[0].form, PackedForm::kS8);
  EXPECT_EQ(plan.tensors[0].bytes, 10U * 3 * 544);  // 150 rows are 10 tiles; a multiple of 64
  EXPECT_TRUE(plan.config.tied_output);
}

TEST(LlamaPlan, NamesAMissingTensor) {
  const auto plan = plan_with([](Tensors& tensors) { tensors.pop_back(); });
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kDataLoss);
  EXPECT_THAT(plan.error().message, HasSubstr("blk.1.ffn_down.weight is missing"));
}

TEST(LlamaPlan, NamesATensorThatIsLeftOver) {
  const auto plan = plan_with([](Tensors& tensors) {
    tensors.push_back({"blk.0.attn_q.bias", GgmlType::kF32, {96}});
  });
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(plan.error().message, HasSubstr("blk.0.attn_q.bias"));
}

TEST(LlamaPlan, NamesATensorOfTheWrongShapeAndBothShapes) {
  const auto plan = plan_with([](Tensors& tensors) {
    find(tensors, "blk.1.attn_k.weight").dims = {96, 64};
  });
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kDataLoss);
  EXPECT_THAT(plan.error().message, HasSubstr("blk.1.attn_k.weight has shape [96, 64]"));
  EXPECT_THAT(plan.error().message, HasSubstr("[96, 32]"));
}

TEST(LlamaPlan, NamesATensorOfATypeThatItCannotTake) {
  const auto matrix = plan_with(
      [](Tensors& tensors) { find(tensors, "blk.0.ffn_up.weight").type = GgmlType::kQ5_1; });
  ASSERT_FALSE(matrix);
  EXPECT_EQ(matrix.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(matrix.error().message, HasSubstr("blk.0.ffn_up.weight has type Q5_1"));
  const auto vector = plan_with(
      [](Tensors& tensors) { find(tensors, "blk.0.ffn_norm.weight").type = GgmlType::kQ8_0; });
  ASSERT_FALSE(vector);
  EXPECT_THAT(vector.error().message, HasSubstr("blk.0.ffn_norm.weight has type Q8_0"));
}

TEST(LlamaPlan, TakesMatricesOfDifferentTypes) {
  const auto plan = plan_with([](Tensors& tensors) {
    find(tensors, "blk.0.attn_q.weight").type = GgmlType::kQ4_0;
    find(tensors, "blk.0.attn_v.weight").type = GgmlType::kF16;
    find(tensors, "blk.1.ffn_down.weight").type = GgmlType::kQ5_0;
  });
  EXPECT_TRUE(plan) << plan.error().message;
}

// What plan() says to a model with one more key of metadata, or another value of it.
template <class T>
std::string refusal(std::string_view key, T value, TinyLlama tiny = {}) {
  format::GgufWriter writer;
  writer.add("general.architecture", std::string_view("llama"));
  const std::pair<std::string_view, std::uint32_t> numbers[] = {
      {"llama.block_count", tiny.layers},
      {"llama.context_length", 256},
      {"llama.embedding_length", tiny.hidden},
      {"llama.feed_forward_length", tiny.ffn},
      {"llama.attention.head_count", tiny.heads},
      {"llama.attention.head_count_kv", tiny.kv_heads},
      {"llama.attention.key_length", tiny.head_dim}};
  for (const auto& [name, number] : numbers)
    if (name != key)
      writer.add(name, number);
  if (key != "llama.attention.layer_norm_rms_epsilon")
    writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  writer.add(key, value);
  for (const TinyLlama::Tensor& tensor : tiny.tensors())
    writer.add_tensor(tensor.name, tensor.type, tensor.dims, tiny.data(tensor, 1));
  const ModelFile file(writer);
  const auto plan = LlamaModel::plan(*file);
  return plan ? "accepted" : plan.error().message;
}

TEST(LlamaPlan, RefusesMetadataThatCannotBe) {
  const auto number = [](std::string_view key, std::uint32_t value) { return refusal(key, value); };
  EXPECT_EQ(number("llama.vocab_size", 150), "accepted");
  EXPECT_THAT(number("llama.block_count", 0), HasSubstr("llama.block_count"));
  EXPECT_THAT(number("llama.block_count", 4000000000U), HasSubstr("llama.block_count"));
  EXPECT_THAT(number("llama.embedding_length", 100), HasSubstr("multiple of 32"));
  EXPECT_THAT(number("llama.attention.head_count_kv", 2), HasSubstr("evenly"));
  EXPECT_THAT(number("llama.attention.head_count_kv", 4), HasSubstr("head_count_kv"));
  EXPECT_THAT(number("llama.attention.key_length", 48), HasSubstr("multiple"));
  EXPECT_THAT(number("llama.attention.value_length", 64), HasSubstr("different lengths"));
  EXPECT_THAT(number("llama.rope.dimension_count", 16), HasSubstr("dimension_count"));
  EXPECT_THAT(number("llama.expert_count", 8), HasSubstr("experts"));
  EXPECT_THAT(number("llama.vocab_size", 151), HasSubstr("llama.vocab_size"));
  EXPECT_THAT(refusal("llama.rope.freq_base", -1.0F), HasSubstr("freq_base"));
  EXPECT_THAT(refusal("llama.attention.layer_norm_rms_epsilon", -1.0F), HasSubstr("epsilon"));
  EXPECT_THAT(refusal("llama.rope.scaling.type", std::string_view("yarn")), HasSubstr("yarn"));
}

TEST(LlamaPlan, RefusesAnotherArchitecture) {
  format::GgufWriter writer;
  writer.add("general.architecture", std::string_view("mamba"));
  const ModelFile file(writer);
  const auto plan = LlamaModel::plan(*file);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(plan.error().message, HasSubstr("mamba"));
}

}  // namespace
}  // namespace dormouse
