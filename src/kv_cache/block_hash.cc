#include "kv_cache/block_hash.h"

#include <xxhash.h>

#include <array>
#include <random>
#include <vector>

namespace dormouse {

namespace {

BlockHash digest(std::span<const std::byte> bytes, std::uint64_t key) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), key);
  return {hash.low64, hash.high64};
}

std::uint64_t draw_key() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

BlockHasher::BlockHasher() : key_(draw_key()) {}
BlockHasher::BlockHasher(std::uint64_t key) : key_(key) {}

BlockHash BlockHasher::root(std::string_view cache_salt) const {
  return digest(std::as_bytes(std::span(cache_salt)), key_);
}

BlockHash BlockHasher::child(const BlockHash& parent, std::span<const TokenId> tokens) const {
  const std::array<std::uint64_t, 2> prefix = {parent.low, parent.high};
  const auto prefix_bytes = std::as_bytes(std::span(prefix));
  const auto token_bytes = std::as_bytes(tokens);
  std::vector<std::byte> bytes;
  bytes.reserve(prefix_bytes.size() + token_bytes.size());
  bytes.insert(bytes.end(), prefix_bytes.begin(), prefix_bytes.end());
  bytes.insert(bytes.end(), token_bytes.begin(), token_bytes.end());
  return digest(bytes, key_);
}

}  // namespace dormouse
