#include "router/pd_router.h"

#include <algorithm>

#include "router/router_fixture.h"

namespace dormouse::router {
namespace {

std::string error_of(const HttpResponse& response, const char* member) {
  const auto body = parse_json(response.body);
  const Json* error = body ? body->find("error") : nullptr;
  const Json* value = error != nullptr ? error->find(member) : nullptr;
  return value == nullptr ? "(none)" : value->string() ? *value->string() : value->dump();
}

bool has_header(const HttpResponse& response, std::string_view name) {
  return std::ranges::any_of(response.headers,
                             [&](const auto& header) { return header.first == name; });
}

TEST_F(RouterTest, SendsBothLegsAndPassesTheParamsOnAsTheyAre) {
  const HttpResponse response =
      call("POST", "/v1/completions", R"({"prompt":"x","max_tokens":5})", {{"X-Request-Id", "me"}});
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, R"({"id":"d"})");
  ASSERT_EQ(prefill_legs(), 1U);
  const HttpRequest first = prefill_[0].requests()[0], second = only_decode_leg();
  EXPECT_EQ(first.path, "/v1/completions");
  EXPECT_EQ(first.body,
            R"({"prompt":"x","stream":false,"n":1,"max_tokens":1,"kv_transfer_params":)"
            R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
            R"("remote_block_ids":null,"remote_host":null,"remote_port":null}})");
  EXPECT_EQ(second.body,
            std::string(R"({"prompt":"x","max_tokens":5,"kv_transfer_params":)") + kParams + "}");
  EXPECT_TRUE(first.header("x-request-id").starts_with("me-"));
  EXPECT_EQ(first.header("x-request-id"), second.header("x-request-id"));
  EXPECT_EQ(total("requests"), 1);
  EXPECT_EQ(total("prefill_legs"), 1);
  EXPECT_EQ(total("local_computations"), 0);
  EXPECT_EQ(total("retries"), 0);
}

TEST_F(RouterTest, ChatGoesToTheChatRoute) {
  EXPECT_EQ(call("POST", "/v1/chat/completions", R"({"messages":[]})").status, 200);
  EXPECT_EQ(prefill_[0].wait_for_request().path, "/v1/chat/completions");
  EXPECT_EQ(only_decode_leg().path, "/v1/chat/completions");
}

TEST_F(RouterTest, RequestsWithTheSameIdAreIndependent) {
  for (int i = 0; i < 2; ++i)
    call("POST", "/v1/completions", R"({"prompt":"x"})", {{"X-Request-Id", "same"}});
  EXPECT_NE(prefill_[0].wait_for_request().header("x-request-id"),
            prefill_[1].wait_for_request().header("x-request-id"));
}

TEST_F(RouterTest, TakesTheInstancesInTurns) {
  complete();
  complete();
  EXPECT_EQ(of_instances("requests"), "1 1 1 1");
  EXPECT_EQ(of_instances("in_flight"), "0 0 0 0");
}

TEST_F(RouterTest, AStreamIsNotHeldBack) {
  std::promise<Writer> held;
  set_decode([&](const HttpRequest&, const Writer& writer) {
    writer->start_stream({.content_type = "text/event-stream"});
    writer->write("data: 1\n\n");
    held.set_value(writer);
  });
  std::string received;
  const auto response = connect().stream("POST", "/v1/completions", R"({"prompt":"x"})", {},
                                         [&](std::string_view part) {
                                           received += part;
                                           if (received == "data: 1\n\n") {
                                             const Writer stream = held.get_future().get();
                                             stream->write("data: 2\n\ndata: [DONE]\n\n");
                                             stream->finish();
                                           }
                                           return true;
                                         });
  ASSERT_TRUE(response) << response.error().message;
  EXPECT_EQ(response->content_type, "text/event-stream");
  EXPECT_EQ(received, "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n");
}

TEST_F(RouterTest, APrefillInstanceThatRefusesIsReplacedByTheNext) {
  prefill_[0].set_answer(refusal("fast asleep"));
  EXPECT_EQ(complete().status, 200);
  EXPECT_EQ(prefill_legs(), 2U);
  EXPECT_NE(only_decode_leg().body.find(kParams), std::string::npos);
  EXPECT_EQ(states(), "asleep ready ready ready");
  EXPECT_EQ(of_instances("cause"), "fast asleep   ");
  EXPECT_EQ(total("retries"), 1);
  EXPECT_EQ(complete().status, 200);
  EXPECT_EQ(prefill_[0].requests().size(), 1U) << "it was asked again although it is asleep";
}

TEST_F(RouterTest, WhenNoPrefillInstanceServesTheDecodeSideComputes) {
  prefill_[0].set_answer(refusal("asleep"));
  prefill_[1].die();
  const std::string body = R"({"prompt":"x","max_tokens":5})";
  EXPECT_EQ(complete(body).body, R"({"id":"d"})");
  EXPECT_EQ(only_decode_leg().body, body);
  EXPECT_EQ(states(), "asleep gone ready ready");
  EXPECT_EQ(of_instances("failures"), "1 1 0 0");
  EXPECT_EQ(total("local_computations"), 1);
  EXPECT_EQ(complete(body).status, 200);
  EXPECT_EQ(total("prefill_legs"), 2);
  EXPECT_EQ(total("local_computations"), 2);
}

TEST_F(RouterTest, APrefillInstanceThatBreaksDownOrKeepsNothingIsReplaced) {
  prefill_[0].set_answer(always({.status = 500, .body = "{}"}));
  prefill_[1].set_answer(always({.body = R"({"kv_transfer_params":null})"}));
  EXPECT_EQ(complete().status, 200);
  EXPECT_EQ(prefill_legs(), 2U);
  EXPECT_EQ(only_decode_leg().body.find("kv_transfer_params"), std::string::npos);
}

TEST_F(RouterTest, APrefillInstanceThatHangsIsGivenUp) {
  start({.prefill_timeout = milliseconds(50), .poll_interval = std::chrono::hours(1)});
  set_prefill([&](const HttpRequest&, const Writer& writer) { hold(writer); });
  EXPECT_EQ(complete().status, 200);
  EXPECT_EQ(total("local_computations"), 1);
  EXPECT_EQ(states(), "ready ready ready ready") << "one slow answer is not the last";
  EXPECT_EQ(of_instances("failures"), "1 1 0 0");
}

TEST_F(RouterTest, APrefillInstanceThatTricklesIsGivenUp) {
  start({.prefill_timeout = milliseconds(200), .poll_interval = std::chrono::hours(1)});
  std::atomic<bool> over = false;
  std::vector<std::jthread> trickles;
  set_prefill([&](const HttpRequest&, const Writer& writer) {
    writer->start_stream({.content_type = "application/json"});
    trickles.emplace_back([&over, writer] {
      while (!over) {
        writer->write(" ");
        std::this_thread::sleep_for(milliseconds(5));  // allowed: it trickles
      }
    });
  });
  EXPECT_EQ(complete().status, 200);
  over = true;
  EXPECT_EQ(total("local_computations"), 1);
  EXPECT_EQ(states(), "ready ready ready ready") << "one slow answer is not the last";
  EXPECT_EQ(of_instances("failures"), "1 1 0 0");
}

TEST_F(RouterTest, AnAnswerWithoutEndIsNone) {
  set_decode([&](const HttpRequest&, const Writer& writer) {
    writer->start_stream({.content_type = "application/json"});
    for (int i = 0; i < 80; ++i)
      writer->write(std::string(1 << 20, ' '));
    writer->finish();
  });
  EXPECT_EQ(complete().status, 502);
  EXPECT_EQ(states(), "ready ready ready ready");
  EXPECT_EQ(of_instances("failures"), "0 0 1 0");
}

TEST_F(RouterTest, AnEventWithoutEndBreaksItsStreamOff) {
  set_decode([](const HttpRequest&, const Writer& writer) {
    writer->start_stream({.content_type = "text/event-stream"});
    writer->write("data: 1\n\ndata: ");
    for (int i = 0; i < 40; ++i)
      writer->write(std::string(64 << 10, 'x'));
    writer->write("\n\ndata: [DONE]\n\n");
    writer->finish();
  });
  const HttpResponse response = complete(R"({"prompt":"x","stream":true})");
  EXPECT_TRUE(response.body.starts_with("data: 1\n\ndata: {\"error\":")) << response.body.size();
  EXPECT_EQ(of_instances("failures"), "0 0 1 0");
}

TEST_F(RouterTest, ABadRequestIsTheClientsAnswer) {
  set_prefill(always({.status = 422, .body = R"({"error":"no"})", .content_type = "text/x"}));
  const HttpResponse response = complete();
  EXPECT_EQ(response.status, 422);
  EXPECT_EQ(response.body, R"({"error":"no"})");
  EXPECT_EQ(response.content_type, "text/x");
  EXPECT_EQ(prefill_legs(), 1U);
  EXPECT_EQ(decode_legs(), 0U);
}

TEST_F(RouterTest, SeveralPromptsAreComputedOnTheDecodeSide) {
  for (const char* body : {R"({"prompt":["a","b"]})", R"({"prompt":[[1],[2]]})"})
    EXPECT_EQ(complete(body).status, 200);
  EXPECT_EQ(prefill_legs(), 0U);
  EXPECT_EQ(decode_legs(), 2U);
  EXPECT_EQ(total("local_computations"), 2);
}

TEST_F(RouterTest, ARequestMayNotNamePeers) {
  for (const char* params : {R"({"remote_host":"10.0.0.1"})", "{}", "[]", "1", "\"x\""}) {
    const HttpResponse response =
        complete(std::string(R"({"prompt":"x","kv_transfer_params":)") + params + "}");
    EXPECT_EQ(response.status, 400) << params;
    EXPECT_EQ(error_of(response, "param"), "kv_transfer_params");
  }
  EXPECT_EQ(prefill_legs() + decode_legs(), 0U);
  EXPECT_EQ(complete(R"({"prompt":"x","kv_transfer_params":null})").status, 200);
}

TEST_F(RouterTest, WhatIsNotARequestIsRefused) {
  for (const char* body : {"", "{", "[]", "1", R"({"prompt":"x","prompt":"y"})"})
    EXPECT_EQ(complete(body).status, 400) << body;
  EXPECT_EQ(prefill_legs() + decode_legs(), 0U);
}

constexpr const char* kForeignPeer = R"({"error":{"message":"h:7 is not a configured peer",)"
                                     R"("param":"kv_transfer_params.remote_host"}})";

TEST_F(RouterTest, ADecodeInstanceThatRefusesTheParamsComputesLocally) {
  decode_[0].set_answer([](const HttpRequest& request, const Writer& writer) {
    const bool with_params = request.body.find("kv_transfer_params") != std::string::npos;
    writer->reply(with_params ? HttpResponse{.status = 400, .body = kForeignPeer}
                              : HttpResponse{.body = "local"});
  });
  decode_[1].die();
  const std::string body = R"({"prompt":"x","max_tokens":5})";
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(complete(body).body, "local");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(decode_[0].requests()[1].body, body);
  EXPECT_EQ(total("local_computations"), 3);
  EXPECT_EQ(of_instances("refused_params"), "0 0 1 0");
  EXPECT_LE(prefill_legs(), 2U) << "nothing is kept for who was seen not to fetch it";
  EXPECT_EQ(of_instances("warning"),
            "it refuses kv_transfer_params: h:7 is not a configured peer ");
  const std::size_t first = log.find("h:7 is not a configured peer");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("h:7 is not a configured peer", first + 1), std::string::npos) << log;
}

