#include "kv_connector/offload/offload_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kv_connector/extra_config.h"

namespace dormouse {
namespace {

constexpr std::size_t kMaxPath = 4000;
constexpr std::int64_t kMaxThreads = 64;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;

}  // namespace

Result<OffloadConfig> parse_offload_config(const KvTransferConfig& whole) {
  OffloadConfig config;
  DM_TRY(read_extra_config(whole, [&](FieldReader& fields) {
    fields.integer("cpu_bytes_to_use", config.cpu_bytes_to_use, 1, kMaxBytes);
    fields.string("disk_path", config.disk_path, kMaxPath);
    fields.integer("disk_bytes", config.disk_bytes, 0, kMaxBytes);
    fields.integer("num_threads", config.num_threads, 1, kMaxThreads);
    fields.seconds("transfer_timeout", config.transfer_timeout);
    if (config.disk_path.empty() && fields.find("disk_bytes") != nullptr)
      fields.fail("disk_bytes", "disk_bytes is given without disk_path; name the folder");
  }));
  return config;
}

Result<OffloadConfig> parse_offload_config(const KvConnectorContext& context) {
  DM_TRY_ASSIGN(OffloadConfig config, parse_offload_config(context.config));
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
