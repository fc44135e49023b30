#include "format/gguf.h"

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "format/gguf_cursor.h"
#include "format/gguf_parser.h"

namespace dormouse::format {
namespace {

template <class T>
T load(std::span<const std::byte> bytes, std::uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::optional<std::int64_t> integer_at(std::span<const std::byte> bytes, ValueType type,
                                       std::uint64_t offset) {
  switch (type) {
    case ValueType::kU8:
      return load<std::uint8_t>(bytes, offset);
    case ValueType::kI8:
      return load<std::int8_t>(bytes, offset);
    case ValueType::kU16:
      return load<std::uint16_t>(bytes, offset);
    case ValueType::kI16:
      return load<std::int16_t>(bytes, offset);
    case ValueType::kU32:
      return load<std::uint32_t>(bytes, offset);
    case ValueType::kI32:
      return load<std::int32_t>(bytes, offset);
    case ValueType::kU64:
    case ValueType::kI64:  // from 2^63 on a u64 turns negative here, and nothing asks for one
      return load<std::int64_t>(bytes, offset);
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string_view type_name(ValueType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<std::size_t>(type)];
}

std::uint64_t TensorInfo::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t dim : dims)
    product *= dim;
  return product;
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  auto mapped = MappedFile::open(path);
  if (!mapped)
    return tl::unexpected(std::move(mapped).error());
  GgufFile file(*std::move(mapped));
  DM_TRY(GgufParser::parse(file));
  return file;
}

Result<const GgufValue*> GgufFile::find(std::string_view key, bool array) const {
  const auto found = values_.find(key);
  if (found == values_.end())
    return fail(
        ErrorCode::kNotFound,
        fmt::format("{}: key {} is missing. The file is not a complete model of a known kind: "
                    "convert it again with a current converter.",
                    path(), quoted(key)));
  if (found->second.array != array)
    return wrong_type(key, found->second, array ? "an array" : "a single value");
  return &found->second;
}

tl::unexpected<Error> GgufFile::wrong_type(std::string_view key, const GgufValue& value,
                                           std::string_view wanted) const {
  return damaged(path(), value.offset, "key " + quoted(key),
                 fmt::format("it should be {}, and is {}{}", wanted,
                             value.array ? "an array of " : "", type_name(value.type)));
}

template <class T>
Result<T> GgufFile::integer_element(std::string_view key, const GgufValue& value,
                                    std::uint64_t index) const {
  const std::uint64_t offset = value.offset + index * value_bytes(value.type);
  const auto integer = integer_at(file_.bytes(), value.type, offset);
  if (!integer)
    return wrong_type(key, value, "an integer");
  if (!std::in_range<T>(*integer))
    return damaged(path(), offset, "key " + quoted(key),
                   fmt::format("{} {} is not between {} and {}", type_name(value.type), *integer,
                               std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  return static_cast<T>(*integer);
}

Result<float> GgufFile::float_element(std::string_view key, const GgufValue& value,
                                      std::uint64_t index) const {
  const std::uint64_t offset = value.offset + index * value_bytes(value.type);
  float result = 0;
  if (value.type == ValueType::kF32)
    result = load<float>(file_.bytes(), offset);
  else if (value.type == ValueType::kF64)
    result = static_cast<float>(load<double>(file_.bytes(), offset));
  else
    return wrong_type(key, value, "f32");
  if (!std::isfinite(result))
    return damaged(path(), offset, "key " + quoted(key), "it is not a finite f32");
  return result;
}

template <class T>
Result<T> GgufFile::get_integer(std::string_view key) const {
  const GgufValue* value = nullptr;
  DM_TRY_ASSIGN(value, find(key, false));
  return integer_element<T>(key, *value, 0);
}

template <class T>
Result<std::vector<T>> GgufFile::get_integers(std::string_view key) const {
  const GgufValue* value = nullptr;
  DM_TRY_ASSIGN(value, find(key, true));
  std::vector<T> result(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    DM_TRY_ASSIGN(result[i], integer_element<T>(key, *value, i));
  }
  return result;
}

Result<std::uint64_t> GgufFile::get_u64(std::string_view key) const {
  return get_integer<std::uint64_t>(key);
}

Result<std::uint32_t> GgufFile::get_u32(std::string_view key) const {
  return get_integer<std::uint32_t>(key);
}

Result<std::vector<std::int32_t>> GgufFile::get_i32s(std::string_view key) const {
  return get_integers<std::int32_t>(key);
}

Result<std::vector<std::uint64_t>> GgufFile::get_u64s(std::string_view key) const {
  return get_integers<std::uint64_t>(key);
}

Result<float> GgufFile::get_f32(std::string_view key) const {
  const GgufValue* value = nullptr;
  DM_TRY_ASSIGN(value, find(key, false));
  return float_element(key, *value, 0);
}

Result<std::vector<float>> GgufFile::get_f32s(std::string_view key) const {
  const GgufValue* value = nullptr;
  DM_TRY_ASSIGN(value, find(key, true));
  std::vector<float> result(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    DM_TRY_ASSIGN(result[i], float_element(key, *value, i));
  }
  return result;
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  const GgufValue* value = nullptr;
  DM_TRY_ASSIGN(value, find(key, false));
  if (value->type != ValueType::kBool)
    return wrong_type(key, *value, "bool");
  return load<std::uint8_t>(file_.bytes(), value->offset) != 0;
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  const GgufValue* value = nullptr;
  DM_TRY_ASSIGN(value, find(key, false));
  if (value->type != ValueType::kString)
    return wrong_type(key, *value, "string");
  return std::string_view(reinterpret_cast<const char*>(file_.bytes().data() + value->offset),
                          value->count);
}

Result<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  const GgufValue* value = nullptr;
  DM_TRY_ASSIGN(value, find(key, true));
  if (value->type != ValueType::kString)
    return wrong_type(key, *value, "an array of string");
  // The lengths are read again, and so checked again: another process may have written the file.
  GgufCursor cursor(file_.bytes(), path(), value->offset);
  cursor.set_subject("key " + quoted(key));
  std::vector<std::string_view> result(value->count);
  for (std::string_view& text : result) {
    DM_TRY_ASSIGN(text, cursor.read_string("a string of its array", kMaxStringBytes));
  }
  return result;
}

Result<std::uint64_t> GgufFile::get_u64_or(std::string_view key, std::uint64_t missing) const {
  return has(key) ? get_u64(key) : missing;
}

Result<std::uint32_t> GgufFile::get_u32_or(std::string_view key, std::uint32_t missing) const {
  return has(key) ? get_u32(key) : missing;
}

Result<float> GgufFile::get_f32_or(std::string_view key, float missing) const {
  return has(key) ? get_f32(key) : missing;
}

Result<bool> GgufFile::get_bool_or(std::string_view key, bool missing) const {
  return has(key) ? get_bool(key) : missing;
}

Result<std::string_view> GgufFile::get_string_or(std::string_view key,
                                                 std::string_view missing) const {
  return has(key) ? get_string(key) : missing;
}

bool GgufFile::is_array(std::string_view key) const {
  const auto found = values_.find(key);
  return found != values_.end() && found->second.array;
}

std::vector<std::string_view> GgufFile::keys() const {
  std::vector<std::string_view> result;
  result.reserve(values_.size());
  for (const auto& [key, value] : values_)
    result.push_back(key);
  return result;
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> GgufFile::tensor_bytes(const TensorInfo& info) const {
  DM_CHECK((Checked(info.offset) + Checked(info.bytes)).fits(file_bytes()),
           "a tensor of another file");
  return file_.bytes().subspan(info.offset, info.bytes);
}

}  // namespace dormouse::format
