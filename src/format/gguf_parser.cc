#include "format/gguf_parser.h"

#include <fmt/core.h>

#include <bit>

#include "base/check.h"

namespace dormouse::format {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kHeaderBytes = 24;
constexpr std::uint64_t kSmallestKey = 8 + 1 + 4 + 1;             // name, type, value
constexpr std::uint64_t kSmallestTensor = 8 + 1 + 4 + 8 + 4 + 8;  // name, dims, type, offset
constexpr std::uint64_t kMinAlignment = 8;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::string_view kAlignmentKey = "general.alignment";

}  // namespace

Status GgufParser::parse(GgufFile& file) {
  GgufParser parser(file);
  DM_TRY(parser.read_header());
  DM_TRY(parser.read_keys());
  DM_TRY(parser.read_alignment());
  DM_TRY(parser.read_tensors());
  return parser.place_tensors();
}

Status GgufParser::read_header() {
  if (file_.file_bytes() < kHeaderBytes)
    return cursor_.fail_here(fmt::format("the file has {} bytes, and the header alone has {}",
                                         file_.file_bytes(), kHeaderBytes));
  std::uint32_t magic = 0;
  DM_TRY_ASSIGN(magic, cursor_.read<std::uint32_t>("magic"));
  if (magic != kMagic)
    return damaged(file_.path(), 0, "header", "the file does not begin with 'GGUF'");
  DM_TRY_ASSIGN(file_.version_, cursor_.read<std::uint32_t>("version"));
  if (file_.version_ != 2 && file_.version_ != 3)
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: byte 4: header: version {} is not supported, only 2 and 3{}. Convert the "
                    "model again with a current converter.",
                    file_.path(), file_.version_,
                    file_.version_ == std::uint32_t{3} << 24 ? " in little-endian order" : ""));
  DM_TRY_ASSIGN(tensor_count_, cursor_.read<std::uint64_t>("tensor count"));
  if (tensor_count_ > kMaxTensors)
    return damaged(file_.path(), 8, "header",
                   fmt::format("it announces {} tensors, and at most {} are allowed", tensor_count_,
                               kMaxTensors));
  DM_TRY_ASSIGN(key_count_, cursor_.read<std::uint64_t>("key count"));
  if (key_count_ > kMaxKeys)
    return damaged(
        file_.path(), 16, "header",
        fmt::format("it announces {} keys, and at most {} are allowed", key_count_, kMaxKeys));
  const Checked least = Checked(key_count_) * Checked(kSmallestKey) +
                        Checked(tensor_count_) * Checked(kSmallestTensor);
  if (!least.fits(cursor_.left()))
    return cursor_.fail_here(
        fmt::format("{} keys and {} tensors take at least {} bytes, and {} are left", key_count_,
                    tensor_count_, *least.value(), cursor_.left()));
  return {};
}

Status GgufParser::read_keys() {
  for (std::uint64_t index = 0; index < key_count_; ++index)
    DM_TRY(read_key(index));
  return {};
}

Status GgufParser::read_key(std::uint64_t index) {
  cursor_.set_subject(fmt::format("key {} of {}", index + 1, key_count_));
  const std::uint64_t start = cursor_.position();
  std::string_view name;
  DM_TRY_ASSIGN(name, cursor_.read_string("its name", kMaxKeyBytes));
  if (name.empty())
    return damaged(file_.path(), start, fmt::format("key {} of {}", index + 1, key_count_),
                   "its name is empty");
  cursor_.set_subject("key " + quoted(name));
  if (file_.has(name))
    return damaged(file_.path(), start, "key " + quoted(name), "it occurs twice");
  GgufValue value;
  DM_TRY_ASSIGN(value, read_value());
  file_.values_.emplace(name, value);
  return {};
}

Result<GgufValue> GgufParser::read_value() {
  GgufValue value;
  std::uint32_t type = 0;
  DM_TRY_ASSIGN(type, cursor_.read<std::uint32_t>("its value's type"));
  value.type = ValueType{type};
  if (value_bytes(value.type) == 0)
    return cursor_.fail_here(fmt::format("value type {} is unknown", type));
  if (value.type == ValueType::kArray) {
    DM_TRY(read_array(value));
    return value;
  }
  if (value.type == ValueType::kString) {
    std::string_view text;
    DM_TRY_ASSIGN(text, cursor_.read_string("its string", kMaxStringBytes));
    value.count = text.size();
    value.offset = cursor_.position() - text.size();
    return value;
  }
  value.offset = cursor_.position();
  DM_TRY(cursor_.skip(value_bytes(value.type), "its value"));
  return value;
}

Status GgufParser::read_array(GgufValue& value) {
  std::uint32_t type = 0;
  DM_TRY_ASSIGN(type, cursor_.read<std::uint32_t>("its array's type"));
  value.type = ValueType{type};
  value.array = true;
  if (value.type == ValueType::kArray)
    return cursor_.fail_here("arrays of arrays are not allowed");
  if (value_bytes(value.type) == 0)
    return cursor_.fail_here(fmt::format("array element type {} is unknown", type));
  DM_TRY_ASSIGN(value.count, cursor_.read<std::uint64_t>("its array's count"));
  value.offset = cursor_.position();
  const Checked least = Checked(value.count) * Checked(value_bytes(value.type));
  if (value.type != ValueType::kString)
    return cursor_.skip(least, "its array");
  if (!least.fits(cursor_.left()))
    return cursor_.fail_here(
        fmt::format("{} strings do not fit into the {} bytes left", value.count, cursor_.left()));
  for (std::uint64_t i = 0; i < value.count; ++i)
    DM_TRY(cursor_.read_string("a string of its array", kMaxStringBytes));
  return {};
}

