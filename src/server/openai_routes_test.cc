#include "server/openai_routes.h"

#include <gmock/gmock.h>

#include "server/fake_server.h"

namespace dormouse::server {
namespace {

using ::testing::HasSubstr;

class OpenAiTest : public ApiServerTest {
 protected:
  // The data of each event of a stream.
  std::vector<std::string> events(std::string_view target, std::string_view body) {
    const HttpResponse response = post(target, body);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.content_type, "text/event-stream; charset=utf-8");
    std::vector<std::string> data;
    std::size_t at = 0;
    while (at < response.body.size()) {
      const std::size_t end = response.body.find("\n\n", at);
      EXPECT_EQ(response.body.substr(at, 6), "data: ");
      data.push_back(response.body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return data;
  }

  static Json json(const std::string& text) {
    auto parsed = parse_json(text);
    EXPECT_TRUE(parsed) << text;
    return parsed ? std::move(*parsed) : Json();
  }
  // choices[0].NAME
  static std::string choice(const std::string& body, std::string_view name, std::size_t index = 0) {
    const Json parsed = json(body);
    const Json* choices = parsed.find("choices");
    if (choices == nullptr || choices->array()->size() <= index)
      return "(none)";
    const Json* value = (*choices->array())[index].find(name);
    return value == nullptr ? "(none)" : value->dump();
  }
};

TEST_F(OpenAiTest, CompletesAPrompt) {
  const HttpResponse response =
      call("POST", "/v1/completions", R"({"model":"tiny","prompt":"abcd","max_tokens":10})",
           {{"X-Request-Id", "r1"}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(header(response, "x-request-id"), "r1");
  EXPECT_EQ(member(response, "id"), "\"cmpl-r1\"");
  EXPECT_EQ(member(response, "object"), "\"text_completion\"");
  EXPECT_EQ(member(response, "model"), "\"tiny\"");
  EXPECT_EQ(
      member(response, "choices"),
      R"([{"index":0,"text":"Hello","logprobs":null,"finish_reason":"stop","stop_reason":null}])");
  EXPECT_EQ(member(response, "usage"),
            R"({"prompt_tokens":4,"total_tokens":9,"completion_tokens":5,)"
            R"("prompt_tokens_details":{"cached_tokens":2}})");
  ASSERT_EQ(engine_.requests().size(), 1U);
  EXPECT_EQ(engine_.requests()[0].prompt.size(), 4U);
  EXPECT_EQ(engine_.requests()[0].sampling.max_tokens, 10U);
}

TEST_F(OpenAiTest, HandsEveryFieldToTheEngine) {
  ASSERT_EQ(post("/v1/completions",
                 R"({"prompt":"x","max_tokens":9,"temperature":0.5,"top_p":0.9,"top_k":7,
                     "min_p":0.1,"seed":42,"presence_penalty":-1.5,"frequency_penalty":1.25,
                     "repetition_penalty":1.1,"min_tokens":3,"ignore_eos":true,
                     "stop_token_ids":[5,6],"logit_bias":{"7":-100,"8":2.5},"cache_salt":"s",
                     "priority":-4,"user":"u","logprobs":2})")
                .status,
            200);
  const Request request = engine_.requests().at(0);
  const SamplingParams& sampling = request.sampling;
  EXPECT_FLOAT_EQ(sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.9F);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_FLOAT_EQ(sampling.min_p, 0.1F);
  EXPECT_TRUE(sampling.seeded);
  EXPECT_EQ(sampling.seed, 42U);
  EXPECT_FLOAT_EQ(sampling.presence_penalty, -1.5F);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty, 1.25F);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(sampling.min_tokens, 3U);
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(sampling.logit_bias, (std::map<TokenId, float>{{7, -100.F}, {8, 2.5F}}));
  EXPECT_EQ(sampling.logprobs, 2);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.priority, -4);
}

TEST_F(OpenAiTest, NullFieldsAreAbsentAndUnknownOnesIgnored) {
  ASSERT_EQ(
      post("/v1/completions",
           R"({"prompt":"x","max_tokens":null,"temperature":null,"top_k":-1,"seed":-1,"n":null,
                     "stop":null,"logprobs":null,"tools":null,"best_of":1,"kv_transfer_params":null,
                     "made_up":7})")
          .status,
      200);
  const SamplingParams sampling = engine_.requests().at(0).sampling;
  EXPECT_EQ(sampling.max_tokens, 16U);
  EXPECT_FLOAT_EQ(sampling.temperature, 1.0F);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_FALSE(sampling.seeded);
}

TEST_F(OpenAiTest, TakesPromptsInAllFourShapes) {
  const HttpResponse lists = post("/v1/completions", R"({"prompt":[[100,101,102],[103]]})");
  EXPECT_EQ(choice(lists.body, "text", 1), "\"Hello\"");
  EXPECT_EQ(member(lists, "usage").substr(0, 19), R"({"prompt_tokens":4,)");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":[100,101]})").status, 200);
  EXPECT_EQ(choice(post("/v1/completions", R"({"prompt":["a","b"]})").body, "index", 1), "1");
  const auto requests = engine_.requests();
  ASSERT_EQ(requests.size(), 5U);
  EXPECT_EQ(requests[0].prompt, (std::vector<TokenId>{100, 101, 102}));
  EXPECT_EQ(requests[2].prompt, (std::vector<TokenId>{100, 101}));
  EXPECT_EQ(requests[4].prompt, (std::vector<TokenId>{byte_token('b')}));
}

