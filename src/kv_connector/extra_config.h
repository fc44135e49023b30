// Reads kv_connector_extra_config, the part of a configuration that is a connector's own.
#pragma once

#include <functional>

#include "base/field_reader.h"
#include "dormouse/kv_connector.h"

namespace dormouse {

// `read` asks for every member that the connector knows; any other one is refused.
//
// Errors: kInvalidArgument; the message names the connector and the member, `param` is
// "kv_connector_extra_config.<member>".
Status read_extra_config(const KvTransferConfig& config,
                         const std::function<void(FieldReader&)>& read);

}  // namespace dormouse
