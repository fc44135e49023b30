#include "server/api_server.h"

#include <gtest/gtest.h>

#include "server/fake_engine.h"
#include "server/http_client.h"
#include "server/json.h"

namespace dormouse::server {
namespace {

using std::chrono::milliseconds;

class ApiServerTest : public ::testing::Test {
 protected:
  void SetUp() override { start({}); }

  void start(ApiServerOptions options) {
    server_.reset();
    auto server = ApiServer::start(engine_, std::move(options));
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }

  HttpClient connect() {
    auto client = HttpClient::connect({.port = server_->port()}, milliseconds(20'000));
    EXPECT_TRUE(client) << client.error().message;
    return std::move(*client);
  }

  HttpResponse call(std::string_view method, std::string_view target, std::string_view body = {},
                    const HeaderList& headers = {}) {
    auto response = connect().call(method, target, body, headers);
    EXPECT_TRUE(response) << response.error().message;
    return response ? *response : HttpResponse{.status = 0};
  }
  HttpResponse get(std::string_view target) { return call("GET", target); }
  HttpResponse post(std::string_view target, std::string_view body = {}) {
    return call("POST", target, body);
  }

  static std::string member(const HttpResponse& response, std::string_view name) {
    const auto json = parse_json(response.body);
    const Json* value = json ? json->find(name) : nullptr;
    return value == nullptr ? "(none)" : value->dump();
  }
  static std::string header(const HttpResponse& response, std::string_view name) {
    for (const auto& [key, value] : response.headers) {
      if (key == name)
        return value;
    }
    return "(none)";
  }

  FakeEngine engine_;
  std::unique_ptr<ApiServer> server_;
};

TEST_F(ApiServerTest, AnswersHealthInEveryStateAsAnOrchestratorNeedsIt) {
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/health/").status, 200);
  EXPECT_EQ(post("/sleep").status, 200);
  EXPECT_EQ(get("/health").body, R"({"status":"ok","state":"asleep"})");
  for (const EngineState state : {EngineState::kStarting, EngineState::kLoading,
                                  EngineState::kDraining, EngineState::kFailed}) {
    engine_.change_status([&](EngineStatus& status) { status.state = state; });
    EXPECT_EQ(get("/health").status, 503) << to_string(state);
  }
}

TEST_F(ApiServerTest, SleepsAndReportsWhatCameBack) {
  const HttpResponse response = post("/sleep?level=2&mode=wait&timeout_ms=500");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(engine_.calls(), std::vector<std::string>{"sleep level=2 mode=wait deadline=500"});
  EXPECT_EQ(member(response, "status"), "\"sleeping\"");
  EXPECT_EQ(member(response, "level"), "2");
  EXPECT_EQ(member(response, "state"), "\"asleep\"");
  EXPECT_EQ(member(response, "tags"), R"({"kv_cache":"asleep","weights":"asleep"})");
  EXPECT_EQ(member(response, "freed_bytes"), std::to_string(120 << 20));
  EXPECT_EQ(member(response, "seconds"), "0.0125");
  EXPECT_EQ(get("/is_sleeping").body, R"({"is_sleeping":true})");
  EXPECT_EQ(member(get("/status"), "state"), "\"asleep\"");
}

}  // namespace
}  // namespace dormouse::server
