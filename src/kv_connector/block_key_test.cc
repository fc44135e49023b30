#include "kv_connector/block_key.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>

#include "kv_connector/connector_fixture.h"

namespace dormouse {
namespace {

TEST(BlockKey, KeepsApartWhateverTheBytesDependOn) {
  std::set<std::string> keys = {root_key(small_shape(), 1, "model", "salt")};
  const std::vector<std::function<void(KvShape&)>> changes = {[](KvShape& shape) { shape.num_layers = 3; },
                                                              [](KvShape& shape) { shape.num_kv_heads = 4; },
                                                              [](KvShape& shape) { shape.first_kv_head = 1; },
                                                              [](KvShape& shape) { shape.last_kv_head = 1; },
                                                              [](KvShape& shape) { shape.head_dim = 8; },
                                                              [](KvShape& shape) { shape.block_size = 8; },
                                                              [](KvShape& shape) { shape.dtype = "bfloat16"; },
                                                              [](KvShape& shape) { shape.layout = "another"; }};
  for (const auto& change : changes) {
    KvShape shape = small_shape();
    change(shape);
    keys.insert(root_key(shape, 1, "model", "salt"));
  }
  keys.insert(root_key(small_shape(), 2, "model", "salt"));
  keys.insert(root_key(small_shape(), 1, "another model", "salt"));
  keys.insert(root_key(small_shape(), 1, "model", "another salt"));
  keys.insert(root_key(small_shape(), 1, "modelsalt", ""));
  EXPECT_EQ(keys.size(), changes.size() + 5);
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
