#include "kv_connector/pull/transfer_params.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/field_reader.h"
#include "base/json.h"

namespace dormouse::pull {
namespace {

constexpr std::size_t kMaxNameBytes = 256;
constexpr std::int64_t kMaxRanks = 1024;
constexpr std::string_view kPrefix = "kv_transfer_params";

// Exactly one group: this engine's cache has one.
void read_blocks(FieldReader& reader, ParamBounds bounds, std::vector<BlockId>& target) {
  constexpr const char* kName = "remote_block_ids";
  const Json* value = reader.find(kName);
  if (value == nullptr)
    return;
  const auto* groups = value->array();
  if (groups == nullptr || groups->size() != 1 || (*groups)[0].array() == nullptr)
    return reader.fail(kName, "remote_block_ids must be a list of one list of block ids");
  const Json::Array& blocks = *(*groups)[0].array();
  if (blocks.size() > bounds.max_blocks)
    return reader.fail(kName, fmt::format("remote_block_ids must have at most {} blocks; got {}",
                                          bounds.max_blocks, blocks.size()));
  for (const Json& block : blocks) {
    const auto id = whole_number(block, 0, std::numeric_limits<BlockId>::max());
    if (!id)
      return reader.fail(
          kName, fmt::format("remote_block_ids must hold block ids; got {}", excerpt(block)));
    target.push_back(static_cast<BlockId>(*id));
  }
}

// Milliseconds from now.
void read_time(FieldReader& reader, std::uint64_t& left) {
  constexpr const char* kName = "remote_blocks_expiry_time";
  constexpr double kDay = 86400;
  const Json* value = reader.find(kName);
  if (value == nullptr)
    return;
  if (!value->is_number() || !std::isfinite(value->as_double()))
    return reader.fail(kName, fmt::format("{} must be a number; got {}", kName, excerpt(*value)));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = value->as_double() - std::chrono::duration<double>(now).count();
  left = static_cast<std::uint64_t>(1000 * std::clamp(seconds, 0.0, kDay));
}

void check_mode(FieldReader& reader) {
  std::string mode = "pull";
  reader.string("transfer_mode", mode, kMaxNameBytes);
  if (mode != "pull")
    reader.fail("transfer_mode", "transfer_mode must be \"pull\"");
}

void require(FieldReader& reader, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const Json* value = reader.find(name);
    if (value == nullptr || (value->string() != nullptr && value->string()->empty()))
      return reader.fail(name, fmt::format("{} is missing; do_remote_prefill needs it", name));
  }
}

void check_complete(FieldReader& reader) {
  require(reader, {"remote_engine_id", "remote_request_id", "remote_host", "remote_port",
                   "remote_block_ids", "remote_num_tokens", "remote_incarnation",
                   "remote_generation", "lease_token"});
}

Status with_prefix(Status status) {
  if (status)
    return status;
  Error error = std::move(status).error();
  error.message = fmt::format("{}.{}", kPrefix, error.message);
  error.param =
      error.param.empty() ? std::string(kPrefix) : fmt::format("{}.{}", kPrefix, error.param);
  return tl::unexpected(std::move(error));
}

}  // namespace

Result<TransferParams> parse_transfer_params(std::string_view text, ParamBounds bounds) {
  TransferParams params;
  if (text.empty())
    return params;
  const auto json = parse_json(text);
  if (!json || json->object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, "kv_transfer_params must be a JSON object",
                std::string(kPrefix));
  FieldReader reader(*json);
  RemoteReference& remote = params.remote;
  reader.flag("do_remote_prefill", params.do_remote_prefill);
  reader.flag("do_remote_decode", params.do_remote_decode);
  reader.string("remote_engine_id", remote.engine_id, kMaxNameBytes);
  reader.string("remote_request_id", remote.name.lease, kMaxNameBytes);
  reader.string("remote_host", remote.host, kMaxNameBytes);
  reader.string("remote_incarnation", remote.incarnation, kMaxNameBytes);
  reader.string("lease_token", remote.name.token, kMaxNameBytes);
  reader.integer("remote_port", remote.port, 1, 65535);
  read_blocks(reader, bounds, remote.blocks);
  reader.integer("remote_num_tokens", remote.num_tokens, 0, std::numeric_limits<int>::max());
  reader.integer("remote_generation", remote.generation, 0,
                 std::numeric_limits<std::int64_t>::max());
  std::uint32_t ranks = 1;
  reader.integer("tp_size", ranks, 1, kMaxRanks);
  check_mode(reader);
  read_time(reader, remote.lease_left_ms);
  if (params.do_remote_prefill && params.do_remote_decode)
    reader.fail("do_remote_decode", "do_remote_prefill and do_remote_decode exclude each other");
  if (params.do_remote_prefill)
    check_complete(reader);
  DM_TRY(with_prefix(reader.status()));
  return params;
}

std::string reply_params(const RemoteReference& blocks, std::uint32_t world_size,
                         double expiry_time) {
  Json::Array ids(blocks.blocks.begin(), blocks.blocks.end());
  return Json(Json::Object{{"do_remote_prefill", true},
                           {"do_remote_decode", false},
                           {"remote_engine_id", blocks.engine_id},
                           {"remote_request_id", blocks.name.lease},
                           {"remote_host", blocks.host},
                           {"remote_port", blocks.port},
                           {"remote_block_ids", Json::Array{Json(std::move(ids))}},
                           {"remote_num_tokens", blocks.num_tokens},
                           {"tp_size", world_size},
                           {"remote_blocks_expiry_time", expiry_time},
                           {"transfer_mode", "pull"},
                           {"remote_incarnation", blocks.incarnation},
                           {"remote_generation", blocks.generation},
                           {"lease_token", blocks.name.token}})
      .dump();
}

}  // namespace dormouse::pull