TEST_F(RouterTest, NoInstanceIsToFetchWhatItHasKeptItself) {
  // Every instance in both roles; the one that is at hand keeps, another one fetches.
  const auto serves_both = [](const HttpRequest& request, const Writer& writer) {
    const bool keeps = request.body.find("do_remote_decode\":true") != std::string::npos;
    writer->reply(
        {.body = keeps ? std::string(R"({"kv_transfer_params":)") + kParams + "}" : "decoded"});
  };
  set_prefill(serves_both);
  PdRouterOptions options{.poll_interval = std::chrono::hours(1)};
  options.prefill = options.decode = {prefill_[0].url(), prefill_[1].url()};
  router_ = *PdRouter::start(options);
  wait_until([&] { return states() == "ready ready ready ready"; });
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(complete().body, "decoded");
  const auto at_first = prefill_[0].requests(), at_second = prefill_[1].requests();
  ASSERT_EQ(at_first.size() + at_second.size(), 16U);
  EXPECT_EQ(at_first.size(), 8U) << "one leg of each request to each of them";
  EXPECT_EQ(total("local_computations"), 0);

  prefill_[1].die();
  EXPECT_EQ(complete().body, "decoded");
  EXPECT_EQ(complete().body, "decoded");
  EXPECT_EQ(prefill_[0].requests().back().body.find("kv_transfer_params"), std::string::npos);
  EXPECT_EQ(total("local_computations"), 2);
}

