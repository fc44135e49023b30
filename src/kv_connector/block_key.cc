#include "kv_connector/block_key.h"

#include "base/json.h"
#include "base/sha256.h"

namespace dormouse {
namespace {

constexpr std::uint32_t kFormatVersion = 1;

std::string digest(const std::string& bytes) {
  return sha256_hex(std::as_bytes(std::span(bytes)));
}

}  // namespace

std::string root_key(const KvShape& shape, std::uint32_t world_size, const std::string& model_hash,
                     const std::string& cache_salt) {
  const Json::Array facts = {kFormatVersion,      model_hash,         shape.dtype,
                             shape.layout,        shape.num_layers,   shape.num_kv_heads,
                             shape.first_kv_head, shape.last_kv_head, shape.head_dim,
                             shape.block_size,    world_size,         cache_salt};
  return digest(to_msgpack(facts));
}

std::string child_key(const std::string& parent, std::span<const TokenId> tokens) {
  const auto bytes = std::as_bytes(tokens);
  std::string text = parent;
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return digest(text);
}

}  // namespace dormouse
