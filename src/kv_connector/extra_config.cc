#include "kv_connector/extra_config.h"

#include <fmt/core.h>

#include "base/check.h"

namespace dormouse {

Status read_extra_config(const KvTransferConfig& config,
                         const std::function<void(FieldReader&)>& read) {
  static constexpr const char* kName = "kv_connector_extra_config";
  DM_TRY_ASSIGN(const Json object, parse_json(config.kv_connector_extra_config));
  if (object.object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} must be a JSON object", kName), kName);
  FieldReader fields(object);
  read(fields);
  fields.refuse_others();
  if (fields.status())
    return {};
  const Error& error = fields.status().error();
  return fail(error.code, fmt::format("{}, {}: {}", config.kv_connector, kName, error.message),
              fmt::format("{}.{}", kName, error.param));
}

}  // namespace dormouse
