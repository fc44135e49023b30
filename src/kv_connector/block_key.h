// Names what a full block of KV holds, for tiers that outlive the process: SHA-256 over everything
// that the bytes depend on. Unlike the prefix cache's hash (kv_cache/block_hash.h) it has no secret
// and is the same in every process; two contents of one name cannot be made.
//
// Keys are 64 lower-case hexadecimal digits. Threads: any.
#pragma once

#include <span>
#include <string>

#include "dormouse/kv_connector.h"

namespace dormouse {

// The parent of a request's first block: the model's content, the layout, the ranks that share it
// and the cache salt.
std::string root_key(const KvShape& shape, std::uint32_t world_size, const std::string& model_hash,
                     const std::string& cache_salt);

std::string child_key(const std::string& parent, std::span<const TokenId> tokens);

}  // namespace dormouse
