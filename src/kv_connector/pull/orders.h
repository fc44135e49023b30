// What the two halves of one connector tell each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv_connector/pull/messages.h"

namespace dormouse::pull {

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
  std::uint64_t lease_left_ms = 0;  // when the request came here; 0: not said
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
    io("lease_left_ms", self.lease_left_ms);
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
