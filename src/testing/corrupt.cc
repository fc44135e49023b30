#include "testing/corrupt.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"

namespace dormouse::testing {
namespace {

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  DM_CHECK(file.good(), "cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

void truncate_file(const std::string& path, std::uint64_t bytes) {
  std::error_code error;
  std::filesystem::resize_file(path, bytes, error);
  DM_CHECK(!error, "cannot truncate " + path);
}

void overwrite(const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  file.flush();
  DM_CHECK(file.good(), "cannot write " + path);
}

void flip_bit(const std::string& path, std::uint64_t offset, unsigned bit) {
  const std::string content = read_all(path);
  DM_CHECK(offset < content.size(), "past the end of " + path);
  const auto flipped = static_cast<std::byte>(content[offset] ^ (1 << bit));
  overwrite(path, offset, std::span(&flipped, 1));
}

std::uint64_t offset_of(const std::string& path, std::string_view text) {
  const std::size_t found = read_all(path).find(text);
  DM_CHECK(found != std::string::npos, "no such text in " + path);
  return found;
}

}  // namespace dormouse::testing