TEST_F(OpenAiTest, GivesEachOfNSequencesItsOwnSeed) {
  const HttpResponse response = post("/v1/completions", R"({"prompt":"ab","n":3,"seed":10})");
  EXPECT_EQ(choice(response.body, "index", 2), "2");
  EXPECT_EQ(member(response, "usage").substr(0, 19), R"({"prompt_tokens":2,)");
  const auto requests = engine_.requests();
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[2].sampling.seed, 12U);
}

TEST_F(OpenAiTest, StopStringsAreRemovedAndEndTheSequence) {
  engine_.set_reply("one two three");
  engine_.set_endless(true);
  const HttpResponse response =
      post("/v1/completions", R"({"prompt":"x","max_tokens":50,"stop":["zzz"," thr"]})");
  EXPECT_EQ(choice(response.body, "text"), "\"one two\"");
  EXPECT_EQ(choice(response.body, "finish_reason"), "\"stop\"");
  EXPECT_EQ(choice(response.body, "stop_reason"), "\" thr\"");
  EXPECT_EQ(engine_.aborted(), 1U);
  engine_.set_endless(false);
  EXPECT_EQ(choice(post("/v1/completions", R"({"prompt":"x","stop":" t",
                        "include_stop_str_in_output":true})")
                       .body,
                   "text"),
            "\"one t\"");
  EXPECT_EQ(
      choice(post("/v1/completions", R"({"prompt":"x","stop":"e","min_tokens":4})").body, "text"),
      "\"one two thr\"");
}

TEST_F(OpenAiTest, AStopTokensTextIsLeftOut) {
  engine_.set_reply("abc");
  const std::string body =
      R"({"prompt":"x","stop_token_ids":[)" + std::to_string(byte_token('c')) + "]";
  EXPECT_EQ(choice(post("/v1/completions", body + "}").body, "text"), "\"ab\"");
  EXPECT_EQ(
      choice(post("/v1/completions", body + R"(,"include_stop_str_in_output":true})").body, "text"),
      "\"abc\"");
}

TEST_F(OpenAiTest, ReportsLength) {
  const HttpResponse response = post("/v1/completions", R"({"prompt":"x","max_tokens":2})");
  EXPECT_EQ(choice(response.body, "text"), "\"He\"");
  EXPECT_EQ(choice(response.body, "finish_reason"), "\"length\"");
}

