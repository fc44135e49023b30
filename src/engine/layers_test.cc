// What the KV connector sees of the layers of a real model.
#include <filesystem>

#include "engine/engine_fixture.h"

namespace dormouse {
namespace {

double stat(const Engine& engine, const std::string& name) {
  double value = 0;
  for (const auto& [each, is] : engine.counters().connector)
    if (each == name)
      value = is;
  return value;
}

TEST_F(EngineTest, AConnectorMeetsEachLayerOfEachStep) {
  EngineConfig counting = config();
  counting.kv_transfer.kv_connector = "CountingConnector";
  counting.kv_transfer.kv_connector_module_path = DM_COUNTING_MODULE;
  start(counting);
  ask(200);
  for (int turn = 0; turn < 3; ++turn)  // of the loop: what the ranks count is asked between steps
    ASSERT_TRUE(engine->reset_prefix_cache(false));
  constexpr double kLayers = 2;
  const auto steps = static_cast<double>(engine->counters().steps);
  EXPECT_GE(steps, 12);
  EXPECT_EQ(stat(*engine, "counting_layers_loaded_total"), kLayers * steps);
  EXPECT_EQ(stat(*engine, "counting_layers_saved_total"), kLayers * steps);
}

TEST_F(EngineTest, ALayerIsReadOnceTheConnectorHasLoadedIt) {
  const Answer right = ask(200);
  std::string path = ::testing::TempDir() + "dormouse_layers_XXXXXX";
  ASSERT_NE(::mkdtemp(path.data()), nullptr);
  EngineConfig shared = config();
  shared.kv_transfer.kv_connector = "ExampleConnector";
  shared.kv_transfer.kv_connector_extra_config = R"({"shared_storage_path":")" + path + "\"}";
  start(shared);
  EXPECT_EQ(ask(200), right);
  start(shared);
  const Answer loaded = ask(200);
  EXPECT_EQ(loaded, right);
  EXPECT_EQ(loaded.cached_tokens, 192U);
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace dormouse
