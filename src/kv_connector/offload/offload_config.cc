#include "kv_connector/offload/offload_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "base/field_reader.h"

namespace dormouse {
namespace {

constexpr std::size_t kMaxPath = 4000;
constexpr std::int64_t kMaxThreads = 64;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;

Status check_keys(const Json& object) {
  static constexpr std::array<std::string_view, 4> kKnown = {"cpu_bytes_to_use", "disk_path",
                                                             "disk_bytes", "num_threads"};
  for (const auto& [key, value] : *object.object())
    if (std::ranges::find(kKnown, key) == kKnown.end())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("unknown key \"{}\" in the configuration of the OffloadingConnector; "
                              "it knows cpu_bytes_to_use, disk_path, disk_bytes and num_threads",
                              key),
                  key);
  return {};
}

}  // namespace

Result<OffloadConfig> parse_offload_config(const KvConnectorContext& context) {
  DM_TRY_ASSIGN(const Json object, parse_json(context.config.kv_connector_extra_config));
  if (object.object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, "kv_connector_extra_config must be an object",
                "kv_connector_extra_config");
  DM_TRY(check_keys(object));
  OffloadConfig config;
  FieldReader fields(object);
  fields.integer("cpu_bytes_to_use", config.cpu_bytes_to_use, 1, kMaxBytes);
  fields.string("disk_path", config.disk_path, kMaxPath);
  fields.integer("disk_bytes", config.disk_bytes, 0, kMaxBytes);
  fields.integer("num_threads", config.num_threads, 1, kMaxThreads);
  DM_TRY(fields.status());
  const KvShape& shape = context.shape;
  const std::uint64_t block_bytes =
      std::uint64_t{2} * shape.num_layers * shape.num_kv_heads * shape.head_bytes();
  DM_CHECK(block_bytes > 0, "a block has a size");
  if (config.cpu_bytes_to_use < block_bytes)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cpu_bytes_to_use is {}, and one block of the KV cache takes {} bytes; "
                            "give it room for some blocks",
                            config.cpu_bytes_to_use, block_bytes),
                "cpu_bytes_to_use");
  config.num_slots = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      config.cpu_bytes_to_use / block_bytes, std::numeric_limits<std::uint32_t>::max() - 1));
  return config;
}

}  // namespace dormouse
