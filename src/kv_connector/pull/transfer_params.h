// kv_transfer_params: what a router carries from one engine to the next.
//
// Known keys have strict types and bounds, null is as good as absent, other keys are ignored.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kv_connector/pull/orders.h"

namespace dormouse::pull {

struct TransferParams {
  bool do_remote_prefill = false;  // another engine has computed the prompt: `remote` is complete
  bool do_remote_decode = false;   // another engine will go on
  RemoteReference remote;
};

struct ParamBounds {
  std::uint32_t block_size = 1;
  std::uint32_t max_blocks = 0;
};

// Empty text: none. kInvalidArgument names the key in `param`.
Result<TransferParams> parse_transfer_params(std::string_view text, ParamBounds bounds);

// What goes on to the engine that reads these blocks. `expiry_time`: Unix seconds.
std::string reply_params(const RemoteReference& blocks, std::uint32_t world_size,
                         double expiry_time);

}  // namespace dormouse::pull
