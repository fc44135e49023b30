#include "format/gguf_cursor.h"

#include <fmt/core.h>

#include <bit>

#include "base/check.h"

static_assert(std::endian::native == std::endian::little, "GGUF values are read in place");

namespace dormouse::format {

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string result = "'";
  for (const char c : text.substr(0, kShown)) {
    if (c >= 0x20 && c < 0x7f && c != '\'' && c != '\\')
      result += c;
    else
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return result + (text.size() > kShown ? "...'" : "'");
}

tl::unexpected<Error> damaged(const std::string& path, std::uint64_t offset,
                              std::string_view subject, std::string_view why) {
  return fail(
      ErrorCode::kDataLoss,
      fmt::format("{}: byte {}: {}: {}. The file is damaged, incomplete or not a model: fetch "
                  "it again and compare its checksum.",
                  path, offset, subject, why));
}

std::uint64_t value_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64:
    case ValueType::kString:
      return 8;
    case ValueType::kArray:
      return 12;
  }
  return 0;
}

tl::unexpected<Error> GgufCursor::fail_past_end(std::string_view what, std::uint64_t wanted) const {
  return fail_here(fmt::format("{} needs {} bytes, and {} are left", what, wanted, left()));
}

Result<std::string_view> GgufCursor::read_string(std::string_view what, std::uint64_t max_bytes) {
  const std::uint64_t start = position_;
  std::uint64_t length = 0;
  DM_TRY_ASSIGN(length, read<std::uint64_t>(what));
  if (length > max_bytes)
    return damaged(
        path_, start, subject_,
        fmt::format("{} has {} bytes, and at most {} are allowed", what, length, max_bytes));
  if (length > left())
    return fail_past_end(what, length);
  const auto* text = reinterpret_cast<const char*>(bytes_.data() + position_);
  position_ += length;
  return std::string_view(text, length);
}

Status GgufCursor::skip(Checked bytes, std::string_view what) {
  if (!bytes.valid())
    return fail_here(fmt::format("the size of {} overflows", what));
  if (!bytes.fits(left()))
    return fail_past_end(what, *bytes.value());
  position_ += *bytes.value();
  return {};
}

}  // namespace dormouse::format
