#include "testing/read_everything.h"

#include <string_view>

#include "base/check.h"

namespace dormouse::testing {
namespace {

using format::GgufFile;

std::uint64_t checksum(std::string_view text) {
  std::uint64_t sum = text.size();
  for (const char c : text)
    sum = sum * 31 + static_cast<unsigned char>(c);
  return sum;
}

template <class T>
std::uint64_t checksum(const Result<T>& value) {
  return value ? static_cast<std::uint64_t>(*value != T{}) : checksum(value.error().message);
}

std::uint64_t read_key(const GgufFile& file, std::string_view key) {
  std::uint64_t sum = checksum(key) + checksum(file.get_u64(key)) + checksum(file.get_u32(key)) +
                      checksum(file.get_f32(key)) + checksum(file.get_bool(key)) +
                      checksum(file.get_i32s(key)) + checksum(file.get_u64s(key)) +
                      checksum(file.get_f32s(key));
  if (const auto text = file.get_string(key))
    sum += checksum(*text);
  if (const auto texts = file.get_strings(key))
    for (const std::string_view text : *texts)
      sum += checksum(text);
  return sum;
}

}  // namespace

std::uint64_t read_everything(const GgufFile& file) {
  std::uint64_t sum = 0;
  for (const std::string_view key : file.keys())
    sum += read_key(file, key);
  for (const format::TensorInfo& info : file.tensors()) {
    const format::BlockShape block = format::block_shape(info.type);
    const auto bytes = file.tensor_bytes(info);
    DM_CHECK(bytes.size() == info.elements() / block.elements * block.bytes, "all of a tensor");
    DM_CHECK(file.find_tensor(info.name) == &info, "a tensor is found by its name");
    for (const std::byte byte : bytes)
      sum = sum * 31 + static_cast<std::uint64_t>(byte);
  }
  return sum;
}

}  // namespace dormouse::testing
