// What pulling engines say to each other.
//
// Plain values, each with its one list of fields (see wire.h). Decoding checks types and bounds;
// what the numbers mean is checked by whoever uses them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dormouse/kv_connector.h"
#include "kv_connector/wire.h"

namespace dormouse::pull {

inline constexpr std::uint32_t kProtocolVersion = 1;

// --- scheduler half's socket ---

struct GetMeta {
  static constexpr std::string_view kType = "get_meta";
  template <class Io, class Self>
  static void fields(Io&, Self&) {}
};

// Who an engine is and where its ranks are reached.
struct Meta {
  static constexpr std::string_view kType = "meta";
  std::uint32_t version = kProtocolVersion;
  std::string engine_id;
  std::string incarnation;
  std::uint64_t generation = 0;
  std::string model_hash;
  std::uint32_t world_size = 1;
  std::vector<std::string> ranks;  // RankMetadata of each, encoded
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("version", self.version);
    io("engine_id", self.engine_id);
    io("incarnation", self.incarnation);
    io("generation", self.generation);
    io("model_hash", self.model_hash);
    io("world_size", self.world_size);
    io("ranks", self.ranks);
  }
};

struct Unavailable {
  static constexpr std::string_view kType = "unavailable";
  std::string reason;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("reason", self.reason);
  }
};

struct Malformed {
  static constexpr std::string_view kType = "error";
  std::string reason;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("reason", self.reason);
  }
};

// What one rank holds: its handshake metadata.
struct RankMetadata {
  static constexpr std::string_view kType = "rank";
  std::uint32_t rank = 0;
  std::uint32_t num_blocks = 0;
  std::uint64_t generation = 0;
  KvShape shape;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("rank", self.rank);
    io("num_blocks", self.num_blocks);
    io("generation", self.generation);
    io("num_layers", self.shape.num_layers);
    io("num_kv_heads", self.shape.num_kv_heads);
    io("first_kv_head", self.shape.first_kv_head);
    io("last_kv_head", self.shape.last_kv_head);
    io("head_dim", self.shape.head_dim);
    io("block_size", self.shape.block_size);
    io("dtype", self.shape.dtype);
    io("layout", self.shape.layout);
  }
};
// kDataLoss also for numbers that describe no cache.
Result<RankMetadata> decode_rank_metadata(std::string_view bytes);

// --- worker half's socket ---

struct LeaseName {
  std::string lease;  // the owner's request
  std::string token;  // proves that its answer was seen
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("lease", self.lease);
    io("token", self.token);
  }
};

// KV heads of the model.
struct HeadRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;  // one past
  bool empty() const { return first >= last; }
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("first", self.first);
    io("last", self.last);
  }
};

struct Import {
  static constexpr std::string_view kType = "import";
  std::string engine_id;  // the importer's
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("engine_id", self.engine_id);
  }
};

// Answers an import; descriptors travel with it.
struct Memory {
  static constexpr std::string_view kType = "memory";
  std::string incarnation;
  std::uint64_t generation = 0;
  std::string metadata;  // the agent's
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("incarnation", self.incarnation);
    io("generation", self.generation);
    io("metadata", self.metadata);
  }
};

struct Pull {
  static constexpr std::string_view kType = "pull";
  LeaseName name;
  std::string incarnation;
  std::uint64_t generation = 0;
  std::string model_hash;         // the consumer's; KV of other weights is of no use to it
  std::vector<BlockId> blocks;    // a run of the lease's, in its order
  std::uint32_t first_block = 0;  // where in the lease the run begins
  HeadRange heads;                // the consumer's
  bool verify = false;
  std::string prompt_hash;  // of the tokens that the consumer takes the blocks to be of
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("name", self.name);
    io("incarnation", self.incarnation);
    io("generation", self.generation);
    io("model_hash", self.model_hash);
    io("blocks", self.blocks);
    io("first_block", self.first_block);
    io("heads", self.heads);
    io("verify", self.verify);
    io("prompt_hash", self.prompt_hash);
  }
};

struct Granted {
  static constexpr std::string_view kType = "granted";
  std::uint64_t grant = 0;
  std::vector<std::uint64_t> hashes;  // of each block's heads, if asked for
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("grant", self.grant);
    io("hashes", self.hashes);
  }
};

struct Refused {
  static constexpr std::string_view kType = "refused";
  std::string kind;         // to_string(Refusal)
  std::string incarnation;  // the owner's, now
  std::uint64_t generation = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("kind", self.kind);
    io("incarnation", self.incarnation);
    io("generation", self.generation);
  }
};

struct Pulled {
  static constexpr std::string_view kType = "pulled";
  LeaseName name;
  std::uint64_t grant = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("name", self.name);
    io("grant", self.grant);
  }
};

// Answers `pulled`: whether the lease was alive all the time.
struct Confirmed {
  static constexpr std::string_view kType = "confirmed";
  bool alive = false;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("alive", self.alive);
  }
};

// A notice: the consumer may still want these.
struct Heartbeat {
  static constexpr std::string_view kType = "heartbeat";
  std::vector<LeaseName> leases;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("leases", self.leases);
  }
};

// A notice: the consumer of these heads wants nothing more of the lease.
struct Release {
  static constexpr std::string_view kType = "release";
  LeaseName name;
  HeadRange heads;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("name", self.name);
    io("heads", self.heads);
  }
};

// The owner's notice that every mapping of this generation must go, and the importer's that it did.
struct Revoke {
  static constexpr std::string_view kType = "revoke";
  std::uint64_t generation = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("generation", self.generation);
  }
};

struct Revoked {
  static constexpr std::string_view kType = "revoked";
  std::uint64_t generation = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("generation", self.generation);
  }
};

}  // namespace dormouse::pull
