#include "kv_connector/pull/transfer_params.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "kv_connector/pull/pull_fixture.h"

namespace dormouse::pull {
namespace {

constexpr ParamBounds kBounds{.block_size = 4, .max_blocks = 3};
const char* const kRequired[] = {"remote_engine_id",   "remote_request_id", "remote_host",
                                 "remote_port",        "remote_block_ids",  "remote_num_tokens",
                                 "remote_incarnation", "remote_generation", "lease_token"};

Json::Object good() {
  const RemoteReference blocks{"engine", "first", 3, {"7", "token"}, "127.0.0.1", 1, {5, 6}, 7};
  return *parse_json(reply_params(blocks, 1, 1e9))->object();
}

std::string with(const std::string& key, Json value) {
  Json::Object object = good();
  std::erase_if(object, [&](const auto& member) { return member.first == key; });
  object.emplace_back(key, std::move(value));
  return Json(std::move(object)).dump();
}

TEST(TransferParams, ReplyIsReadAsTheReferenceItWasMadeFrom) {
  const auto params = parse_transfer_params(Json(good()).dump(), kBounds);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_TRUE(params->do_remote_prefill);
  EXPECT_FALSE(params->do_remote_decode);
  const RemoteReference& remote = params->remote;
  EXPECT_EQ(remote.engine_id, "engine");
  EXPECT_EQ(remote.incarnation, "first");
  EXPECT_EQ(remote.generation, 3U);
  EXPECT_EQ(remote.name.lease, "7");
  EXPECT_EQ(remote.name.token, "token");
  EXPECT_EQ(remote.host, "127.0.0.1");
  EXPECT_EQ(remote.port, 1U);
  EXPECT_EQ(remote.blocks, (std::vector<BlockId>{5, 6}));
  EXPECT_EQ(remote.num_tokens, 7U);
}

TEST(TransferParams, WhatTheRouterSendsToThePrefillLegIsFine) {
  const auto params = parse_transfer_params(
      R"({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
          "remote_block_ids": null, "remote_host": null, "remote_port": null, "else": [1]})",
      kBounds);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_TRUE(params->do_remote_decode);
  EXPECT_TRUE(parse_transfer_params("", kBounds));
  EXPECT_TRUE(parse_transfer_params("{}", kBounds));
}

