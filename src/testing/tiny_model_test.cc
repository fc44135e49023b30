#include "testing/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "format/gguf.h"
#include "testing/corrupt.h"
#include "testing/quantize.h"

namespace dormouse::testing {
namespace {

using format::GgmlType;
using format::GgufFile;

class TinyModel : public ::testing::TestWithParam<GgmlType> {
 protected:
  ~TinyModel() override { std::remove(path_.c_str()); }
  GgufFile make(const TinyModelOptions& options) {
    EXPECT_TRUE(write_tiny_model(path_, options));
    return GgufFile::open(path_).value();
  }
  const std::string path_ = ::testing::TempDir() + "dormouse_tiny_" +
                            std::string(format::type_name(GetParam())) + ".gguf";
};

TEST_P(TinyModel, HasEveryTensorOfALlama) {
  const GgufFile file = make({.type = GetParam()});
  EXPECT_EQ(file.tensors().size(), 3 + 2 * 9U);
  const auto* down = file.find_tensor("blk.1.ffn_down.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->dims, (std::vector<std::uint64_t>{128, 64}));
  EXPECT_EQ(down->type, GetParam());
  EXPECT_EQ(file.find_tensor("blk.1.ffn_norm.weight")->type, GgmlType::kF32);
  EXPECT_EQ(file.find_tensor("token_embd.weight")->rows(),
            file.get_strings("tokenizer.ggml.tokens")->size());
  EXPECT_EQ(file.get_u32("llama.vocab_size"), file.find_tensor("token_embd.weight")->rows());
}

TEST_P(TinyModel, IsTheSameForTheSameSeedOnly) {
  const TinyModelOptions options{.type = GetParam(), .seed = 7};
  EXPECT_EQ(tiny_model(options), tiny_model(options));
  EXPECT_NE(tiny_model(options), tiny_model({.type = GetParam(), .seed = 8}));
}

TEST_P(TinyModel, LeavesOutAndReplacesWhatItIsTold) {
  const GgufFile file = make({.type = GetParam(),
                              .tied = true,
                              .chat_template = "",
                              .replaced = {{"llama.block_count", 0}},
                              .omitted = {"blk.0.attn_q.weight", "general.name"}});
  EXPECT_EQ(file.find_tensor("output.weight"), nullptr);
  EXPECT_EQ(file.find_tensor("blk.0.attn_q.weight"), nullptr);
  EXPECT_FALSE(file.has("general.name"));
  EXPECT_FALSE(file.has("tokenizer.chat_template"));
  EXPECT_EQ(file.get_u32("llama.block_count"), 0U);
}

INSTANTIATE_TEST_SUITE_P(Types, TinyModel,
                         ::testing::Values(GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16,
                                           GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1),
                         [](const auto& type) {
                           return std::string(format::type_name(type.param));
                         });

TEST(TinyVocabulary, NamesEveryTokenOnceAndMergesOnlyKnownOnes) {
  const std::vector<std::string> tokens = tiny_vocabulary();
  const std::set<std::string> known(tokens.begin(), tokens.end());
  EXPECT_EQ(known.size(), tokens.size());
  EXPECT_EQ(tokens[3 + ' '], "Ġ");
  EXPECT_EQ(tokens[3 + '\n'], "Ċ");
  EXPECT_EQ(tokens[3 + 'A'], "A");
  EXPECT_EQ(tokens[3 + 0xad], "Ń");
  for (const std::string& merge : tiny_merges()) {
    const std::size_t space = merge.find(' ');
    EXPECT_TRUE(known.contains(merge.substr(0, space))) << merge;
    EXPECT_TRUE(known.contains(merge.substr(space + 1))) << merge;
    EXPECT_TRUE(known.contains(merge.substr(0, space) + merge.substr(space + 1))) << merge;
  }
}

TEST(Quantize, HalfFloatsRoundToNearestEvenAndComeBack) {
  EXPECT_EQ(to_f16(1.0F), 0x3c00);
  EXPECT_EQ(to_f16(-2.0F), 0xc000);
  EXPECT_EQ(to_f16(65504.0F), 0x7bff);
  EXPECT_EQ(to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(to_f16(0x1p-24F), 0x0001);
  EXPECT_EQ(to_f16(0x1p-25F), 0x0000);
  EXPECT_EQ(to_f16(1 + 0x1p-11F), 0x3c00);
  EXPECT_EQ(to_f16(1 + 0x3p-11F), 0x3c02);
  EXPECT_EQ(to_bf16(1 + 0x1p-8F), 0x3f80);
  EXPECT_EQ(to_bf16(1 + 0x3p-8F), 0x3f82);
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = from_f16(static_cast<std::uint16_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(to_f16(value), bits);
    }
  }
}

TEST(Quantize, BlocksAreLaidOutByTheDefinition) {
  std::vector<float> ramp(32);
  for (std::size_t i = 0; i < ramp.size(); ++i)
    ramp[i] = static_cast<float>(i) - 16;
  const auto bytes = quantize(GgmlType::kQ4_0, ramp);  // furthest is -16, so the scale is 2
  ASSERT_EQ(bytes.size(), 18U);
  EXPECT_EQ(bytes[0], std::byte{0x00});
  EXPECT_EQ(bytes[1], std::byte{0x40});
  EXPECT_EQ(bytes[2], std::byte{0x80});   // values 0 and 16: -16 / 2 + 8 and 0 / 2 + 8
  EXPECT_EQ(bytes[17], std::byte{0xf8});  // values 15 and 31: -0.5 + 8 to even, 7.5 + 8 cut to 15

  ramp.assign(32, 0.0F);
  ramp[31] = 127;
  const auto q8 = quantize(GgmlType::kQ8_0, ramp);
  EXPECT_EQ(q8.size(), 34U);
  EXPECT_EQ(q8[33], std::byte{127});

  ramp.assign(32, 3.0F);
  ramp[1] = 18;
  const auto q4_1 = quantize(GgmlType::kQ4_1, ramp);  // scale 1, zero 3
  EXPECT_EQ(q4_1.size(), 20U);
  EXPECT_EQ(q4_1[4], std::byte{0x00});
  EXPECT_EQ(q4_1[5], std::byte{0x0f});
}

TEST(Corrupt, ChangesExactlyWhatItSays) {
  const std::string path = ::testing::TempDir() + "dormouse_corrupt_test";
  ASSERT_TRUE(write_tiny_model(path));
  const std::uint64_t offset = offset_of(path, "llama.block_count");
  flip_bit(path, offset, 5);
  EXPECT_EQ(offset_of(path, "Llama.block_count"), offset);
  truncate_file(path, offset);
  EXPECT_FALSE(GgufFile::open(path));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace dormouse::testing