Status GgufParser::read_alignment() {
  DM_TRY_ASSIGN(file_.alignment_, file_.get_u64_or(kAlignmentKey, kDefaultAlignment));
  if (!std::has_single_bit(file_.alignment_) || file_.alignment_ < kMinAlignment ||
      file_.alignment_ > kMaxAlignment)
    return damaged(file_.path(), file_.values_.find(kAlignmentKey)->second.offset,
                   "key " + quoted(kAlignmentKey),
                   fmt::format("{} is not a power of two from {} to {}", file_.alignment_,
                               kMinAlignment, kMaxAlignment));
  return {};
}

Status GgufParser::read_tensors() {
  file_.tensors_.reserve(tensor_count_);
  for (std::uint64_t index = 0; index < tensor_count_; ++index)
    DM_TRY(read_tensor(index));
  return {};
}

Status GgufParser::read_tensor(std::uint64_t index) {
  const std::string ordinal = fmt::format("tensor {} of {}", index + 1, tensor_count_);
  cursor_.set_subject(ordinal);
  const std::uint64_t start = cursor_.position();
  std::string_view name;
  DM_TRY_ASSIGN(name, cursor_.read_string("its name", kMaxTensorNameBytes));
  if (name.empty() || name.find('\0') != std::string_view::npos)
    return damaged(file_.path(), start, ordinal, "its name is empty or holds a zero byte");
  TensorInfo info;
  info.name = name;
  cursor_.set_subject("tensor " + quoted(name));
  if (!file_.tensor_index_.emplace(info.name, index).second)
    return damaged(file_.path(), start, "tensor " + quoted(name), "it occurs twice");
  DM_TRY(read_dims(info));
  DM_TRY(read_type(info));
  DM_TRY_ASSIGN(info.offset, cursor_.read<std::uint64_t>("its offset"));
  file_.tensors_.push_back(std::move(info));
  return {};
}

Status GgufParser::read_dims(TensorInfo& info) {
  std::uint32_t count = 0;
  DM_TRY_ASSIGN(count, cursor_.read<std::uint32_t>("its number of dimensions"));
  if (count < 1 || count > 4)
    return cursor_.fail_here(fmt::format("it has {} dimensions, and 1 to 4 are allowed", count));
  Checked elements = std::uint64_t{1};
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint64_t dim = 0;
    DM_TRY_ASSIGN(dim, cursor_.read<std::uint64_t>("a dimension"));
    if (dim == 0)
      return cursor_.fail_here(fmt::format("dimension {} is 0", i));
    elements *= Checked(dim);
    info.dims.push_back(dim);
  }
  if (!elements.fits(kMaxTensorElements))
    return cursor_.fail_here("it has 2^48 elements or more");
  return {};
}

Status GgufParser::read_type(TensorInfo& info) {
  std::uint32_t id = 0;
  DM_TRY_ASSIGN(id, cursor_.read<std::uint32_t>("its type"));
  const std::optional<GgmlType> type = ggml_type_from_id(id);
  if (!type)
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: byte {}: tensor {}: tensor type {} is not supported. Use a model in F32, "
                    "F16, BF16, Q4_0, Q4_1, Q5_0 or Q8_0.",
                    file_.path(), cursor_.position() - 4, quoted(info.name), id));
  info.type = *type;
  const BlockShape block = block_shape(info.type);
  if (info.dims[0] % block.elements != 0)
    return cursor_.fail_here(
        fmt::format("its rows of {} elements are no multiple of {}, a block of {}", info.dims[0],
                    block.elements, type_name(info.type)));
  const Checked bytes = Checked(info.elements() / block.elements) * Checked(block.bytes);
  if (!bytes.valid())
    return cursor_.fail_here("its size overflows");
  info.bytes = *bytes.value();
  return {};
}

Status GgufParser::place_tensors() {
  const Checked start = Checked(cursor_.position()).align_up(file_.alignment_);
  Checked expected = std::uint64_t{0};
  for (TensorInfo& info : file_.tensors_) {
    const std::string subject = "tensor " + quoted(info.name);
    const auto refuse = [&](std::string_view why) {
      return damaged(file_.path(), cursor_.position(), subject, why);
    };
    if (info.offset % file_.alignment_ != 0)
      return refuse(
          fmt::format("its offset {} is no multiple of {}", info.offset, file_.alignment_));
    if (expected.value() != info.offset)
      return refuse(fmt::format("its offset is {}, and the tensors before it end at {}",
                                info.offset, expected.value().value_or(0)));
    const Checked end = start + Checked(info.offset) + Checked(info.bytes);
    if (!end.fits(file_.file_bytes()))
      return refuse(
          fmt::format("its {} bytes at offset {} run past the end of the file of {} bytes",
                      info.bytes, info.offset, file_.file_bytes()));
    expected = (Checked(info.offset) + Checked(info.bytes)).align_up(file_.alignment_);
    info.offset = *(start + Checked(info.offset)).value();
  }
  return {};
}

}  // namespace dormouse::format
