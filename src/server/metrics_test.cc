#include "server/metrics.h"

#include <gmock/gmock.h>

#include "server/fake_server.h"

namespace dormouse::server {
namespace {

using ::testing::HasSubstr;

class MetricsTest : public ApiServerTest {};

TEST_F(MetricsTest, CountWhatWasServed) {
  ASSERT_EQ(post("/v1/completions", R"({"prompt":"abcd"})").status, 200);
  ASSERT_EQ(post("/v1/completions", R"({"prompt":""})").status, 400);
  const HttpResponse response = get("/metrics");
  EXPECT_EQ(response.content_type, "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {R"(vllm:request_success_total{model_name="tiny",engine="0",finished_reason="stop"} 1)",
        R"(vllm:time_to_first_token_seconds_count{model_name="tiny",engine="0"} 1)",
        R"(vllm:inter_token_latency_seconds_count{model_name="tiny",engine="0"} 4)",
        R"(vllm:request_prompt_tokens_bucket{model_name="tiny",engine="0",le="5"} 1)",
        R"(vllm:request_prompt_tokens_bucket{model_name="tiny",engine="0",le="2"} 0)",
        R"(vllm:request_queue_time_seconds_sum{model_name="tiny",engine="0"} 0.25)",
        R"(vllm:request_prefill_time_seconds_sum{model_name="tiny",engine="0"} 0.5)",
        R"(vllm:request_decode_time_seconds_sum{model_name="tiny",engine="0"} 2)",
        R"(vllm:request_max_num_generation_tokens_sum{model_name="tiny",engine="0"} 5)",
        R"(vllm:iteration_tokens_total_count{model_name="tiny",engine="0"} 0)",
        R"(vllm:engine_sleep_state{model_name="tiny",engine="0",sleep_state="awake"} 1)",
        R"(dormouse:requests_refused_total{model_name="tiny",engine="0",)"
        R"(reason="invalid_argument"} 1)",
        R"(dormouse:mem_tag_bytes{model_name="tiny",engine="0",tag="weights",)"
        R"(state="mapped"} 104857600)"})
    EXPECT_THAT(response.body, HasSubstr(std::string(line) + "\n"));
}

TEST_F(MetricsTest, TheConnectorsHistogramsCarryVllmsNamesToo) {
  EngineCounters counters;
  counters.connector = {{"kv_generation", 3},
                        {R"(kv_transfer_seconds_bucket{le="0.5"})", 2},
                        {R"(kv_transfer_seconds_bucket{le="+Inf"})", 4},
                        {"kv_transfer_seconds_sum", 2.5},
                        {"kv_transfer_seconds_count", 4},
                        {"kv_queue_count", 5},
                        {"kv_failed_transfers_total", 4}};
  engine_.set_counters(counters);
  const std::string body = get("/metrics").body;
  for (const std::string name : {"dormouse:kv_transfer_seconds", "vllm:nixl_xfer_time_seconds"}) {
    const std::string labels = R"({model_name="tiny",engine="0")";
    EXPECT_THAT(body,
                HasSubstr("# TYPE " + name + " histogram\n" + name + "_bucket" + labels +
                          ",le=\"0.5\"} 2\n" + name + "_bucket" + labels + ",le=\"+Inf\"} 4\n" +
                          name + "_sum" + labels + "} 2.5\n" + name + "_count" + labels + "} 4\n"));
  }
  EXPECT_THAT(body, HasSubstr("# TYPE dormouse:kv_generation gauge\n"));
  EXPECT_THAT(body, HasSubstr("# TYPE dormouse:kv_queue_count gauge\n"));
  EXPECT_THAT(body, HasSubstr("# TYPE vllm:nixl_num_failed_transfers_total counter\n"));
}

TEST_F(MetricsTest, TheSleepStateIsAwakeOnlyWithAllOfTheMemory) {
  const auto state = [this] {
    const std::string body = get("/metrics").body;
    std::string found;
    for (const std::string name : {"awake", "weights_offloaded", "discard_all", "weights_alone"})
      if (body.find("sleep_state=\"" + name + "\"} 1\n") != std::string::npos)
        found += name;
    return found;
  };
  EXPECT_EQ(state(), "awake");
  ASSERT_EQ(post("/sleep").status, 200);
  EXPECT_EQ(state(), "weights_offloaded");
  ASSERT_EQ(post("/wake_up?tags=weights").status, 200);
  EXPECT_EQ(state(), "weights_alone");
  ASSERT_EQ(post("/sleep?level=2").status, 200);
  EXPECT_EQ(state(), "discard_all");
  ASSERT_EQ(post("/wake_up").status, 200);
  EXPECT_EQ(state(), "awake");
}

}  // namespace
}  // namespace dormouse::server