TEST_F(RouterTest, APrefillInstanceThatRefusesTheParamsIsReplaced) {
  set_prefill(always({.status = 400, .body = kForeignPeer}));
  EXPECT_EQ(complete().status, 200);
  EXPECT_EQ(of_instances("refused_params"), "1 1 0 0");
  EXPECT_EQ(total("local_computations"), 1);
}

TEST_F(RouterTest, ABadRequestOfTheDecodeSideIsTheClientsAnswer) {
  set_decode(always({.status = 400, .body = R"({"error":{"message":"no","param":"top_p"}})"}));
  EXPECT_EQ(complete().status, 400);
  EXPECT_EQ(decode_legs(), 1U);
}

TEST_F(RouterTest, NoPromptIsComputedForADecodeSideThatIsNotReady) {
  for (FakeBackend& backend : decode_) {
    backend.set_answer(refusal("asleep"));
    backend.set_health({.status = 503, .body = R"({"state":"asleep","reason":"at level 1"})"});
  }
  EXPECT_EQ(complete().status, 503);
  EXPECT_EQ(prefill_legs(), 1U) << "nobody had told the router";
  const HttpResponse response = complete();
  EXPECT_EQ(response.status, 503);
  EXPECT_NE(error_of(response, "message").find("asleep (at level 1)"), std::string::npos);
  EXPECT_EQ(prefill_legs(), 1U);
  EXPECT_EQ(decode_legs(), 2U);
  decode_[1].set_answer(always({.body = "awake"}));
  decode_[1].set_health({});
  EXPECT_EQ(complete().body, "awake") << "it was not asked again";
}

