#include "server/api_server.h"

#include <thread>

#include "server/fake_server.h"

namespace dormouse::server {
namespace {

using std::chrono::milliseconds;

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

TEST_F(ApiServerTest, SleepDefaultsToLevelOneAndAbort) {
  EXPECT_EQ(call("POST", "/sleep", "", {{"Content-Type", "application/json"}}).status, 200);
  EXPECT_EQ(engine_.calls(), std::vector<std::string>{"sleep level=1 mode=abort"});
}

TEST_F(ApiServerTest, OptionsComeFromQueryOrBodyAsNumbersOrStrings) {
  EXPECT_EQ(post("/sleep", R"({"level":2,"unknown":null,"mode":null})").status, 200);
  EXPECT_EQ(post("/sleep", R"({"level":"2"})").status, 200);
  EXPECT_EQ(post("/sleep/?level=2", R"({"level":2})").status, 200);
  EXPECT_EQ(post("/pause?clear_cache=false&mode=keep").status, 200);
  EXPECT_EQ(post("/pause", R"({"wait_for_inflight_requests":true})").status, 200);
  EXPECT_EQ(post("/reset_prefix_cache", R"({"reset_running_requests":true})").body,
            R"({"success":true,"state":"asleep"})");
  EXPECT_EQ(engine_.calls(),
            (std::vector<std::string>{
                "sleep level=2 mode=abort", "sleep level=2 mode=abort", "sleep level=2 mode=abort",
                "pause mode=keep clear_cache=false", "pause mode=wait clear_cache=true",
                "reset_prefix_cache running=true external=false"}));
}

TEST_F(ApiServerTest, BadOptionsChangeNothing) {
  const std::pair<const char*, const char*> bad[] = {
      {"/sleep?level=3", "level"},
      {"/sleep?level=-1", "level"},
      {"/sleep?level=", "level"},
      {"/sleep?level=1.0", "level"},
      {"/sleep?level=99999999999999999999", "level"},
      {"/sleep?level=1&level=2", "level"},
      {"/sleep?mode=nap", "mode"},
      {"/sleep?timeout_ms=-1", "timeout_ms"},
      {"/sleep?tags=weights", "tags"},
      {"/sleep?level=%zz", "query"},
      {"/wake_up?tags=weights&tags=bogus", "tags"},
      {"/wake_up?tags=", "tags"},
      {"/pause?mode=x", "mode"},
      {"/pause?clear_cache=maybe", "clear_cache"},
  };
  for (const auto& [target, param] : bad) {
    const HttpResponse response = post(target);
    EXPECT_EQ(response.status, 400) << target;
    EXPECT_NE(response.body.find("\"param\":\"" + std::string(param) + "\""), std::string::npos)
        << target << response.body;
  }
  EXPECT_EQ(call("POST", "/sleep?level=1", R"({"level":2})").status, 400);
  EXPECT_EQ(post("/sleep", "[1]").status, 400);
  EXPECT_EQ(post("/sleep", "{").status, 400);
  EXPECT_EQ(post("/sleep", R"({"level":[1]})").status, 400);
  EXPECT_EQ(post("/wake_up", R"({"tags":[1]})").status, 400);
  EXPECT_TRUE(engine_.calls().empty());
}

TEST_F(ApiServerTest, AParameterThatIsNearlyAKnownOneChangesNothingAndNamesIt) {
  struct Slip {
    std::string path;
    std::string given;
    std::string meant;
  };
  const Slip slips[] = {{"/sleep", "levle", "level"},
                        {"/sleep", "LEVEL", "level"},
                        {"/sleep", "timeoutMs", "timeout_ms"},
                        {"/wake_up", "tag", "tags"},
                        {"/pause", "clear-cache", "clear_cache"},
                        {"/reset_prefix_cache", "reset_externl", "reset_external"}};
  for (const auto& [path, given, meant] : slips) {
    const std::string expected =
        R"(unknown parameter \")" + given + R"(\"; did you mean \")" + meant + R"(\"?)";
    for (const HttpResponse& response :
         {post(path + "?" + given + "=2"), post(path, "{\"" + given + "\":2}")}) {
      EXPECT_EQ(response.status, 400) << path;
      EXPECT_NE(response.body.find(expected), std::string::npos) << response.body;
      EXPECT_NE(response.body.find("\"param\":\"" + given + "\""), std::string::npos);
    }
  }
  EXPECT_EQ(post("/collective_rpc", R"({"method":"sleep","kwargs":{"levle":2}})").status, 400);
  EXPECT_TRUE(engine_.calls().empty());
  EXPECT_EQ(post("/sleep", R"({"model":"tiny"})").status, 200) << "no slip of mode";
}

TEST_F(ApiServerTest, AParameterUnlikeAnyKnownOneIsIgnoredAsVllmDoes) {
  EXPECT_EQ(post("/reset_prefix_cache?device=gpu").status, 200);
  EXPECT_EQ(post("/pause", R"({"worker":"m","request_id":7})").status, 200);
  EXPECT_EQ(post("/resume?mode=keep").status, 200);
  EXPECT_EQ(post("/sleep?level=2", R"({"worker":"m"})").status, 200);
  EXPECT_EQ(engine_.calls().back(), "sleep level=2 mode=abort");
}

TEST_F(ApiServerTest, WeightsThatAreLostAreToldByAWakeUpAndRefuseAResume) {
  ASSERT_EQ(post("/sleep?level=2").status, 200);
  engine_.change_status([](EngineStatus& status) { status.weights_valid = false; });
  const HttpResponse woken = post("/wake_up");
  EXPECT_EQ(woken.status, 200);
  EXPECT_EQ(member(woken, "status"), "\"paused\"");
  EXPECT_EQ(member(woken, "state"), "\"paused\"");
  EXPECT_EQ(member(woken, "next"), "\"POST /reload_weights\"");
  EXPECT_EQ(member(get("/status"), "next"), "\"POST /reload_weights\"");
  const HttpResponse resumed = post("/resume");
  EXPECT_EQ(resumed.status, 409);
  EXPECT_NE(resumed.body.find("POST /reload_weights"), std::string::npos) << resumed.body;
  EXPECT_EQ(member(post("/reload_weights"), "next"), "\"\"");
  EXPECT_EQ(member(post("/resume"), "status"), "\"resumed\"");
}

TEST_F(ApiServerTest, AFailedRestoreIsToldByAWakeUpAndRefusesAResume) {
  engine_.change_status([](EngineStatus& status) { status.state = EngineState::kDegraded; });
  EXPECT_EQ(member(get("/status"), "next"), "\"POST /wake_up\"");
  EXPECT_EQ(post("/resume").status, 409);
  EXPECT_TRUE(engine_.calls().empty());
}

TEST_F(ApiServerTest, StatusShowsHowKvIsTransferred) {
  EXPECT_EQ(member(get("/status"), "kv_transfer"), "null");
  start(
      {.kv_transfer = {.kv_role = KvRole::kConsumer,
                       .kv_port = 7,
                       .kv_connector_extra_config =
                           R"({"connectors":[{"kv_connector_extra_config":{"peers":["h:1"]}}]})"}});
  engine_.change_status([](EngineStatus& status) {
    status.kv_connector = "X";
    status.engine_id = "me";
    status.kv_loads = 2;
  });
  EXPECT_EQ(member(get("/status"), "kv_transfer"),
            R"({"connector":"X","role":"kv_consumer","engine_id":"me","address":"127.0.0.1:7",)"
            R"("peers":["h:1"],"loads":2,"sends":0})");
}

TEST_F(ApiServerTest, WakesAllOrSomeTags) {
  ASSERT_EQ(post("/sleep").status, 200);
  const HttpResponse part = post("/wake_up?tags=weights&tags=weights");
  EXPECT_EQ(member(part, "status"), "\"sleeping\"");
  EXPECT_EQ(member(part, "next"), "\"POST /wake_up\"");
  EXPECT_EQ(member(part, "tags_woken"), R"(["weights"])");
  EXPECT_EQ(member(part, "tags"), R"({"kv_cache":"asleep","weights":"resident"})");
  EXPECT_EQ(member(part, "freed_bytes"), std::to_string(-(100 << 20)));
  const HttpResponse rest = post("/wake_up", R"({"tags":["kv_cache"]})");
  EXPECT_EQ(member(rest, "status"), "\"awake\"");
  EXPECT_EQ(member(rest, "next"), "\"\"");
  EXPECT_EQ(member(post("/wake_up"), "tags_woken"), "null");
  EXPECT_EQ(get("/is_sleeping").body, R"({"is_sleeping":false})");
  EXPECT_EQ(engine_.calls(),
            (std::vector<std::string>{"sleep level=1 mode=abort", "wake_up weights",
                                      "wake_up kv_cache", "wake_up all"}));
}

TEST_F(ApiServerTest, PausesAndResumes) {
  EXPECT_EQ(member(post("/pause"), "status"), "\"paused\"");
  EXPECT_EQ(get("/is_paused").body, R"({"is_paused":true})");
  EXPECT_EQ(member(post("/release_kv_cache_memory"), "status"), "\"kv_cache_released\"");
  EXPECT_EQ(member(post("/wake_up"), "status"), "\"awake\"");
  EXPECT_EQ(member(post("/resume"), "status"), "\"resumed\"");
  EXPECT_EQ(get("/is_paused").body, R"({"is_paused":false})");
}

TEST_F(ApiServerTest, CollectiveRpcRunsOnlyWhatIsListed) {
  const HttpResponse response =
      post("/collective_rpc", R"({"method":"sleep","kwargs":{"level":2},"timeout":5})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body.rfind(R"({"results":[{"status":"sleeping","level":2,)", 0), 0U);
  EXPECT_EQ(post("/collective_rpc", R"({"method":"wake_up","kwargs":{"tags":["weights"]}})").status,
            200);
  EXPECT_EQ(post("/collective_rpc", R"({"method":"reload_weights","args":[]})").status, 200);
  EXPECT_EQ(post("/collective_rpc", R"({"method":"sleep","args":[0]})").status, 200);
  EXPECT_EQ(post("/collective_rpc", R"({"method":"exec","args":["rm"]})").status, 404);
  EXPECT_EQ(post("/collective_rpc", "{}").status, 400);
  EXPECT_EQ(engine_.calls(),
            (std::vector<std::string>{"sleep level=2 mode=abort", "wake_up weights",
                                      "reload_weights", "sleep level=0 mode=abort"}));
}

TEST_F(ApiServerTest, EachErrorCodeHasItsStatus) {
  const std::pair<ErrorCode, int> codes[] = {
      {ErrorCode::kInvalidArgument, 400},    {ErrorCode::kNotFound, 404},
      {ErrorCode::kFailedPrecondition, 409}, {ErrorCode::kCancelled, 409},
      {ErrorCode::kUnsupported, 501},        {ErrorCode::kResourceExhausted, 507},
      {ErrorCode::kUnavailable, 503},        {ErrorCode::kDeadlineExceeded, 504},
      {ErrorCode::kDataLoss, 500},           {ErrorCode::kInternal, 500}};
  for (const auto& [code, status] : codes) {
    engine_.fail_next_control({code, "why, and what next", "level"});
    const HttpResponse response = post("/sleep");
    EXPECT_EQ(response.status, status);
    EXPECT_EQ(header(response, "retry-after"), status == 503 ? "1" : "(none)");
    EXPECT_NE(response.body.find(R"("message":"why, and what next")"), std::string::npos);
    EXPECT_EQ(member(response, "state"), "\"running\"");
  }
}

TEST_F(ApiServerTest, StatusRoutesAnswerWhileATransitionIsUnderWay) {
  engine_.hold_transitions(true);
  std::thread sleeper([this] { EXPECT_EQ(post("/sleep?mode=wait").status, 200); });
  engine_.wait_for_call("sleep level=1 mode=wait");
  for (const char* target : {"/health", "/health/ready", "/status", "/metrics", "/is_sleeping"})
    EXPECT_EQ(get(target).status, 200) << target;
  std::thread waker([this] { EXPECT_EQ(post("/wake_up").status, 200); });
  engine_.wait_for_call("wake_up all");  // not stuck behind the sleep
  engine_.hold_transitions(false);
  sleeper.join();
  waker.join();
}

TEST_F(ApiServerTest, AWakeUpGetsThroughHoweverManySleepsWait) {
  engine_.hold_transitions(true);
  std::vector<std::thread> callers;
  for (int i = 0; i < 12; ++i)
    callers.emplace_back([this] { EXPECT_EQ(post("/sleep").status, 200); });
  engine_.wait_for_call("sleep level=1 mode=abort");
  callers.emplace_back([this] { EXPECT_EQ(post("/wake_up").status, 200); });
  engine_.wait_for_call("wake_up all");
  engine_.hold_transitions(false);
  for (std::thread& caller : callers)
    caller.join();
}

TEST_F(ApiServerTest, ReadinessSaysWhyNot) {
  EXPECT_EQ(get("/health/ready").body, R"({"ready":true,"state":"running","reason":""})");
  ASSERT_EQ(post("/sleep?level=2").status, 200);
  const HttpResponse response = get("/health/ready");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(header(response, "retry-after"), "1");
  EXPECT_EQ(response.body, R"({"ready":false,"state":"asleep",)"
                           R"("reason":"the engine is asleep at level 2; POST /wake_up"})");
}

TEST_F(ApiServerTest, ReadinessNamesInvalidWeightsBeforeThePause) {
  engine_.change_status([](EngineStatus& status) {
    status.state = EngineState::kPaused;
    status.weights_valid = false;
  });
  EXPECT_EQ(member(get("/health/ready"), "reason"),
            "\"the weights are not loaded; POST /reload_weights\"");
}

TEST_F(ApiServerTest, StatusHoldsBytesByTagAndTheLastTransition) {
  ASSERT_EQ(post("/sleep").status, 200);
  const HttpResponse response = get("/status");
  EXPECT_EQ(
      member(response, "memory"),
      R"({"kv_cache":{"mapped":0,"asleep":20971520,"backed_up":0,"leaked":0,"generation":1,)"
      R"("read_only":false},"weights":{"mapped":0,"asleep":104857600,"backed_up":0,"leaked":0,)"
      R"("generation":1,"read_only":true}})");
  EXPECT_EQ(member(response, "requests_running"), "0");
  EXPECT_NE(member(response, "last_transition").find(R"("phases_ms":{"unmap":12.5})"),
            std::string::npos);
}

TEST_F(ApiServerTest, ListsTheModelWithItsContext) {
  const std::string body = get("/v1/models").body;
  EXPECT_EQ(body.rfind(R"({"object":"list","data":[{"id":"tiny","object":"model","created":)", 0),
            0U);
  EXPECT_NE(body.find(R"("max_model_len":1024)"), std::string::npos);
  EXPECT_EQ(get("/version").body, R"({"version":"0.1.0"})");
}

TEST_F(ApiServerTest, DescribesOneModelByItsName) {
  engine_.change_status([](EngineStatus& status) { status.served_model_name = "a/tiny 1+1"; });
  for (const char* name : {"a/tiny%201+1", "a%2Ftiny%201%2B1", "a/tiny%201+1/"})
    EXPECT_EQ(member(get(std::string("/v1/models/") + name), "id"), "\"a/tiny 1+1\"") << name;
  for (const char* name : {"tiny", "a", "a/tiny", "a/tiny+1+1", "%", "%00"})
    EXPECT_EQ(get(std::string("/v1/models/") + name).status, 404) << name;
  EXPECT_EQ(post("/v1/models/a").status, 405);
}

TEST_F(ApiServerTest, TheNamesOfOthersAreTheSameCalls) {
  EXPECT_EQ(post("/release_memory_occupation", R"({"tags":["weights","kv_cache"]})").status, 200);
  EXPECT_EQ(post("/release_memory_occupation", "{}").status, 200);  // it is asleep already
  EXPECT_EQ(post("/resume_memory_occupation", R"({"tags":["weights"]})").status, 200);
  EXPECT_EQ(post("/resume_memory_occupation", R"({"tags":["cuda_graph"]})").status, 200);
  EXPECT_EQ(post("/resume_memory_occupation", R"({"tags":null})").status, 200);
  EXPECT_EQ(post("/release_memory_occupation", R"({"tags":["kv_cache"]})").status, 200);
  EXPECT_EQ(post("/release_memory_occupation", R"({"tags":["weights"]})").status, 200);
  EXPECT_EQ(post("/wakeup?tags=weights&tags=kv_cache").status, 200);
  EXPECT_EQ(post("/pause_generation", "{}").status, 200);
  EXPECT_EQ(post("/pause_generation", R"({"mode":"in_place"})").status, 200);
  EXPECT_EQ(post("/pause_generation", R"({"mode":"retract"})").status, 200);
  EXPECT_EQ(post("/continue_generation", R"({"torch_empty_cache":true})").status, 200);
  EXPECT_EQ(get("/flush_cache").status, 200);
  const std::vector<std::string> expected = {"sleep level=1 mode=abort",
                                             "wake_up weights",
                                             "wake_up all",
                                             "release_kv_cache_memory",
                                             "sleep level=1 mode=abort",
                                             "wake_up kv_cache weights",
                                             "pause mode=abort clear_cache=true",
                                             "pause mode=keep clear_cache=false",
                                             "pause mode=keep clear_cache=true",
                                             "resume",
                                             "reset_prefix_cache running=false external=false"};
  EXPECT_EQ(engine_.calls(), expected);
}

TEST_F(ApiServerTest, WhatTheNamesOfOthersCannotDoIsRefused) {
  EXPECT_EQ(post("/release_memory_occupation", R"({"tags":["weights"]})").status, 409);
  EXPECT_EQ(post("/release_memory_occupation", R"({"tags":["nothing"]})").status, 400);
  EXPECT_EQ(post("/release_memory_occupation", R"({"tags":5})").status, 400);
  EXPECT_EQ(post("/resume_memory_occupation", R"({"tags":["nothing"]})").status, 400);
  EXPECT_EQ(post("/pause_generation", R"({"mode":"nothing"})").status, 400);
  EXPECT_EQ(post("/abort_request", "{}").status, 400);
  EXPECT_TRUE(engine_.calls().empty());
}

TEST_F(ApiServerTest, AWrongMethodNamesTheRightOne) {
  const HttpResponse response = get("/sleep");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(header(response, "allow"), "POST");
  EXPECT_EQ(get("/nowhere").status, 404);
  EXPECT_EQ(call("HEAD", "/health").body, "");
}

TEST_F(ApiServerTest, AKeyGuardsEverythingButTheProbes) {
  start({.api_key = "secret"});
  for (const char* target : {"/health", "/health/", "/ping", "/version", "/health_generate"})
    EXPECT_EQ(get(target).status, 200) << target;
  for (const char* target : {"/v1/models", "/status", "/metrics", "/health/ready", "/is_sleeping",
                             "/v1/models/tiny", "/load", "/nowhere", "/server_info", "//health",
                             "/health/../status", "/HEALTH", "/health%2f", "/health?/status=1/x/"})
    EXPECT_EQ(get(target).status, target == std::string("/health?/status=1/x/") ? 200 : 401)
        << target;
  for (const char* target : {"/sleep", "/wake_up", "/pause", "/v1/completions", "/tokenize",
                             "/collective_rpc", "/abort_requests", "/reload_weights", "/wakeup",
                             "/release_memory_occupation", "/flush_cache", "/abort_request"}) {
    const HttpResponse response = post(target);
    EXPECT_EQ(response.status, 401) << target;
    EXPECT_EQ(response.body, R"({"error":"Unauthorized"})");
  }
  for (const char* key :
       {"Bearer secre", "Bearer secrets", "Bearer Secret", "secret", "Bearer ", ""})
    EXPECT_EQ(call("POST", "/sleep", "", {{"Authorization", key}}).status, 401) << key;
  EXPECT_TRUE(engine_.calls().empty());
  EXPECT_EQ(call("POST", "/sleep", "", {{"Authorization", "Bearer secret"}}).status, 200);
}

TEST_F(ApiServerTest, AForeignWebPageCannotControlAServerWithoutAKey) {
  for (const char* origin : {"http://evil.example", "http://localhost.evil.example", "null",
                             "http://evil.example:8000", "http://[::2]:80"}) {
    EXPECT_EQ(call("POST", "/sleep", "", {{"Origin", origin}}).status, 403) << origin;
    EXPECT_EQ(call("GET", "/health", "", {{"Origin", origin}}).status, 200) << origin;
  }
  EXPECT_TRUE(engine_.calls().empty());
  for (const char* origin : {"http://localhost:3000", "http://127.0.0.1", "http://[::1]:80"})
    EXPECT_EQ(call("GET", "/status", "", {{"Origin", origin}}).status, 200) << origin;
}

TEST_F(ApiServerTest, AnOpenAddressNeedsAKey) {
  const auto refused = ApiServer::start(engine_, {.http = {.host = "0.0.0.0"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("--api-key"), std::string::npos);
  EXPECT_TRUE(ApiServer::start(engine_, {.http = {.host = "0.0.0.0"}, .api_key = "k"}));
}

TEST_F(ApiServerTest, APortInUseIsAClearError) {
  const auto refused = ApiServer::start(engine_, {.http = {.port = server_->port()}});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("--port"), std::string::npos);
}

TEST_F(ApiServerTest, AnAnswerWhileDrainingEndsItsConnection) {
  EXPECT_EQ(header(get("/health"), "connection"), "keep-alive");
  server_->begin_drain();
  engine_.shutdown(milliseconds(0));
  for (const char* target : {"/health", "/health/ready"}) {
    const HttpResponse response = get(target);
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(header(response, "connection"), "close");
  }
}

TEST_F(ApiServerTest, StopsGracefullyWithAnswersUnderWay) {
  engine_.hold_requests(true);
  std::thread user([this] {
    const HttpResponse response = post("/v1/completions", R"({"prompt":"x"})");
    EXPECT_EQ(response.status, 200);
    EXPECT_NE(response.body.find(R"("finish_reason":"abort")"), std::string::npos);
    EXPECT_EQ(header(response, "connection"), "keep-alive");
  });
  engine_.wait_for_held(1);
  engine_.shutdown(milliseconds(0));
  EXPECT_EQ(get("/health").status, 503);
  user.join();
  server_->stop(milliseconds(10'000));
  EXPECT_FALSE(HttpClient::connect({.port = server_->port()}, milliseconds(1'000)));
}

}  // namespace
}  // namespace dormouse::server
