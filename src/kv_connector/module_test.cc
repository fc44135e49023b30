// Connectors of others, from shared libraries built with the public headers alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_connector/connector_fixture.h"
#include "kv_connector/registry.h"

namespace dormouse {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

KvTransferConfig module(const char* path, const char* name) {
  return {.kv_connector = name, .kv_connector_module_path = path};
}

TEST(ConnectorModule, WorksLikeABuiltInOne) {
  const KvTransferConfig config = module(DM_COUNTING_MODULE, "CountingConnector");
  const auto found = find_kv_connector(config);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(check_sleep_supported(config));
  KvConnectorContext context = context_of("{}");
  context.config = config;
  OneRankEngine engine(context, *found->make_scheduler(context), *found->make_worker(context));
  TestRequest request = request_of(1, 9);
  EXPECT_FALSE(engine.finish(request, {1, 2, 3}).delay_free);
  EXPECT_THAT(engine.step(true).finished_sending, IsEmpty());
  Unmapping unmapping;
  EXPECT_TRUE(engine.follower().release_kv_caches(unmapping));
  ++engine.generation;
  EXPECT_TRUE(engine.follower().restore_kv_caches(engine.caches()));
  EXPECT_EQ(engine.stat("counting_finished_total"), 1);
  EXPECT_EQ(engine.stat("counting_steps_total"), 1);
  EXPECT_EQ(engine.stat("counting_mappings_total"), 2);
}

TEST(ConnectorModule, OneThatDoesNotFollowIsRefusedWithSleepMode) {
  const KvTransferConfig config = module(DM_LEGACY_MODULE, "LegacyConnector");
  ASSERT_TRUE(find_kv_connector(config));
  const Status supported = check_sleep_supported(config);
  ASSERT_FALSE(supported);
  EXPECT_EQ(supported.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(supported.error().message, "LegacyConnector does not support sleep mode");
}

TEST(ConnectorModule, HoldsTheConnectorThatIsNamed) {
  const auto found = find_kv_connector(module(DM_LEGACY_MODULE, "CountingConnector"));
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("it holds LegacyConnector, not CountingConnector"));
}

}  // namespace
}  // namespace dormouse
