// What pulling engines say to each other, and what the two halves of one connector do.
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

// One of the ranks that read from one rank of the owner.
struct Consumer {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;  // how many read from it
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("rank", self.rank);
    io("ranks", self.ranks);
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
  std::uint32_t first_kv_head = 0;
  std::uint32_t last_kv_head = 0;  // one past
  Consumer consumer;
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
    io("first_kv_head", self.first_kv_head);
    io("last_kv_head", self.last_kv_head);
    io("consumer", self.consumer);
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
  std::uint64_t grant = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("grant", self.grant);
  }
};

// The owner's answer to `pulled`, `heartbeat` and `release`: whether the lease was alive.
struct Confirmed {
  static constexpr std::string_view kType = "confirmed";
  bool alive = false;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("alive", self.alive);
  }
};

struct Heartbeat {
  static constexpr std::string_view kType = "heartbeat";
  std::vector<LeaseName> leases;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("leases", self.leases);
  }
};

struct Release {
  static constexpr std::string_view kType = "release";
  LeaseName name;
  Consumer consumer;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("name", self.name);
    io("consumer", self.consumer);
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

// --- between the halves of one connector ---

// Blocks of another engine, as kv_transfer_params names them.
struct RemoteReference {
  std::string engine_id;
  std::string incarnation;
  std::uint64_t generation = 0;
  LeaseName name;
  std::string host;
  std::uint32_t port = 0;
  std::vector<BlockId> blocks;
  std::uint32_t num_tokens = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("engine_id", self.engine_id);
    io("incarnation", self.incarnation);
    io("generation", self.generation);
    io("name", self.name);
    io("host", self.host);
    io("port", self.port);
    io("blocks", self.blocks);
    io("num_tokens", self.num_tokens);
  }
};

struct LeaseOrder {
  RequestId request = 0;
  std::string token;
  std::string model_hash;  // of the weights that the blocks were computed with
  std::vector<BlockId> blocks;
  std::string prompt_hash;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("request", self.request);
    io("token", self.token);
    io("model_hash", self.model_hash);
    io("blocks", self.blocks);
    io("prompt_hash", self.prompt_hash);
  }
};

struct PullOrder {
  RequestId request = 0;
  RemoteReference from;  // its blocks: those to read, one for each of local_blocks
  std::vector<BlockId> local_blocks;
  std::uint32_t first_block = 0;  // where they stand in the lease
  std::uint32_t num_tokens = 0;
  std::string model_hash;  // of the weights here, now
  std::string prompt_hash;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("request", self.request);
    io("from", self.from);
    io("local_blocks", self.local_blocks);
    io("first_block", self.first_block);
    io("num_tokens", self.num_tokens);
    io("model_hash", self.model_hash);
    io("prompt_hash", self.prompt_hash);
  }
};

struct ReferenceOrder {
  RequestId request = 0;
  RemoteReference from;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("request", self.request);
    io("from", self.from);
  }
};

// What the scheduler half wants of the workers in one step.
struct Orders {
  std::vector<LeaseOrder> leases;
  std::vector<PullOrder> pulls;
  std::vector<RequestId> cancels;  // of pulls under way
  std::vector<ReferenceOrder> releases;
  std::vector<ReferenceOrder> heartbeats;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("leases", self.leases);
    io("pulls", self.pulls);
    io("cancels", self.cancels);
    io("releases", self.releases);
    io("heartbeats", self.heartbeats);
  }
  bool empty() const;
};
std::string encode_orders(const Orders& orders);  // empty orders: an empty string
Result<Orders> decode_orders(std::string_view bytes);

}  // namespace dormouse::pull
