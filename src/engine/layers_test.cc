// A KV connector that works layer by layer, beside a real model.
#include <gmock/gmock.h>

#include <chrono>

#include "engine/engine_fixture.h"

namespace dormouse {
namespace {

// Loads are synchronous and saves are part of a step that computes another request.
TEST_F(EngineTest, AConnectorLoadsAndSavesLayerByLayer) {
  const Answer right = ask(200);
  const std::string folder = ::testing::TempDir() + "dormouse_layers_XXXXXX";
  std::string path = folder;
  ASSERT_NE(::mkdtemp(path.data()), nullptr);
  EngineConfig shared = config();
  shared.kv_transfer.kv_connector = "ExampleConnector";
  shared.kv_transfer.kv_connector_extra_config = R"({"shared_storage_path":")" + path + "\"}";
  start(shared);

  Collector beside;
  const auto id = engine->submit(request(20, 1500), beside.sink());
  ASSERT_TRUE(id);
  beside.wait_for_tokens(1);
  EXPECT_EQ(ask(200), right);
  while (engine->status().kv_sends > 0)
    std::this_thread::yield();
  EXPECT_FALSE(beside.finished());
  engine->abort(*id);

  start(shared);
  const Answer loaded = ask(200);
  EXPECT_EQ(loaded, right);
  EXPECT_EQ(loaded.cached_tokens, 192U);
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace dormouse