TEST_F(OpenAiTest, EchoesThePromptAndReturnsTokenIds) {
  const HttpResponse response = post(
      "/v1/completions", R"({"prompt":"ab","echo":true,"return_token_ids":true,"max_tokens":1})");
  EXPECT_EQ(choice(response.body, "text"), "\"abH\"");
  EXPECT_EQ(choice(response.body, "prompt_token_ids"), "[100,101]");
  EXPECT_EQ(choice(response.body, "token_ids"), "[75]");
}

TEST_F(OpenAiTest, AnEchoAloneAsksTheEngineForNothing) {
  const std::string body = R"({"prompt":["ab","c"],"echo":true,"max_tokens":0})";
  const HttpResponse response = post("/v1/completions", body);
  EXPECT_EQ(choice(response.body, "text", 0), "\"ab\"");
  EXPECT_EQ(choice(response.body, "text", 1), "\"c\"");
  EXPECT_EQ(choice(response.body, "finish_reason", 1), "\"length\"");
  EXPECT_THAT(member(response, "usage"), HasSubstr(R"("completion_tokens":0)"));
  const auto data =
      events("/v1/completions", R"({"prompt":"ab","echo":true,"max_tokens":0,"stream":true})");
  ASSERT_EQ(data.size(), 3U);
  EXPECT_EQ(choice(data[0], "text"), "\"ab\"");
  EXPECT_TRUE(engine_.requests().empty());
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"ab","max_tokens":0})").status, 400);
}

TEST_F(OpenAiTest, CompletionLogprobsAreInOpenAisShape) {
  const HttpResponse response =
      post("/v1/completions", R"({"prompt":"x","max_tokens":2,"logprobs":1})");
  EXPECT_EQ(choice(response.body, "logprobs"),
            R"({"text_offset":[0,1],"token_logprobs":[-0.5,-0.5],"tokens":["H","e"],)"
            R"("top_logprobs":[{"H":-0.5,"z":-0.5},{"e":-0.5,"z":-1.5}]})");
}

TEST_F(OpenAiTest, StreamsACompletion) {
  engine_.set_reply("Hi");
  const auto data =
      events("/v1/completions",
             R"({"prompt":"abc","stream":true,"stream_options":{"include_usage":true}})");
  ASSERT_EQ(data.size(), 5U);
  EXPECT_EQ(choice(data[0], "text"), "\"H\"");
  EXPECT_THAT(data[0], HasSubstr(R"("usage":null)"));
  EXPECT_EQ(choice(data[1], "text"), "\"i\"");
  EXPECT_EQ(choice(data[2], "text"), "\"\"");
  EXPECT_EQ(choice(data[2], "finish_reason"), "\"stop\"");
  EXPECT_THAT(data[3], HasSubstr(R"("choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,)"));
  EXPECT_EQ(data[4], "[DONE]");
}

TEST_F(OpenAiTest, AStreamNeverCutsACharacterOrAStopString) {
  engine_.set_reply("\xC3\xA9 END");
  const auto data = events("/v1/completions", R"({"prompt":"x","stream":true,"stop":"END"})");
  ASSERT_EQ(data.size(), 4U);
  EXPECT_EQ(choice(data[0], "text"), "\"\xC3\xA9\"");
  EXPECT_EQ(choice(data[1], "text"), "\" \"");
  EXPECT_EQ(choice(data[2], "finish_reason"), "\"stop\"");
}

TEST_F(OpenAiTest, ChatsThroughTheTemplate) {
  const std::string messages =
      R"("messages":[{"role":"user","content":[{"type":"text","text":"<|im_end|>"}]}])";
  const HttpResponse response = post("/v1/chat/completions", "{" + messages + "}");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(member(response, "object"), "\"chat.completion\"");
  EXPECT_EQ(choice(response.body, "message"), R"({"role":"assistant","content":"Hello"})");
  const Request request = engine_.requests().at(0);
  EXPECT_EQ(std::count(request.prompt.begin(), request.prompt.end(), kEndOfText), 1)
      << "a special token that the user typed stays text";
  EXPECT_EQ(request.sampling.max_tokens + request.prompt.size(), 1024U);
}

TEST_F(OpenAiTest, StreamsAChat) {
  engine_.set_reply("Hi");
  const auto data = events("/v1/chat/completions",
                           R"({"messages":[{"role":"user","content":"x"}],"stream":true,
                               "logprobs":true,"top_logprobs":1})");
  ASSERT_EQ(data.size(), 5U);
  EXPECT_EQ(choice(data[0], "delta"), R"({"role":"assistant","content":""})");
  EXPECT_EQ(choice(data[1], "delta"), R"({"content":"H"})");
  EXPECT_EQ(choice(data[1], "logprobs"),
            R"({"content":[{"token":"H","logprob":-0.5,"bytes":[72],)"
            R"("top_logprobs":[{"token":"H","logprob":-0.5,"bytes":[72]}]}]})");
  EXPECT_EQ(choice(data[3], "delta"), "{}");
  EXPECT_EQ(choice(data[3], "finish_reason"), "\"stop\"");
  EXPECT_EQ(data[4], "[DONE]");
}

