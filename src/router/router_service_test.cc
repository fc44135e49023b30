// The router as a service: health, keys, overload, shutdown.
#include "router/instance_pool.h"
#include "router/pd_router.h"
#include "router/router_fixture.h"

namespace dormouse::router {
namespace {

TEST_F(RouterTest, FollowsTheHealthOfItsInstances) {
  start({.poll_interval = milliseconds(10)});
  EXPECT_EQ(call("GET", "/health/ready").status, 200);
  prefill_[0].set_health({.status = 503, .body = R"({"state":"asleep","reason":"at level 1"})"});
  prefill_[1].set_health({.status = 503, .body = R"({"state":"loading","reason":"5 %"})"});
  decode_[0].set_health({.status = 503, .body = R"({"state":"draining","reason":"bye"})"});
  decode_[1].set_health({.status = 401, .body = "{}"});
  wait_until([&] { return states() == "asleep loading gone locked"; });
  EXPECT_EQ(of_instances("cause"), std::string("at level 1 5 % bye ") + kLockedCause);
  EXPECT_EQ(call("GET", "/health/ready").status, 503);
  EXPECT_EQ(call("GET", "/health").status, 200);
  prefill_[0].set_health({});
  decode_[1].set_health({});
  wait_until([&] { return states() == "ready loading gone ready"; });
  decode_[1].die();
  wait_until([&] { return states() == "ready loading gone gone"; });
}

TEST_F(RouterTest, AnInstanceThatWokeIsUsedAgain) {
  start({.poll_interval = milliseconds(10)});
  for (FakeBackend& backend : prefill_)
    backend.set_health({.status = 503, .body = R"({"state":"asleep"})"});
  wait_until([&] { return states() == "asleep asleep ready ready"; });
  EXPECT_EQ(complete().status, 200);
  EXPECT_EQ(prefill_legs(), 0U);
  prefill_[1].set_health({});
  wait_until([&] { return states() == "asleep ready ready ready"; });
  EXPECT_EQ(complete().status, 200);
  EXPECT_EQ(prefill_[1].requests().size(), 1U);
}

TEST_F(RouterTest, ForwardsTheListOfModels) {
  set_decode(always({.body = R"({"object":"list"})"}));
  EXPECT_EQ(call("GET", "/v1/models").body, R"({"object":"list"})");
  EXPECT_EQ(only_decode_leg().path, "/v1/models");
  for (FakeBackend& backend : decode_)
    backend.die();
  EXPECT_EQ(call("GET", "/v1/models").status, 503);
}

TEST_F(RouterTest, CountsForPrometheus) {
  complete();
  const std::string text = call("GET", "/metrics").body;
  for (const std::string& line : {std::string("dormouse_router_requests_total{} 1\n"),
                                  std::string("dormouse_router_prefill_legs_total{} 1\n"),
                                  std::string("dormouse_router_local_computations_total{} 0\n"),
                                  "dormouse_router_instance_requests_total{url=\"" +
                                      decode_[0].url() + "\",role=\"decode\"} 1\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

TEST_F(RouterTest, OtherPathsAndMethodsAreRefused) {
  EXPECT_EQ(call("GET", "/sleep").status, 404);
  EXPECT_EQ(call("POST", "/status").status, 405);
  EXPECT_EQ(call("GET", "/v1/completions").status, 405);
  EXPECT_EQ(call("GET", "/status", {}, {{"Origin", "http://evil.example"}}).status, 403);
}

TEST_F(RouterTest, HasAKeyOfItsOwnAndOneForItsInstances) {
  headers_ = {{"Authorization", "Bearer own"}};
  start({.api_key = "own", .backend_api_key = "theirs", .poll_interval = std::chrono::hours(1)});
  EXPECT_EQ(complete().status, 401);
  EXPECT_EQ(call("GET", "/status").status, 401);
  EXPECT_EQ(call("GET", "/health").status, 200);
  EXPECT_EQ(prefill_legs() + decode_legs(), 0U);
  EXPECT_EQ(call("POST", "/v1/completions", R"({"prompt":"x"})", headers_).status, 200);
  EXPECT_EQ(prefill_[0].wait_for_request().header("authorization"), "Bearer theirs");
  EXPECT_EQ(only_decode_leg().header("authorization"), "Bearer theirs");
}

TEST_F(RouterTest, TheClientsKeyIsNotPassedOn) {
  call("POST", "/v1/completions", R"({"prompt":"x"})", {{"Authorization", "Bearer secret"}});
  EXPECT_EQ(prefill_[0].wait_for_request().header("authorization"), "");
  EXPECT_EQ(only_decode_leg().header("authorization"), "");
}

TEST_F(RouterTest, InstancesThatRefuseItsKeyAreItsOwnFault) {
  const HttpResponse locked{.status = 401, .body = R"({"error":"Unauthorized"})"};
  set_prefill(always(locked));
  set_decode(always(locked));
  for (const char* way : {"learned from the legs", "known"}) {
    const HttpResponse response = complete();
    EXPECT_EQ(response.status, 502) << way;
    EXPECT_NE(response.body.find("pass --backend-api-key"), std::string::npos) << response.body;
    for (FakeBackend& backend : decode_)
      backend.set_health(locked);
  }
  EXPECT_EQ(decode_legs(), 2U);
  EXPECT_EQ(states(), "locked locked locked locked");
  EXPECT_EQ(call("GET", "/v1/models").status, 502);
}

TEST_F(RouterTest, SeesAnInstanceWithoutAConnector) {
  decode_[1].set_status({.body = R"({"kv_transfer":null})"});
  prefill_[0].set_status({.status = 404});
  prefill_[1].set_status({.body = "{}"});
  testing::internal::CaptureStderr();
  start({.poll_interval = milliseconds(10)});
  const auto warning = [&] { return of_instances("warning"); };
  wait_until([&] { return warning().starts_with("it has no KV connector"); });
  const std::string text = call("GET", "/metrics").body;
  EXPECT_NE(text.find("dormouse_router_instance_misconfigured{url=\"" + decode_[1].url() +
                      "\",role=\"decode\"} 1\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(complete().status, 200);
  EXPECT_EQ(prefill_legs(), 1U) << "the other decode instance can pull";
  decode_[1].die();
  wait_until([&] { return warning().empty(); });
  const std::string log = testing::internal::GetCapturedStderr();
  const std::size_t first = log.find("it has no KV connector");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("it has no KV connector", first + 1), std::string::npos) << log;
}

TEST_F(RouterTest, NothingIsKeptForWhoCannotPullNorAskedOfWhoKeepsNothing) {
  for (auto* side : {&decode_, &prefill_}) {
    for (FakeBackend& backend : *side)
      backend.set_status({.body = R"({"kv_transfer":null})"});
    start({.poll_interval = milliseconds(10)});
    wait_until(
        [&] { return of_instances("warning").find("no KV connector") != std::string::npos; });
    wait_until([&] {
      const std::string warnings = of_instances("warning");
      return warnings.find("no KV connector") != warnings.rfind("no KV connector");
    });
    EXPECT_EQ(complete().status, 200);
    for (FakeBackend& backend : *side)
      backend.set_status({});
  }
  EXPECT_EQ(prefill_legs(), 0U);
  EXPECT_EQ(decode_legs(), 2U);
}

TEST_F(RouterTest, RefusesWhatItsQueueCannotHold) {
  start({.poll_interval = std::chrono::hours(1), .max_concurrent = 1, .max_queued = 1});
  std::promise<Writer> held;
  set_prefill([&](const HttpRequest&, const Writer& writer) { held.set_value(writer); });
  auto running = std::async(std::launch::async, [&] { return complete(); });
  const Writer writer = held.get_future().get();
  set_prefill(params_for_decode());
  std::vector<std::future<HttpResponse>> more;
  for (int i = 0; i < 2; ++i)
    more.push_back(std::async(std::launch::async, [&] { return complete(); }));
  // One of the two waits, the other is refused; who came first is left to chance.
  std::size_t refused = 2;
  wait_until([&] {
    for (std::size_t i = 0; i < 2; ++i)
      refused = more[i].wait_for(milliseconds(0)) == std::future_status::ready ? i : refused;
    return refused < 2;
  });
  EXPECT_EQ(more[refused].get().status, 503);
  writer->reply({.body = "{}"});
  EXPECT_EQ(running.get().status, 200);
  EXPECT_EQ(more[1 - refused].get().status, 200);
}

TEST_F(RouterTest, StopLetsRequestsUnderWayEnd) {
  std::promise<Writer> held;
  decode_[0].set_answer([&](const HttpRequest&, const Writer& writer) { held.set_value(writer); });
  auto running = std::async(std::launch::async, [&] { return complete(); });
  const Writer writer = held.get_future().get();
  auto stopped = std::async(std::launch::async, [&] { router_->stop(std::chrono::seconds(10)); });
  wait_until([&] { return !HttpClient::connect({.port = router_->port()}, milliseconds(100)); });
  writer->reply({.body = "late"});
  EXPECT_EQ(running.get().body, "late");
  stopped.get();
}

TEST_F(RouterTest, StopEndsWhatDoesNotEndByItself) {
  std::promise<void> gone;
  std::promise<Writer> held;
  decode_[0].set_answer([&](const HttpRequest&, const Writer& writer) {
    writer->on_disconnect([&] { gone.set_value(); });
    held.set_value(writer);
  });
  auto running = std::async(std::launch::async, [&] {
    return connect().call("POST", "/v1/completions", R"({"prompt":"x"})").has_value();
  });
  const Writer writer = held.get_future().get();
  router_->stop(milliseconds(10));
  EXPECT_FALSE(running.get());
  ASSERT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST(PdRouter, NeedsInstancesOfBothRolesAndUrls) {
  const auto start = [](std::vector<std::string> prefill, std::vector<std::string> decode) {
    const auto router =
        PdRouter::start({.prefill = std::move(prefill), .decode = std::move(decode)});
    return router ? "" : router.error().message;
  };
  EXPECT_EQ(start({}, {"127.0.0.1:1"}), "name at least one instance with --prefill URL");
  EXPECT_EQ(start({"127.0.0.1:1"}, {}), "name at least one instance with --decode URL");
  EXPECT_EQ(start({"a/b"}, {"127.0.0.1:1"}), "\"a/b\" is not a URL like http://127.0.0.1:8000");
}

TEST(PdRouter, ListensOnLoopbackOnlyWithoutAKey) {
  PdRouterOptions options{.prefill = {"127.0.0.1:1"}, .decode = {"127.0.0.1:1"}};
  options.http.host = "0.0.0.0";
  const auto router = PdRouter::start(options);
  ASSERT_FALSE(router);
  EXPECT_NE(router.error().message.find("without an API key"), std::string::npos);
}

}  // namespace
}  // namespace dormouse::router
