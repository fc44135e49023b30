#include "format/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "format/gguf_writer.h"
#include "testing/corrupt.h"
#include "testing/tiny_model.h"

namespace dormouse::format {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Gguf : public ::testing::Test {
 protected:
  ~Gguf() override { std::remove(path_.c_str()); }
  GgufFile open(const GgufWriter& writer) {
    EXPECT_TRUE(writer.write(path_));
    auto file = GgufFile::open(path_);
    EXPECT_TRUE(file) << (file ? "" : file.error().message);
    return *std::move(file);
  }
  const std::string path_ = ::testing::TempDir() + "dormouse_gguf_test.gguf";
};

std::vector<std::byte> iota_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

TEST_F(Gguf, ReadsBackEveryKindOfValue) {
  GgufWriter writer;
  writer.add("u8", std::uint8_t{200});
  writer.add("i8", std::int8_t{-7});
  writer.add("u16", std::uint16_t{60000});
  writer.add("i16", std::int16_t{-300});
  writer.add("u32", std::uint32_t{4'000'000'000});
  writer.add("i32", std::int32_t{-5});
  writer.add("u64", std::uint64_t{1} << 40);
  writer.add("i64", std::int64_t{12});
  writer.add("f32", 1.5F);
  writer.add("f64", -2.25);
  writer.add("yes", true);
  writer.add("no", false);
  writer.add("text", "doze");
  writer.add("empty", "");
  const std::vector<std::string> texts = {"a", "", "ccc"};
  writer.add_array("texts", std::span(texts));
  const std::vector<std::int32_t> ints = {1, -2, 3};
  writer.add_array("ints", std::span(ints));
  const std::vector<std::uint16_t> shorts = {9, 3};
  writer.add_array("shorts", std::span(shorts));
  const std::vector<float> floats = {0.5F, -1};
  writer.add_array("floats", std::span(floats));
  writer.add_array("none", std::span<const float>());

  const GgufFile file = open(writer);
  EXPECT_EQ(file.version(), 3U);
  EXPECT_EQ(file.get_u64("u8"), 200U);
  EXPECT_EQ(file.get_u64("u16"), 60000U);
  EXPECT_EQ(file.get_u32("u32"), 4'000'000'000U);
  EXPECT_EQ(file.get_u64("u64"), std::uint64_t{1} << 40);
  EXPECT_EQ(file.get_u32("i64"), 12U);
  EXPECT_EQ(file.get_f32("f32"), 1.5F);
  EXPECT_EQ(file.get_f32("f64"), -2.25F);
  EXPECT_EQ(file.get_bool("yes"), true);
  EXPECT_EQ(file.get_bool("no"), false);
  EXPECT_EQ(file.get_string("text"), "doze");
  EXPECT_EQ(file.get_string("empty"), "");
  EXPECT_THAT(file.get_strings("texts").value(), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(file.get_i32s("ints").value(), ElementsAre(1, -2, 3));
  EXPECT_THAT(file.get_u64s("shorts").value(), ElementsAre(9, 3));
  EXPECT_THAT(file.get_f32s("floats").value(), ElementsAre(0.5F, -1));
  EXPECT_TRUE(file.get_f32s("none")->empty());
  EXPECT_TRUE(file.is_array("ints"));
  EXPECT_FALSE(file.is_array("text"));
  EXPECT_EQ(file.keys().size(), 19U);
}

TEST_F(Gguf, NamesTheKeyThatIsMissingOrOfAnotherType) {
  GgufWriter writer;
  writer.add("text", "doze");
  writer.add("minus", std::int32_t{-1});
  writer.add("large", std::uint64_t{1} << 32);
  writer.add("number", std::numeric_limits<float>::quiet_NaN());
  writer.add("far", 1e300);
  const std::vector<std::int32_t> ints = {1, -2};
  writer.add_array("ints", std::span(ints));
  const GgufFile file = open(writer);

  const auto message = [&](const auto& result) {
    return result ? "accepted" : result.error().message.substr(path_.size() + 2);
  };
  EXPECT_EQ(file.get_u64("absent").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(message(file.get_u64("absent")), HasSubstr("key 'absent' is missing. "));
  EXPECT_THAT(message(file.get_u64("text")),
              HasSubstr("byte 48: key 'text': it should be an integer, and is string. "));
  EXPECT_THAT(message(file.get_bool("minus")), HasSubstr("it should be bool, and is i32"));
  EXPECT_THAT(message(file.get_string("minus")), HasSubstr("it should be string, and is i32"));
  EXPECT_THAT(message(file.get_f32("minus")), HasSubstr("it should be f32, and is i32"));
  EXPECT_THAT(message(file.get_u64("minus")),
              HasSubstr("i32 -1 is not between 0 and 18446744073709551615"));
  EXPECT_THAT(message(file.get_u32("large")),
              HasSubstr("u64 4294967296 is not between 0 and 4294967295"));
  EXPECT_THAT(message(file.get_f32("number")), HasSubstr("it is not a finite f32"));
  EXPECT_THAT(message(file.get_f32("far")), HasSubstr("it is not a finite f32"));
  EXPECT_THAT(message(file.get_u32("ints")),
              HasSubstr("it should be a single value, and is an array of i32"));
  EXPECT_THAT(message(file.get_u64s("ints")), HasSubstr("i32 -2 is not between 0 and"));
  EXPECT_THAT(message(file.get_i32s("text")), HasSubstr("it should be an array, and is string"));
  EXPECT_THAT(message(file.get_strings("ints")),
              HasSubstr("it should be an array of string, and is an array of i32"));
  EXPECT_THAT(message(file.get_f32s("ints")),
              HasSubstr("it should be f32, and is an array of i32"));
}

TEST_F(Gguf, DefaultsStandInForMissingKeysAndNotForWrongOnes) {
  GgufWriter writer;
  writer.add("text", "doze");
  writer.add("seven", std::uint32_t{7});
  const GgufFile file = open(writer);
  EXPECT_EQ(file.get_u32_or("absent", 3), 3U);
  EXPECT_EQ(file.get_u64_or("seven", 3), 7U);
  EXPECT_EQ(file.get_f32_or("absent", 0.5F), 0.5F);
  EXPECT_EQ(file.get_bool_or("absent", true), true);
  EXPECT_EQ(file.get_string_or("absent", "x"), "x");
  EXPECT_EQ(file.get_u32_or("text", 3).error().code, ErrorCode::kDataLoss);
}

TEST_F(Gguf, TensorsAreViewsOfTheFile) {
  GgufWriter writer;
  const auto norm = iota_bytes(3 * 4);
  const auto matrix = iota_bytes(2 * 2 * 20);
  const std::vector<std::uint64_t> norm_dims = {3};
  const std::vector<std::uint64_t> matrix_dims = {64, 2};
  writer.add_tensor("norm", GgmlType::kF32, norm_dims, norm);
  writer.add_tensor("matrix", GgmlType::kQ4_1, matrix_dims, matrix);
  GgufFile first = open(writer);
  const std::byte* address = first.tensor_bytes(first.tensors()[1]).data();
  const GgufFile file = std::move(first);

  ASSERT_EQ(file.tensors().size(), 2U);
  const TensorInfo* info = file.find_tensor("matrix");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->type, GgmlType::kQ4_1);
  EXPECT_THAT(info->dims, ElementsAre(64, 2));
  EXPECT_EQ(info->row_length(), 64U);
  EXPECT_EQ(info->rows(), 2U);
  EXPECT_EQ(info->bytes, 80U);
  EXPECT_EQ(info->offset % kDefaultAlignment, 0U);
  const auto bytes = file.tensor_bytes(*info);
  EXPECT_EQ(bytes.data(), address);
  EXPECT_EQ(std::vector(bytes.begin(), bytes.end()), matrix);
  EXPECT_EQ(file.find_tensor("absent"), nullptr);
}

TEST_F(Gguf, ReadsVersion2AndOtherAlignments) {
  GgufWriter writer({.version = 2, .alignment = 256});
  writer.add("general.alignment", std::uint32_t{256});
  const std::vector<std::uint64_t> dims = {4};
  writer.add_tensor("a", GgmlType::kF16, dims, iota_bytes(8));
  writer.add_tensor("b", GgmlType::kBF16, dims, iota_bytes(8));
  const GgufFile file = open(writer);
  EXPECT_EQ(file.version(), 2U);
  EXPECT_EQ(file.alignment(), 256U);
  EXPECT_EQ(file.tensors()[0].offset % 256, 0U);
  EXPECT_EQ(file.tensors()[1].offset, file.tensors()[0].offset + 256);
}

TEST_F(Gguf, NoticesThatTheFileChanged) {
  GgufWriter writer;
  writer.add("text", "doze");
  const GgufFile file = open(writer);
  EXPECT_TRUE(file.verify_unchanged());
  testing::truncate_file(path_, 40);
  const Status changed = file.verify_unchanged();
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code, ErrorCode::kDataLoss);
  EXPECT_THAT(changed.error().message, HasSubstr("changed while it was in use"));
}

TEST_F(Gguf, ReplacingTheFileLeavesAnOpenOneAsItWas) {
  GgufWriter writer;
  writer.add("text", "doze");
  const GgufFile file = open(writer);
  GgufWriter other;
  ASSERT_TRUE(other.write(path_));
  EXPECT_TRUE(file.verify_unchanged());
  EXPECT_EQ(file.get_string("text"), "doze");
}

TEST_F(Gguf, RefusesWhatIsNoFile) {
  EXPECT_EQ(GgufFile::open(path_ + ".absent").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(GgufFile::open(::testing::TempDir()).error().message,
              HasSubstr("is not a regular file"));
}

TEST_F(Gguf, WriterReportsAPathItCannotWrite) {
  EXPECT_THAT(GgufWriter().write("/nonexistent/model.gguf").error().message,
              HasSubstr("cannot write /nonexistent/model.gguf"));
}

TEST(GgmlType, KnowsTheBlocksOfEachType) {
  EXPECT_EQ(ggml_type_from_id(3), GgmlType::kQ4_1);
  EXPECT_EQ(ggml_type_from_id(4), std::nullopt);
  EXPECT_EQ(ggml_type_from_id(30), GgmlType::kBF16);
  EXPECT_EQ(block_shape(GgmlType::kQ6_K).elements, 256U);
  EXPECT_EQ(block_shape(GgmlType::kQ6_K).bytes, 210U);
  EXPECT_EQ(type_name(GgmlType::kQ4_K), "Q4_K");
}

TEST(GgufFile, ATensorOfAFileThatWasCutShortIsAnErrorToRead) {
  const std::string path = ::testing::TempDir() + "cut_short.gguf";
  ASSERT_TRUE(dormouse::testing::write_tiny_model(path));
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file);
  const TensorInfo& last = file->tensors().back();
  std::vector<std::byte> bytes(last.bytes);
  ASSERT_TRUE(file->read_tensor(last, bytes));
  EXPECT_TRUE(std::ranges::equal(bytes, file->tensor_bytes(last)));
  std::filesystem::resize_file(path, last.offset + last.bytes / 2);
  EXPECT_EQ(file->read_tensor(last, bytes).error().code, ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace dormouse::format