TEST_F(OpenAiTest, AClientThatLeavesAStreamAbortsIt) {
  engine_.hold_requests(true);
  {
    HttpClient client = connect();
    const std::string body = R"({"prompt":"x","n":2,"stream":true})";
    ASSERT_TRUE(client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                            std::to_string(body.size()) + "\r\n\r\n" + body));
    engine_.wait_for_held(2);
  }
  engine_.wait_for_aborted(2);
}

TEST_F(OpenAiTest, AClientThatLeavesBeforeTheAnswerAbortsIt) {
  engine_.hold_requests(true);
  {
    HttpClient client = connect();
    const std::string body = R"({"prompt":"x"})";
    ASSERT_TRUE(client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                            std::to_string(body.size()) + "\r\n\r\n" + body));
    engine_.wait_for_held(1);
  }
  engine_.wait_for_aborted(1);
}

TEST_F(OpenAiTest, AbortRequestsEndsThoseNamedWithReasonAbort) {
  engine_.hold_requests(true);
  std::thread user([&] {
    const HttpResponse response =
        call("POST", "/v1/completions", R"({"prompt":"x"})", {{"X-Request-Id", "mine"}});
    EXPECT_EQ(choice(response.body, "finish_reason"), "\"abort\"");
  });
  engine_.wait_for_held(1);
  EXPECT_EQ(get("/load").body, R"({"server_load":1})");
  EXPECT_EQ(post("/abort_requests", R"({"request_ids":["cmpl-other"]})").body,
            R"({"status":"aborted","aborted":0})");
  EXPECT_EQ(post("/abort_requests", R"({"request_ids":["cmpl-mine"]})").body,
            R"({"status":"aborted","aborted":1})");
  user.join();
  EXPECT_EQ(get("/load").body, R"({"server_load":0})");
}

TEST_F(OpenAiTest, AbortRequestTakesTheClientsOwnIdOrAll) {
  engine_.hold_requests(true);
  for (const char* body : {R"({"rid":"mine"})", R"({"abort_all":true})"}) {
    std::thread user([&] {
      const HttpResponse response =
          call("POST", "/v1/completions", R"({"prompt":"x"})", {{"X-Request-Id", "mine"}});
      EXPECT_EQ(choice(response.body, "finish_reason"), "\"abort\"");
    });
    engine_.wait_for_held(1);
    EXPECT_EQ(post("/abort_request", R"({"rid":"other"})").body,
              R"({"status":"aborted","aborted":0})");
    EXPECT_EQ(post("/abort_request", body).body, R"({"status":"aborted","aborted":1})");
    user.join();
  }
}

TEST_F(OpenAiTest, AnAbortAmidTheSubmissionsReachesEverySequence) {
  engine_.hold_requests(true);
  engine_.set_on_submit([this] {
    engine_.set_on_submit({});
    EXPECT_EQ(post("/abort_requests", R"({"request_ids":["cmpl-early"]})").body,
              R"({"status":"aborted","aborted":0})");
  });
  const HttpResponse response =
      call("POST", "/v1/completions", R"({"prompt":"x","n":2})", {{"X-Request-Id", "early"}});
  EXPECT_EQ(choice(response.body, "finish_reason", 0), "\"abort\"");
  EXPECT_EQ(choice(response.body, "finish_reason", 1), "\"abort\"");
}

