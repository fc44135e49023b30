#include "base/secret.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <array>

#include "base/check.h"

namespace dormouse {

std::string random_hex(std::size_t bytes) {
  std::array<unsigned char, 256> drawn{};
  DM_CHECK(
      bytes <= drawn.size() && ::getrandom(drawn.data(), bytes, 0) == static_cast<ssize_t>(bytes),
      "the kernel gives random bytes");
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i)
    text += fmt::format("{:02x}", drawn[i]);
  return text;
}

bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size())
    return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace dormouse
