#include "kv_connector/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dormouse {
namespace {

using ::testing::HasSubstr;

std::string refusal(std::string_view json) {
  const auto parsed = parse_kv_transfer_config(json);
  return parsed ? "accepted" : parsed.error().message;
}

TEST(Registry, ReadsAWholeConfiguration) {
  const auto config = parse_kv_transfer_config(
      R"({"kv_connector":"IpcConnector","kv_role":"kv_producer","engine_id":"p0","kv_port":5600,)"
      R"("kv_load_failure_policy":"fail","verify_kv":true,)"
      R"("kv_connector_extra_config":{"peers":["127.0.0.1:5601"]}})");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->kv_connector, "IpcConnector");
  EXPECT_EQ(config->kv_role, KvRole::kProducer);
  EXPECT_EQ(config->engine_id, "p0");
  EXPECT_EQ(config->kv_port, 5600);
  EXPECT_EQ(config->kv_load_failure_policy, KvLoadFailurePolicy::kFail);
  EXPECT_TRUE(config->verify_kv);
  EXPECT_EQ(config->kv_connector_extra_config, R"({"peers":["127.0.0.1:5601"]})");
}

TEST(Registry, RefusesEveryWrongConfigurationByName) {
  EXPECT_THAT(refusal("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal("{"), HasSubstr("JSON"));
  EXPECT_THAT(refusal("{}"), HasSubstr("Connector name is not set in KVTransferConfig"));
  EXPECT_THAT(refusal(R"({"kv_connector":"x","kv_rle":1})"), HasSubstr("kv_rle"));
  EXPECT_THAT(refusal(R"({"kv_connector":"x","kv_role":"both"})"), HasSubstr("kv_role"));
  EXPECT_THAT(refusal(R"({"kv_connector":"x","kv_port":0})"), HasSubstr("kv_port"));
  EXPECT_THAT(refusal(R"({"kv_connector":"x","kv_port":"1"})"), HasSubstr("kv_port"));
  EXPECT_THAT(refusal(R"({"kv_connector":"x","kv_load_failure_policy":"hope"})"),
              HasSubstr("recompute or fail"));
  EXPECT_THAT(refusal(R"({"kv_connector":"x","kv_connector_module_path":""})"),
              HasSubstr("kv_connector_module_path cannot be an empty string."));
  EXPECT_THAT(refusal(R"({"kv_connector":"x","kv_connector_extra_config":[]})"),
              HasSubstr("kv_connector_extra_config"));
}

TEST(Registry, NamesWhatExistsWhenAskedForWhatDoesNot) {
  const auto found = find_kv_connector({.kv_connector = "NoSuchConnector"});
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("Unsupported connector type: NoSuchConnector"));
  for (const std::string& name : built_in_kv_connectors())
    EXPECT_THAT(found.error().message, HasSubstr(name));
}

TEST(Registry, RefusesModulesThatAreNone) {
  for (const char* path : {"/nonexistent.so", "/etc/hostname", "libm.so.6"}) {
    const auto found = find_kv_connector({.kv_connector = "x", .kv_connector_module_path = path});
    ASSERT_FALSE(found) << path;
    EXPECT_THAT(found.error().message, HasSubstr(path));
  }
}

TEST(Registry, NoConnectorSupportsSleep) {
  EXPECT_TRUE(check_sleep_supported({}));
}

}  // namespace
}  // namespace dormouse