TEST_F(OpenAiTest, ARefusedSequenceRefusesTheWholeRequest) {
  engine_.fail_next_submit({ErrorCode::kUnavailable, "asleep; POST /wake_up"});
  const HttpResponse response = post("/v1/completions", R"({"prompt":"x","n":2,"stream":true})");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(header(response, "retry-after"), "1");
  EXPECT_EQ(response.body, R"({"error":{"message":"asleep; POST /wake_up",)"
                           R"("type":"ServiceUnavailableError","param":null,"code":503}})");
}

TEST_F(OpenAiTest, AnErrorMidwayIsNeverASuccess) {
  engine_.set_failure({ErrorCode::kInternal, "secret path /etc"});
  const HttpResponse whole = post("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.body, R"({"error":{"message":"Internal server error",)"
                        R"("type":"InternalServerError","param":null,"code":500}})");
  const auto data = events("/v1/completions", R"({"prompt":"x","stream":true})");
  ASSERT_GE(data.size(), 2U);
  EXPECT_EQ(data[data.size() - 2] + "", whole.body);
  EXPECT_EQ(data.back(), "[DONE]");
}

TEST_F(OpenAiTest, CountsTokensAndTurnsThemBack) {
  EXPECT_EQ(post("/tokenize", R"({"prompt":"ab","return_token_strs":true})").body,
            R"({"count":2,"max_model_len":1024,"tokens":[100,101],"token_strs":["a","b"]})");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[100,101]})").body, R"({"prompt":"ab"})");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[99999]})").status, 400);
  EXPECT_EQ(post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").status, 200);
}

// Each body, and the field that the error must name.
struct BadBody {
  std::string body;
  std::string param;
};

class BadCompletion : public OpenAiTest {
 protected:
  void expect_refused(std::string_view target, const BadBody& bad) {
    const HttpResponse response = post(target, bad.body);
    EXPECT_EQ(response.status, 400) << bad.body << " -> " << response.body;
    const Json parsed = json(response.body);
    const Json* error = parsed.find("error");
    ASSERT_NE(error, nullptr) << response.body;
    EXPECT_EQ(error->find("param")->dump(), '"' + bad.param + '"') << bad.body << response.body;
    EXPECT_EQ(error->find("type")->dump(), "\"BadRequestError\"");
    EXPECT_EQ(error->find("code")->dump(), "400");
  }
};

TEST_F(BadCompletion, EveryNumberIsBounded) {
  const std::string huge[] = {"2147483648", "9007199254740993", "1e308", "\"1\"", "-1", "true",
                              "[]"};
  const std::pair<const char*, const char*> also_fine[] = {{"top_k", "-1"},
                                                           {"seed", "-1"},
                                                           {"seed", "2147483648"},
                                                           {"seed", "9007199254740993"},
                                                           {"presence_penalty", "-1"},
                                                           {"frequency_penalty", "-1"},
                                                           {"priority", "-1"}};
  for (const char* field : {"max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
                            "min_p", "n", "seed", "presence_penalty", "frequency_penalty",
                            "repetition_penalty", "min_tokens", "logprobs", "priority"}) {
    for (const std::string& value : huge) {
      const bool fine =
          std::any_of(std::begin(also_fine), std::end(also_fine), [&](const auto& ok) {
            return ok.first == std::string_view(field) && ok.second == value;
          });
      if (!fine)
        expect_refused("/v1/completions",
                       {R"({"prompt":"x",")" + std::string(field) + "\":" + value + "}", field});
    }
  }
  EXPECT_TRUE(engine_.requests().empty());
}

