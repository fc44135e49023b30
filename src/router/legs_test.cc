#include "router/legs.h"

#include <gtest/gtest.h>

#include "router/event_relay.h"

namespace dormouse::router {
namespace {

constexpr const char* kAskToKeep =
    R"("kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,)"
    R"("remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null})";

Json json(std::string_view text) {
  return *parse_json(text);
}

TEST(Legs, ThePrefillLegAsksForOneTokenAndItsKv) {
  EXPECT_EQ(prefill_body(json(R"({"prompt":"x","max_tokens":9,"stream":true,"temperature":0.5})")),
            std::string(R"({"prompt":"x","temperature":0.5,"stream":false,"n":1,"max_tokens":1,)") +
                kAskToKeep + "}");
}

TEST(Legs, ThePrefillLegLeavesOutWhatConcernsTheWholeAnswer) {
  EXPECT_EQ(
      prefill_body(json(R"({"messages":[],"stream_options":{"include_usage":true},"min_tokens":5,)"
                        R"("n":4,"best_of":4,"echo":true,"logprobs":2,"seed":7,)"
                        R"("max_completion_tokens":9,"kv_transfer_params":null})")),
      std::string(R"({"messages":[],"logprobs":2,"seed":7,"stream":false,"n":1,"max_tokens":1,)"
                  R"("max_completion_tokens":1,)") +
          kAskToKeep + "}");
}

TEST(Legs, TheDecodeLegIsTheClientsRequestWithTheParams) {
  const Json params = json(R"({"remote_port":9,"x":[[1],[2.5,null]],"y":{"z":"\u00e9"}})");
  EXPECT_EQ(decode_body(json(R"({"kv_transfer_params":null,"prompt":"x","n":2})"), params),
            R"({"prompt":"x","n":2,"kv_transfer_params":)" + params.dump() + "}");
}

TEST(Legs, OnlyAnObjectCountsAsParams) {
  EXPECT_EQ(kv_transfer_params_of(R"({"kv_transfer_params":{"a":1}})").dump(), R"({"a":1})");
  for (const char* answer : {R"({"kv_transfer_params":null})", R"({"kv_transfer_params":[1]})",
                             R"({"kv_transfer_params":"x"})", "{}", "not JSON", ""})
    EXPECT_TRUE(kv_transfer_params_of(answer).is_null()) << answer;
}

TEST(Legs, SeveralPromptsAreToldFromOneOfTokens) {
  EXPECT_TRUE(has_several_prompts(json(R"({"prompt":["a","b"]})")));
  EXPECT_TRUE(has_several_prompts(json(R"({"prompt":[[1,2],[3]]})")));
  for (const char* one : {R"({"prompt":"a"})", R"({"prompt":["a"]})", R"({"prompt":[1,2,3]})",
                          R"({"prompt":[]})", R"({"messages":[{},{}]})"})
    EXPECT_FALSE(has_several_prompts(json(one))) << one;
}

TEST(Legs, AnIdIsNeverTheClientsAlone) {
  const std::string id = make_request_id("a.b-c_9");
  EXPECT_TRUE(id.starts_with("a.b-c_9-"));
  EXPECT_EQ(id.size(), 8U + 16);
  EXPECT_NE(id, make_request_id("a.b-c_9"));
}

TEST(Legs, AnIdThatIsNotPlainIsReplaced) {
  for (const std::string& id : {std::string(), std::string("10.0.0.1:80"), std::string("a b"),
                                std::string("../x"), std::string(129, 'x')}) {
    EXPECT_EQ(make_request_id(id).size(), 32U) << id;
    EXPECT_EQ(make_request_id(id).find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}

TEST(EventRelay, PassesWholeEventsOn) {
  EventRelay relay;
  EXPECT_EQ(relay.take("data: {\"a\""), "");
  EXPECT_EQ(relay.take(":1}\n\ndata: 2\n\nda"), "data: {\"a\":1}\n\ndata: 2\n\n");
  EXPECT_EQ(relay.take("ta: 3\r\n\r"), "");
  EXPECT_EQ(relay.take("\n"), "data: 3\r\n\r\n");
}

TEST(EventRelay, KnowsTheEndFromTextThatSpeaksOfIt) {
  EventRelay relay;
  relay.take("data: {\"text\":\"data: [DONE]\"}\n\ndata: [DONE]");
  EXPECT_FALSE(relay.done());
  relay.take("\n\n");
  EXPECT_TRUE(relay.done());
}

}  // namespace
}  // namespace dormouse::router
