// GPT-2's printable alphabet: every byte as one character, so that a vocabulary of bytes can be
// read as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dormouse::text {

// The bytes that `printable` stands for; nothing if it has a character outside the alphabet.
std::optional<std::string> bytes_of_printable(std::string_view printable);

// The byte of a byte token, "<0x0A>" exactly; nothing for any other text.
std::optional<std::uint8_t> byte_of_byte_token(std::string_view token);

}  // namespace dormouse::text