TEST(TransferParams, EachMissingKeyIsNamed) {
  for (const char* key : kRequired) {
    for (const Json& nothing : {Json(), Json("")}) {
      if (nothing.string() != nullptr && good().size() > 0 &&
          Json(good()).find(key)->string() == nullptr)
        continue;
      const auto params = parse_transfer_params(with(key, nothing), kBounds);
      ASSERT_FALSE(params) << key;
      EXPECT_EQ(params.error().code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(params.error().param, std::string("kv_transfer_params.") + key);
    }
  }
  const auto none = parse_transfer_params(R"({"do_remote_prefill": true})", kBounds);
  EXPECT_EQ(none.error().param, "kv_transfer_params.remote_engine_id");
}

TEST(TransferParams, EverySubsetOfTheKeysIsReadOrRefused) {
  for (unsigned chosen = 0; chosen < 1U << std::size(kRequired); ++chosen) {
    Json::Object object{{"do_remote_prefill", true}};
    for (std::size_t i = 0; i < std::size(kRequired); ++i) {
      if ((chosen >> i & 1) != 0)
        object.emplace_back(kRequired[i], *Json(good()).find(kRequired[i]));
    }
    const bool complete = chosen == (1U << std::size(kRequired)) - 1;
    EXPECT_EQ(parse_transfer_params(Json(object).dump(), kBounds).has_value(), complete);
  }
}

TEST(TransferParams, WrongTypesAndBoundsAreRefusedByName) {
  const Json huge(std::string(300, 'x'));
  const Json number(5);
  const Json text("5");
  const Json list(Json::Array{});
  const Json object(Json::Object{});
  const Json negative(-1);
  const Json fraction(1.5);
  const Json beyond(1e300);
  const auto group = [](Json::Array ids) { return Json(Json::Array{Json(std::move(ids))}); };
  const std::vector<std::pair<std::string, std::vector<Json>>> cases = {
      {"do_remote_prefill", {number, text, list, object}},
      {"do_remote_decode", {number, text, list, object, Json(true)}},
      {"remote_engine_id", {number, list, object, huge, Json(true)}},
      {"remote_request_id", {number, list, object, huge}},
      {"remote_host", {number, list, object, huge}},
      {"remote_incarnation", {number, list, object, huge}},
      {"lease_token", {number, list, object, huge}},
      {"transfer_mode", {number, list, Json("push"), huge}},
      {"remote_port", {text, list, negative, fraction, beyond, Json(0), Json(65536), Json(true)}},
      {"remote_num_tokens", {text, list, negative, fraction, beyond, Json(1U << 31)}},
      {"remote_generation", {text, list, negative, fraction, beyond}},
      {"tp_size", {text, list, negative, fraction, beyond, Json(0), Json(4096)}},
      {"remote_blocks_expiry_time", {text, list, object, Json(true)}},
      {"remote_block_ids",
       {number, text, object, list, Json(Json::Array{number}), Json(Json::Array{list, list}),
        group({negative}), group({fraction}), group({text}), group({Json(1ULL << 32)}),
        group({number, number, number, number})}},
  };
  for (const auto& [key, values] : cases) {
    for (const Json& value : values) {
      const auto params = parse_transfer_params(with(key, value), kBounds);
      ASSERT_FALSE(params) << key << " " << value.dump();
      EXPECT_EQ(params.error().code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(params.error().param, "kv_transfer_params." + key) << value.dump();
    }
  }
}

TEST(TransferParams, OnlyAnObjectIsTaken) {
  for (const char* text : {"null", "[]", "3", "\"x\"", "{", "{} x", "true"}) {
    const auto params = parse_transfer_params(text, kBounds);
    ASSERT_FALSE(params) << text;
    EXPECT_EQ(params.error().param, "kv_transfer_params");
  }
}

class CheckRequest : public ::testing::Test {
 protected:
  Status check(KvRole role, std::string peers, std::string params) {
    const EngineOptions options{.folder = folder.path, .peers = std::move(peers), .role = role};
    const auto scheduler = PullScheduler::create(context_of(options));
    EXPECT_TRUE(scheduler);
    Request request;
    request.kv_transfer_params = std::move(params);
    return (*scheduler)->check_request(request);
  }
  Folder folder;
};

TEST_F(CheckRequest, OnlyConfiguredPeersAreDialled) {
  const std::string params = Json(good()).dump();
  EXPECT_TRUE(check(KvRole::kBoth, R"(["127.0.0.1:1"])", params));
  for (const char* peers : {"[]", R"(["127.0.0.1:2"])", R"(["localhost:1"])"}) {
    const Status checked = check(KvRole::kBoth, peers, params);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(checked.error().message,
              "127.0.0.1:1 is not a configured peer; kv_connector_extra_config.peers lists those "
              "that may be dialled");
  }
}

TEST_F(CheckRequest, RoleSaysWhichLegsAreTaken) {
  const std::string decode = Json(good()).dump();
  const std::string prefill = R"({"do_remote_decode": true})";
  const std::string peers = R"(["127.0.0.1:1"])";
  EXPECT_FALSE(check(KvRole::kProducer, peers, decode));
  EXPECT_TRUE(check(KvRole::kProducer, peers, prefill));
  EXPECT_TRUE(check(KvRole::kConsumer, peers, decode));
  EXPECT_FALSE(check(KvRole::kConsumer, peers, prefill));
  EXPECT_TRUE(check(KvRole::kConsumer, peers, ""));
}

TEST_F(CheckRequest, MalformedParamsAreRefused) {
  EXPECT_EQ(check(KvRole::kBoth, "[]", "[]").error().param, "kv_transfer_params");
}

TEST(PullConfiguration, UnknownAndWrongKeysAreRefusedByName) {
  const auto param_of = [](const char* extra) {
    KvTransferConfig config;
    config.kv_connector_extra_config = extra;
    const auto read = read_pull_config(config);
    EXPECT_FALSE(read) << extra;
    return read ? "" : read.error().param;
  };
  const std::string prefix = "kv_connector_extra_config.";
  EXPECT_EQ(param_of(R"({"leases": 3})"), prefix + "leases");
  EXPECT_EQ(param_of(R"({"kv_lease_duration": "30"})"), prefix + "kv_lease_duration");
  EXPECT_EQ(param_of(R"({"kv_lease_duration": 0})"), prefix + "kv_lease_duration");
  EXPECT_EQ(param_of(R"({"pull_timeout": -1})"), prefix + "pull_timeout");
  EXPECT_EQ(param_of(R"({"num_threads": 0})"), prefix + "num_threads");
  EXPECT_EQ(param_of(R"({"peers": 5})"), prefix + "peers");
  EXPECT_EQ(param_of(R"({"ipc_dir": 5})"), prefix + "ipc_dir");
  EXPECT_EQ(param_of(R"({"peer_token": []})"), prefix + "peer_token");
  EXPECT_EQ(param_of("[]"), "kv_connector_extra_config");
}

TEST(PullConfiguration, DefaultsAreThoseOfTheDocument) {
  const auto config = read_pull_config({});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->lease_duration, std::chrono::seconds(30));
  EXPECT_EQ(config->heartbeat_interval(), std::chrono::seconds(5));
  EXPECT_EQ(config->lease_times().extension, std::chrono::seconds(20));
  EXPECT_EQ(config->pull_timeout, std::chrono::seconds(10));
}

}  // namespace
}  // namespace dormouse::pull