TEST_F(BadCompletion, WhatCannotBeHonouredIsRefusedByName) {
  const BadBody bodies[] = {
      {R"({"prompt":"x","tools":[{}]})", "tools"},
      {R"({"prompt":"x","response_format":{"type":"json_object"}})", "response_format"},
      {R"({"prompt":"x","best_of":2})", "best_of"},
      {R"({"prompt":"x","suffix":"y"})", "suffix"},
      {R"({"prompt":"x","guided_json":{"a":1}})", "guided_json"},
      {R"({"prompt":"x","prompt_logprobs":1})", "prompt_logprobs"},
      {R"({"prompt":"x","echo":true,"logprobs":1})", "echo"},
      {R"({"prompt":"x","stream_options":{"include_usage":true}})", "stream_options"},
      {R"({"prompt":"x","stream":true,"stream_options":{"include_usage":1}})", "stream_options"},
      {R"({"prompt":"x","stop":[""]})", "stop"},
      {R"({"prompt":"x","stop":7})", "stop"},
      {R"({"prompt":"x","stop_token_ids":[99999]})", "stop_token_ids"},
      {R"({"prompt":"x","stop_token_ids":[-1]})", "stop_token_ids"},
      {R"({"prompt":"x","logit_bias":{"99999":1}})", "logit_bias"},
      {R"({"prompt":"x","logit_bias":{"1":101}})", "logit_bias"},
      {R"({"prompt":"x","logit_bias":{"a":1}})", "logit_bias"},
      {R"({"prompt":"x","min_tokens":5,"max_tokens":4})", "min_tokens"},
      {R"({"prompt":"x","stream":"yes"})", "stream"},
      {R"({"prompt":"x","model":7})", "model"},
      {R"({"prompt":""})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[[]]})", "prompt"},
      {R"({"prompt":[1,"a"]})", "prompt"},
      {R"({"prompt":[1.5]})", "prompt"},
      {R"({"prompt":[-1]})", "prompt"},
      {R"({"prompt":[99999]})", "prompt"},
      {R"({"prompt":{}})", "prompt"},
      {R"({})", "prompt"},
      {R"({"prompt":"x","prompt":"y"})", "body"},
      {R"({"prompt":"x","temperature":NaN})", "body"},
      {R"({"prompt":"x","temperature":1e999})", "body"},
      {"{\"prompt\":\"\xFF\"}", "body"},
      {R"({"prompt":)" + std::string(65, '[') + std::string(65, ']') + "}", "body"},
      {"[]", "body"},
      {"{", "body"},
      {"", "body"},
  };
  for (const BadBody& bad : bodies)
    expect_refused("/v1/completions", bad);
  EXPECT_TRUE(engine_.requests().empty());
}

TEST_F(BadCompletion, BadChatsAreRefused) {
  const BadBody bodies[] = {
      {R"({"messages":[]})", "messages"},
      {R"({})", "messages"},
      {R"({"messages":[{"content":"x"}]})", "messages"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "messages"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages"},
      {R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"x"}],"logprobs":2})", "logprobs"},
      {R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":21})",
       "top_logprobs"},
  };
  for (const BadBody& bad : bodies)
    expect_refused("/v1/chat/completions", bad);
}

TEST_F(BadCompletion, APromptBeyondTheContextIsRefusedWithTheNumbers) {
  const std::string prompt(1024, 'x');
  const HttpResponse response = post("/v1/completions", R"({"prompt":")" + prompt + "\"}");
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("1024 tokens"));
  EXPECT_THAT(post("/v1/completions", R"({"prompt":"xx","max_tokens":1023})").body,
              HasSubstr("you requested 1025 tokens (2 in the prompt, 1023 in the completion)"));
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"xx","max_tokens":1022})").status, 200);
}

TEST_F(BadCompletion, AnotherModelIsNotFound) {
  const HttpResponse response = post("/v1/completions", R"({"model":"gpt","prompt":"x"})");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.body, R"({"error":{"message":"The model `gpt` does not exist.",)"
                           R"("type":"NotFoundError","param":"model","code":404}})");
}

}  // namespace
}  // namespace dormouse::server
