#include "kv_connector/registry.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "base/field_reader.h"
#include "kv_connector/built_in.h"

namespace dormouse {
namespace {

constexpr std::size_t kMaxText = 4096;

std::string names_of(const std::vector<KvConnectorClass>& classes) {
  std::string names;
  for (const KvConnectorClass& each : classes)
    names += (names.empty() ? "" : ", ") + each.name;
  return names;
}

Status unusable(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("kv_connector_module_path {}: {}", path, why),
              "kv_connector_module_path");
}

Status check_build_tag(void* module, const std::string& path) {
  using TagFunction = const char* (*)();
  auto* const tag =
      reinterpret_cast<TagFunction>(::dlsym(module, "dormouse_kv_connector_build_tag"));
  if (tag == nullptr)
    return unusable(path, "it is no connector module: it has no build tag");
  if (tag() != std::string_view(DORMOUSE_KV_CONNECTOR_BUILD_TAG))
    return unusable(path, fmt::format("it was built as \"{}\", this program as \"{}\"; build it "
                                      "again with this version's headers",
                                      tag(), DORMOUSE_KV_CONNECTOR_BUILD_TAG));
  return {};
}

// The module stays loaded: its code may be running until the process ends.
Result<KvConnectorClass> load_module(const std::string& path, const std::string& name) {
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    return tl::unexpected(unusable(path, ::dlerror()).error());
  DM_TRY(check_build_tag(module, path));
  using ClassFunction = void (*)(KvConnectorClass*);
  auto* const fill =
      reinterpret_cast<ClassFunction>(::dlsym(module, "dormouse_kv_connector_class"));
  if (fill == nullptr)
    return tl::unexpected(unusable(path, "it has a build tag but no connector").error());
  KvConnectorClass found;
  fill(&found);
  if (found.name != name)
    return tl::unexpected(
        unusable(path, fmt::format("it holds {}, not {}", found.name, name)).error());
  return found;
}

void read_role(FieldReader& fields, KvRole& role) {
  std::string name = "kv_both";
  fields.string("kv_role", name, kMaxText);
  if (name == "kv_producer")
    role = KvRole::kProducer;
  else if (name == "kv_consumer")
    role = KvRole::kConsumer;
  else if (name == "kv_both")
    role = KvRole::kBoth;
  else
    fields.fail("kv_role", "kv_role must be kv_producer, kv_consumer or kv_both, not " + name);
}

void read_policy(FieldReader& fields, KvLoadFailurePolicy& policy) {
  std::string name = "recompute";
  fields.string("kv_load_failure_policy", name, kMaxText);
  if (name == "recompute")
    policy = KvLoadFailurePolicy::kRecompute;
  else if (name == "fail")
    policy = KvLoadFailurePolicy::kFail;
  else
    fields.fail("kv_load_failure_policy",
                "kv_load_failure_policy must be recompute or fail, not " + name);
}

}  // namespace

Result<KvTransferConfig> parse_kv_transfer_config(std::string_view json) {
  DM_TRY_ASSIGN(const Json object, parse_json(json));
  if (object.object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, "the KV transfer configuration must be a JSON object");
  KvTransferConfig config;
  FieldReader fields(object);
  fields.string("kv_connector", config.kv_connector, kMaxText);
  fields.string("engine_id", config.engine_id, 128);
  fields.string("kv_ip", config.kv_ip, 64);
  fields.integer("kv_port", config.kv_port, 1, 65535);
  fields.flag("verify_kv", config.verify_kv);
  if (const Json* path = fields.find("kv_connector_module_path")) {
    fields.string("kv_connector_module_path", config.kv_connector_module_path, kMaxText);
    if (path->string() != nullptr && path->string()->empty())
      fields.fail("kv_connector_module_path",
                  "kv_connector_module_path cannot be an empty string.");
  }
  if (const Json* extra = fields.find("kv_connector_extra_config")) {
    if (extra->object() == nullptr)
      fields.fail("kv_connector_extra_config", "kv_connector_extra_config must be an object");
    config.kv_connector_extra_config = extra->dump();
  }
  read_role(fields, config.kv_role);
  read_policy(fields, config.kv_load_failure_policy);
  fields.refuse_others();
  DM_TRY(fields.status());
  if (config.kv_connector.empty())
    return fail(ErrorCode::kInvalidArgument, "Connector name is not set in KVTransferConfig",
                "kv_connector");
  return config;
}

namespace {

Result<KvConnectorClass> find_class(const KvTransferConfig& config) {
  if (!config.kv_connector_module_path.empty())
    return load_module(config.kv_connector_module_path, config.kv_connector);
  const std::vector<KvConnectorClass> classes = built_in_classes();
  const auto found = std::ranges::find(classes, config.kv_connector, &KvConnectorClass::name);
  if (found != classes.end())
    return *found;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("Unsupported connector type: {}. There are: {}; another one needs "
                          "kv_connector_module_path",
                          config.kv_connector, names_of(classes)),
              "kv_connector");
}

}  // namespace

Result<KvConnectorClass> find_kv_connector(const KvTransferConfig& config) {
  DM_TRY_ASSIGN(KvConnectorClass found, find_class(config));
  if (found.check_config != nullptr)
    DM_TRY(found.check_config(config));
  return found;
}

std::vector<std::string> built_in_kv_connectors() {
  std::vector<std::string> names;
  for (const KvConnectorClass& each : built_in_classes())
    names.push_back(each.name);
  return names;
}

Status check_sleep_supported(const KvTransferConfig& config) {
  if (config.kv_connector.empty())
    return {};
  DM_TRY_ASSIGN(const KvConnectorClass found, find_kv_connector(config));
  if (found.follows_mapping(config))
    return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("{} does not support sleep mode", config.kv_connector), "kv_connector");
}

}  // namespace dormouse