TEST_F(RouterTest, RequestsThatWaitForADecodeInstanceShareOneQuestion) {
  for (FakeBackend& backend : decode_) {
    backend.set_answer(refusal("asleep"));
    backend.set_health({.status = 503, .body = R"({"state":"asleep","reason":"at level 1"})"});
  }
  EXPECT_EQ(complete().status, 503);
  const std::size_t before = decode_[0].health_calls();
  decode_[0].hold_health(true);
  std::vector<std::future<HttpResponse>> answers;
  for (int i = 0; i < 16; ++i)
    answers.push_back(std::async(std::launch::async, [&] { return complete(); }));
  wait_until([&] { return total("requests") == 17; });
  decode_[0].hold_health(false);
  for (auto& answer : answers)
    EXPECT_EQ(answer.get().status, 503);
  EXPECT_LT(decode_[0].health_calls() - before, 8U) << "few: some may have come late";
}

TEST_F(RouterTest, ADecodeInstanceThatRefusesIsReplacedByTheNext) {
  decode_[0].set_answer(refusal("asleep"));
  EXPECT_EQ(complete().status, 200);
  ASSERT_EQ(decode_legs(), 2U);
  EXPECT_EQ(decode_[0].requests()[0].body, decode_[1].requests()[0].body);
  EXPECT_EQ(states(), "ready ready asleep ready");
  EXPECT_EQ(total("retries"), 1);
}

TEST_F(RouterTest, ADecodeInstanceThatDiesBeforeItsAnswerIsReplacedByTheNext) {
  decode_[0].set_answer([&](const HttpRequest&, const Writer& writer) { hold(writer); });
  auto answer = std::async(std::launch::async, [&] { return complete(); });
  decode_[0].wait_for_request();
  decode_[0].die();
  EXPECT_EQ(answer.get().body, R"({"id":"d"})");
  EXPECT_EQ(states(), "ready ready gone ready");
}

TEST_F(RouterTest, AStreamThatDiesBeforeItsFirstEventIsReplacedByTheNext) {
  decode_[0].set_answer([](const HttpRequest&, const Writer& writer) {
    writer->start_stream({.content_type = "text/event-stream"});
    writer->write("data: {");
  });
  EXPECT_EQ(complete().body, R"({"id":"d"})");
}

