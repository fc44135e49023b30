// The scope as an allocator sees it, with connectors of others that count what they are told.
#include "kv_connector/kv_transfer_scope.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "device/host/host_copier.h"
#include "device/host/host_vmm_driver.h"

namespace dormouse {
namespace {

class KvTransferScopeTest : public ::testing::Test {
 protected:
  std::unique_ptr<KvTransferScope> start(const char* name, const char* module) {
    KvConnectorContext context;
    context.config = {.kv_connector = name, .kv_connector_module_path = module};
    context.num_blocks = 1;
    auto scope = KvTransferScope::initialize(context, allocator_, memory_, driver_);
    EXPECT_TRUE(scope) << scope.error().message;
    return std::move(*scope);
  }
  // How often the connector was told of a mapping.
  static double mappings(KvTransferScope& scope) {
    const KvConnectorOutput output = scope.after_forward(false, {});
    const auto found = std::ranges::find(output.stats, "counting_mappings_total",
                                         &KvConnectorStats::value_type::first);
    return found == output.stats.end() ? -1 : found->second;
  }

  HostVmmDriver driver_;
  HostCopier copier_{1};
  TaggedAllocator allocator_{driver_, copier_, {}};
  TaggedMemory memory_ = std::move(*allocator_.allocate(kKvCacheTag, 1 << 20));
};

TEST_F(KvTransferScopeTest, AConnectorThatDeclaresSupportIsCalled) {
  const auto scope = start("CountingConnector", DM_COUNTING_MODULE);
  EXPECT_EQ(mappings(*scope), 1);
  ASSERT_TRUE(allocator_.discard({kKvCacheTag}));
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_EQ(mappings(*scope), 2);
}

TEST_F(KvTransferScopeTest, AScopeThatEndedIsNotCalledAnyMore) {
  start("CountingConnector", DM_COUNTING_MODULE).reset();
  EXPECT_TRUE(allocator_.discard({kKvCacheTag}));
  EXPECT_TRUE(allocator_.wake_up(std::nullopt));
}

TEST_F(KvTransferScopeTest, OneThatDoesNotDeclareItIsNot) {
  const auto scope = start("LegacyConnector", DM_LEGACY_MODULE);
  EXPECT_TRUE(allocator_.discard({kKvCacheTag}));
  EXPECT_TRUE(allocator_.wake_up(std::nullopt));
}

TEST_F(KvTransferScopeTest, AnUnmappedCacheHasNoHandshakeData) {
  const auto scope = start("CountingConnector", DM_COUNTING_MODULE);
  ASSERT_TRUE(allocator_.discard({kKvCacheTag}));
  EXPECT_EQ(scope->handshake_metadata(), "");
}

}  // namespace
}  // namespace dormouse
