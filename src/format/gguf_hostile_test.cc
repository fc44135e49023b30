#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "testing/memory_file.h"
#include "testing/read_everything.h"

namespace dormouse::format {
namespace {

constexpr std::uint64_t kHuge = ~std::uint64_t{0};

// The bytes of a file, piece by piece, right or wrong.
class Raw {
 public:
  Raw& u32(std::uint32_t value) { return append(&value, sizeof value); }
  Raw& u64(std::uint64_t value) { return append(&value, sizeof value); }
  Raw& text(std::string_view value) { return u64(value.size()).append(value.data(), value.size()); }
  Raw& zeros(std::size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }
  Raw& header(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    append("GGUF", 4);
    return u32(version).u64(tensors).u64(keys);
  }
  Raw& tensor(std::string_view name, std::vector<std::uint64_t> dims, GgmlType type,
              std::uint64_t offset) {
    text(name).u32(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims)
      u64(dim);
    return u32(static_cast<std::uint32_t>(type)).u64(offset);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Raw& append(const void* data, std::size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
    return *this;
  }
  std::string bytes_;
};

Result<GgufFile> open(std::string_view content) {
  return GgufFile::open(testing::MemoryFile(content).path());
}

struct Case {
  std::string name;
  std::string message;  // after the path, before the advice
  Raw file;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> header_cases() {
  std::vector<Case> cases;
  cases.push_back(
      {"Empty", "byte 0: header: the file has 0 bytes, and the header alone has 24", Raw()});
  cases.push_back({"Short", "byte 0: header: the file has 23 bytes, and the header alone has 24",
                   Raw().u32(0x46554747).u32(3).zeros(15)});
  cases.push_back({"Magic", "byte 0: header: the file does not begin with 'GGUF'",
                   Raw().u32(0x46474747).u32(3).zeros(16)});
  cases.push_back({"TooManyTensors",
                   "byte 8: header: it announces 65537 tensors, and at most 65536 are allowed",
                   Raw().header(65537, 0).zeros(4096)});
  cases.push_back(
      {"EndlessTensors",
       "byte 8: header: it announces 18446744073709551615 tensors, and at most 65536 are allowed",
       Raw().header(kHuge, 0)});
  cases.push_back({"TooManyKeys",
                   "byte 16: header: it announces 65537 keys, and at most 65536 are allowed",
                   Raw().header(0, 65537).zeros(4096)});
  cases.push_back(
      {"MoreThanFits",
       "byte 24: header: 65536 keys and 65536 tensors take at least 3080192 bytes, and 100 "
       "are left",
       Raw().header(65536, 65536).zeros(100)});
  return cases;
}

std::vector<Case> key_cases() {
  std::vector<Case> cases;
  const auto key = [&](std::string name, std::string message, Raw file) {
    cases.push_back({std::move(name), std::move(message), std::move(file)});
  };
  key("EmptyKey", "byte 24: key 1 of 1: its name is empty", Raw().header(0, 1).text("").zeros(20));
  key("LongKey", "byte 24: key 1 of 1: its name has 65536 bytes, and at most 65535 are allowed",
      Raw().header(0, 1).text(std::string(65536, 'k')).zeros(20));
  key("EndlessKey",
      "byte 24: key 1 of 1: its name has 18446744073709551615 bytes, and at most 65535 are allowed",
      Raw().header(0, 1).u64(kHuge).zeros(20));
  key("KeyPastTheEnd", "byte 32: key 1 of 1: its name needs 21 bytes, and 20 are left",
      Raw().header(0, 1).u64(21).zeros(20));
  key("KeyTwice", "byte 41: key 'k': it occurs twice",
      Raw().header(0, 2).text("k").u32(4).u32(1).text("k").u32(4).u32(1));
  key("UnprintableKey", "byte 41: key 'a\\x0a\\xff\\x27': it occurs twice",
      Raw().header(0, 2).text("a\n\xff'").u32(0).zeros(1).text("a\n\xff'").u32(0).zeros(1));
  key("ValueType", "byte 37: key 'k': value type 13 is unknown",
      Raw().header(0, 1).text("k").u32(13).zeros(8));
  key("EndlessValueType", "byte 37: key 'k': value type 4294967295 is unknown",
      Raw().header(0, 1).text("k").u32(0xffffffff).zeros(8));
  key("ValuePastTheEnd", "byte 37: key 'k': its value needs 8 bytes, and 7 are left",
      Raw().header(0, 1).text("k").u32(10).zeros(7));
  key("StringPastTheEnd", "byte 45: key 'k': its string needs 5 bytes, and 4 are left",
      Raw().header(0, 1).text("k").u32(8).u64(5).zeros(4));
  key("LongString",
      "byte 37: key 'k': its string has 67108865 bytes, and at most 67108864 are allowed",
      Raw().header(0, 1).text("k").u32(8).u64((64 << 20) + 1).zeros(4));
  key("StringPlusOneWraps",
      "byte 37: key 'k': its string has 18446744073709551615 bytes, and at most 67108864 are "
      "allowed",
      Raw().header(0, 1).text("k").u32(8).u64(kHuge).zeros(4));
  key("NestedArray", "byte 41: key 'k': arrays of arrays are not allowed",
      Raw().header(0, 1).text("k").u32(9).u32(9).u64(1).u32(9).u64(1));
  key("ElementType", "byte 41: key 'k': array element type 255 is unknown",
      Raw().header(0, 1).text("k").u32(9).u32(255).u64(1).zeros(8));
  key("ArrayWraps", "byte 49: key 'k': the size of its array overflows",
      Raw().header(0, 1).text("k").u32(9).u32(10).u64(std::uint64_t{1} << 61).zeros(8));
  key("ArrayPastTheEnd", "byte 49: key 'k': its array needs 12 bytes, and 11 are left",
      Raw().header(0, 1).text("k").u32(9).u32(4).u64(3).zeros(11));
  key("StringsPastTheEnd", "byte 49: key 'k': 3 strings do not fit into the 23 bytes left",
      Raw().header(0, 1).text("k").u32(9).u32(8).u64(3).zeros(23));
  key("EndlessStrings",
      "byte 49: key 'k': 18446744073709551615 strings do not fit into the 24 bytes left",
      Raw().header(0, 1).text("k").u32(9).u32(8).u64(kHuge).zeros(24));
  key("ElementPastTheEnd", "byte 65: key 'k': a string of its array needs 9 bytes, and 8 are left",
      Raw().header(0, 1).text("k").u32(9).u32(8).u64(2).u64(0).u64(9).zeros(8));
  for (const std::uint32_t alignment : {0U, 4U, 24U, 1U << 21, 1U << 31})
    key("Alignment" + std::to_string(alignment),
        "byte 53: key 'general.alignment': " + std::to_string(alignment) +
            " is not a power of two from 8 to 1048576",
        Raw().header(0, 1).text("general.alignment").u32(4).u32(alignment).zeros(64));
  key("AlignmentText", "byte 61: key 'general.alignment': it should be an integer, and is string",
      Raw().header(0, 1).text("general.alignment").u32(8).text("32").zeros(64));
  return cases;
}

std::vector<Case> tensor_cases() {
  std::vector<Case> cases;
  const auto tensor = [&](std::string name, std::string message, Raw file) {
    cases.push_back({std::move(name), std::move(message), std::move(file)});
  };
  const auto one = [](std::string_view name, std::vector<std::uint64_t> dims, GgmlType type,
                      std::uint64_t offset) {
    return Raw().header(1, 0).tensor(name, std::move(dims), type, offset).zeros(256);
  };
  const GgmlType f32 = GgmlType::kF32;
  tensor("EmptyName", "byte 24: tensor 1 of 1: its name is empty or holds a zero byte",
         one("", {4}, f32, 0));
  tensor("ZeroInName", "byte 24: tensor 1 of 1: its name is empty or holds a zero byte",
         one(std::string_view("a\0b", 3), {4}, f32, 0));
  tensor("LongName", "byte 24: tensor 1 of 1: its name has 64 bytes, and at most 63 are allowed",
         one(std::string(64, 'n'), {4}, f32, 0));
  tensor("NameTwice", "byte 57: tensor 't': it occurs twice",
         Raw().header(2, 0).tensor("t", {4}, f32, 0).tensor("t", {4}, f32, 32).zeros(256));
  tensor("NoDims", "byte 37: tensor 't': it has 0 dimensions, and 1 to 4 are allowed",
         one("t", {}, f32, 0));
  tensor("FiveDims", "byte 37: tensor 't': it has 5 dimensions, and 1 to 4 are allowed",
         one("t", {1, 1, 1, 1, 1}, f32, 0));
  tensor("EndlessDims", "byte 37: tensor 't': it has 4294967295 dimensions, and 1 to 4 are allowed",
         Raw().header(1, 0).text("t").u32(0xffffffff).zeros(256));
  tensor("DimZero", "byte 53: tensor 't': dimension 1 is 0", one("t", {4, 0}, f32, 0));
  tensor("ManyElements", "byte 53: tensor 't': it has 2^48 elements or more",
         one("t", {1 << 24, 1 << 24}, f32, 0));
  tensor("ElementsWrap", "byte 69: tensor 't': it has 2^48 elements or more",
         one("t", {std::uint64_t{1} << 32, std::uint64_t{1} << 31, 2, 1}, f32, 0));
  tensor("ElementsWrapToFour", "byte 53: tensor 't': it has 2^48 elements or more",
         one("t", {(std::uint64_t{1} << 63) + 2, 2}, f32, 0));
  tensor("PartOfABlock",
         "byte 49: tensor 't': its rows of 33 elements are no multiple of 32, a block of Q8_0",
         one("t", {33}, GgmlType::kQ8_0, 0));
  tensor("PartOfASuperBlock",
         "byte 49: tensor 't': its rows of 128 elements are no multiple of 256, a block of Q4_K",
         one("t", {128}, GgmlType::kQ4_K, 0));
  tensor("OffsetPastTheEnd", "byte 52: tensor 'name': its offset needs 8 bytes, and 7 are left",
         Raw().header(1, 0).text("name").u32(1).u64(4).u32(0).zeros(7));
  tensor("OddOffset", "byte 57: tensor 't': its offset 4 is no multiple of 32",
         one("t", {4}, f32, 4));
  tensor("Hole", "byte 57: tensor 't': its offset is 32, and the tensors before it end at 0",
         one("t", {4}, f32, 32));
  tensor("Overlap", "byte 90: tensor 'u': its offset is 0, and the tensors before it end at 32",
         Raw().header(2, 0).tensor("t", {4}, f32, 0).tensor("u", {4}, f32, 0).zeros(256));
  tensor(
      "EndlessOffset",
      "byte 57: tensor 't': its offset is 18446744073709551584, and the tensors before it end at 0",
      one("t", {4}, f32, kHuge - 31));
  tensor("DataPastTheEnd",
         "byte 57: tensor 't': its 320 bytes at offset 0 run past the end of the file of 313 bytes",
         one("t", {80}, f32, 0));
  tensor("LargestTensor",
         "byte 57: tensor 't': its 1125899906842620 bytes at offset 0 run past the end of the file "
         "of 313 "
         "bytes",
         one("t", {(std::uint64_t{1} << 48) - 1}, f32, 0));
  return cases;
}

class Hostile : public ::testing::TestWithParam<Case> {};

TEST_P(Hostile, IsRefusedWithThePlaceAndTheReason) {
  const testing::MemoryFile memory(GetParam().file.bytes());
  const auto file = GgufFile::open(memory.path());
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(file.error().message,
            memory.path() + ": " + GetParam().message +
                ". The file is damaged, incomplete or not a model: fetch it again and compare its "
                "checksum.");
}

std::string name_of(const ::testing::TestParamInfo<Case>& param) {
  return param.param.name;
}
INSTANTIATE_TEST_SUITE_P(Header, Hostile, ::testing::ValuesIn(header_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Keys, Hostile, ::testing::ValuesIn(key_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Tensors, Hostile, ::testing::ValuesIn(tensor_cases()), name_of);

TEST(HostileFile, OtherVersionsAndTypesAreUnsupported) {
  for (const std::uint32_t version : {0U, 1U, 4U, 3U << 24}) {
    const testing::MemoryFile memory(Raw().header(0, 0, version).bytes());
    const auto file = GgufFile::open(memory.path());
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(file.error().message, memory.path() + ": byte 4: header: version " +
                                        std::to_string(version) +
                                        " is not supported, only 2 and 3" +
                                        (version == 3U << 24 ? " in little-endian order" : "") +
                                        ". Convert the model again with a current converter.");
  }
  for (const std::uint32_t type : {4U, 16U, 31U, 0xffffffffU}) {
    const testing::MemoryFile memory(
        Raw().header(1, 0).tensor("t", {32}, GgmlType{type}, 0).zeros(256).bytes());
    const auto file = GgufFile::open(memory.path());
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(file.error().message,
              memory.path() + ": byte 45: tensor 't': tensor type " + std::to_string(type) +
                  " is not supported. Use a model in F32, F16, BF16, Q4_0, Q4_1, Q5_0 or Q8_0.");
  }
}

TEST(HostileFile, NothingButAHeaderIsAValidFile) {
  EXPECT_TRUE(open(Raw().header(0, 0).bytes()));
}

// A file with every kind of value, whose last byte is the last of a page: a view that reaches too
// far leaves the mapping.
std::string one_page_file() {
  GgufWriter writer;
  writer.add("general.alignment", std::uint32_t{32});
  writer.add("u8", std::uint8_t{1});
  writer.add("i16", std::int16_t{-2});
  writer.add("u64", std::uint64_t{3});
  writer.add("f32", 4.0F);
  writer.add("f64", 5.0);
  writer.add("bool", true);
  writer.add("text", "six");
  const std::vector<std::string> texts = {"", "seven", "eight"};
  writer.add_array("texts", std::span(texts));
  const std::vector<std::int32_t> ints = {9, 10, 11};
  writer.add_array("ints", std::span(ints));
  const std::vector<std::uint64_t> matrix = {64, 3};
  writer.add_tensor("matrix", GgmlType::kQ4_1, matrix, std::vector<std::byte>(120, std::byte{1}));
  const std::vector<std::uint64_t> cube = {32, 2, 1, 3};
  writer.add_tensor("cube", GgmlType::kQ8_0, cube, std::vector<std::byte>(204, std::byte{2}));
  const std::size_t rest = 4096 - writer.bytes().size() - 32;
  const std::vector<std::uint64_t> last = {rest / 4};
  writer.add_tensor("last", GgmlType::kF32, last, std::vector<std::byte>(rest, std::byte{3}));
  const auto bytes = writer.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(HostileFile, CutAnywhereItIsAnErrorAndNeverACrash) {
  const std::string whole = one_page_file();
  ASSERT_EQ(whole.size() % 4096, 0U);
  const auto file = open(whole);
  ASSERT_TRUE(file) << file.error().message;
  testing::read_everything(*file);
  for (std::size_t size = 0; size < whole.size(); ++size)
    ASSERT_FALSE(open(std::string_view(whole).substr(0, size))) << size;
}

TEST(HostileFile, EveryByteSetToExtremesIsReadOrRefused) {
  const std::string whole = one_page_file();
  int accepted = 0;
  for (std::size_t i = 0; i < 800; ++i) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(value);
      if (const auto file = open(changed)) {
        testing::read_everything(*file);
        ++accepted;
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(HostileFile, RandomDamageIsReadOrRefused) {
  const std::string whole = one_page_file();
  std::mt19937_64 random(1);
  int accepted = 0;
  for (int round = 0; round < 10'000; ++round) {
    std::string changed = whole;
    for (std::uint64_t count = 1 + random() % 4; count > 0; --count) {
      const std::size_t width = std::size_t{1} << random() % 4;
      const std::uint64_t value = random() % 2 ? random() : random() >> (random() % 64);
      std::memcpy(changed.data() + random() % 800, &value, width);
    }
    if (const auto file = open(changed)) {
      testing::read_everything(*file);
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace dormouse::format