TEST_F(RouterTest, WhenNoDecodeInstanceServesTheErrorNamesEach) {
  decode_[0].set_answer(refusal("fast asleep"));
  decode_[1].die();
  const HttpResponse response = complete();
  EXPECT_EQ(response.status, 503);
  EXPECT_TRUE(has_header(response, "retry-after"));
  const std::string message = error_of(response, "message");
  EXPECT_NE(message.find(decode_[0].url() + " is asleep (fast asleep)"), std::string::npos)
      << message;
  EXPECT_NE(message.find(decode_[1].url() + " is gone (cannot reach"), std::string::npos)
      << message;
  EXPECT_EQ(call("GET", "/health/ready").status, 503);
  decode_[0].set_answer(always({.body = "awake"}));
  EXPECT_EQ(complete().body, "awake") << "the last resort was not tried";
}

TEST_F(RouterTest, AStreamThatBreaksOffEndsWithAnErrorEvent) {
  std::promise<Writer> held;
  set_decode([&](const HttpRequest&, const Writer& writer) {
    writer->start_stream({.content_type = "text/event-stream"});
    writer->write("data: 1\n\ndata: {\"half");
    held.set_value(writer);
  });
  std::string received;
  const auto response = connect().stream("POST", "/v1/completions", R"({"prompt":"x"})", {},
                                         [&](std::string_view part) {
                                           if (received.empty())
                                             held.get_future().get();
                                           received += part;
                                           return true;
                                         });
  ASSERT_TRUE(response) << response.error().message;
  EXPECT_EQ(received,
            "data: 1\n\n"
            R"(data: {"error":{"message":"the decode instance broke off its answer",)"
            R"("type":"BadGatewayError","param":null,"code":502}})"
            "\n\ndata: [DONE]\n\n");
  EXPECT_EQ(decode_legs(), 1U);
  EXPECT_EQ(states(), "ready ready gone ready");
}

TEST_F(RouterTest, AStreamThatEndsEarlyEndsWithAnErrorEvent) {
  set_decode([](const HttpRequest&, const Writer& writer) {
    writer->start_stream({.content_type = "text/event-stream"});
    writer->write("data: 1\n\n");
    writer->finish();
  });
  const std::string body = complete().body;
  EXPECT_TRUE(body.starts_with("data: 1\n\ndata: {\"error\":")) << body;
  EXPECT_TRUE(body.ends_with("}\n\ndata: [DONE]\n\n")) << body;
}

TEST_F(RouterTest, AnAnswerThatBreaksOffIsA502) {
  set_decode([](const HttpRequest&, const Writer& writer) {
    writer->start_stream({});
    writer->write(R"({"id":"ha)");
  });
  const HttpResponse response = complete();
  EXPECT_EQ(response.status, 502);
  EXPECT_EQ(error_of(response, "type"), "BadGatewayError");
}

TEST_F(RouterTest, OtherErrorsOfTheDecodeSideAreTheClientsAnswer) {
  set_decode(always({.status = 502, .body = "KV lost"}));
  const HttpResponse response = complete();
  EXPECT_EQ(response.status, 502);
  EXPECT_EQ(response.body, "KV lost");
  EXPECT_EQ(decode_legs(), 1U);
}

TEST_F(RouterTest, AClientThatLeavesDuringDecodeEndsTheLegAtOnce) {
  std::promise<void> gone;
  set_decode([&](const HttpRequest&, const Writer& writer) {
    writer->on_disconnect([&] { gone.set_value(); });
    writer->start_stream({.content_type = "text/event-stream"});
    writer->write("data: 1\n\n");
    hold(writer);
  });
  connect().stream("POST", "/v1/completions", R"({"prompt":"x"})", {},
                   [](std::string_view) { return false; });
  ASSERT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
  wait_until([&] { return of_instances("in_flight") == "0 0 0 0"; });
  EXPECT_EQ(states(), "ready ready ready ready")
      << "the client's leaving was blamed on an instance";
}

TEST_F(RouterTest, AClientThatLeavesDuringPrefillGetsNoDecodeLeg) {
  std::promise<void> gone;
  set_prefill([&](const HttpRequest&, const Writer& writer) {
    writer->on_disconnect([&] { gone.set_value(); });
    hold(writer);
  });
  {
    HttpClient client = connect();
    ASSERT_TRUE(client.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"));
    prefill_[0].wait_for_request();
  }
  ASSERT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
  wait_until([&] { return of_instances("in_flight") == "0 0 0 0"; });
  EXPECT_EQ(prefill_legs(), 1U);
  EXPECT_EQ(decode_legs(), 0U);
}

}  // namespace
}  // namespace dormouse::router
