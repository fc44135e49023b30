#include "text/byte_alphabet.h"

#include "text/utf8.h"

namespace dormouse::text {
namespace {

// Printable Latin-1 stands for itself; the rest, in order, are the characters from U+0100 on.
std::optional<std::uint8_t> byte_of(char32_t c) {
  if ((c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF))
    return static_cast<std::uint8_t>(c);
  if (c >= 0x100 && c <= 0x120)
    return static_cast<std::uint8_t>(c - 0x100);
  if (c >= 0x121 && c <= 0x142)
    return static_cast<std::uint8_t>(c - 0x121 + 0x7F);
  if (c == 0x143)
    return static_cast<std::uint8_t>(0xAD);
  return std::nullopt;
}

std::optional<unsigned> digit_of(char c) {
  if (c >= '0' && c <= '9')
    return static_cast<unsigned>(c - '0');
  if (c >= 'A' && c <= 'F')
    return static_cast<unsigned>(c - 'A') + 10;
  return std::nullopt;
}

}  // namespace

std::optional<std::string> bytes_of_printable(std::string_view printable) {
  std::string bytes;
  while (!printable.empty()) {
    const Utf8Char next = decode_utf8(printable);
    printable.remove_prefix(next.length);
    const auto byte = byte_of(next.code_point);
    if (!byte)
      return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

std::optional<std::uint8_t> byte_of_byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>')
    return std::nullopt;
  const auto high = digit_of(token[3]);
  const auto low = digit_of(token[4]);
  if (!high || !low)
    return std::nullopt;
  return static_cast<std::uint8_t>(*high * 16 + *low);
}

}  // namespace dormouse::text
