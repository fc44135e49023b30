#include "kv_connector/block_key.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "kv_connector/connector_fixture.h"

namespace dormouse {
namespace {

TEST(BlockKey, KeepsApartWhateverTheBytesDependOn) {
  std::set<std::string> keys = {root_key(small_shape(), 1, "model", "salt")};
  std::vector<KvShape> others(8, small_shape());
  others[0].num_layers = 3;
  others[1].num_kv_heads = 4;
  others[2].first_kv_head = 1;
  others[3].last_kv_head = 1;
  others[4].head_dim = 8;
  others[5].block_size = 8;
  others[6].dtype = "bfloat16";
  others[7].layout = "another";
  for (const KvShape& each : others)
    keys.insert(root_key(each, 1, "model", "salt"));
  keys.insert(root_key(small_shape(), 2, "model", "salt"));
  keys.insert(root_key(small_shape(), 1, "another model", "salt"));
  keys.insert(root_key(small_shape(), 1, "model", "another salt"));
  keys.insert(root_key(small_shape(), 1, "modelsalt", ""));
  EXPECT_EQ(keys.size(), others.size() + 5);
}

TEST(BlockKey, NamesABlockByEverythingBeforeIt) {
  const std::string root = root_key(small_shape(), 1, "model", "");
  const std::array<TokenId, 4> first = {1, 2, 3, 4};
  const std::array<TokenId, 4> second = {5, 6, 7, 8};
  const std::string both = child_key(child_key(root, first), second);
  EXPECT_EQ(both, child_key(child_key(root, first), second));
  EXPECT_NE(both, child_key(child_key(root, second), first));
  EXPECT_NE(both, child_key(root, second));
  EXPECT_EQ(both.size(), 64U);
}

}  // namespace
}  // namespace dormouse
