// A router in front of two prefill and two decode instances, all fake. Unless a test says so, it
// asks for their health once.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "base/json.h"
#include "router/fake_backend.h"
#include "router/pd_router.h"
#include "server/http_client.h"

namespace dormouse::router {

using server::HttpClient;
using server::HttpRequest;
using server::HttpResponse;
using std::chrono::milliseconds;
using Writer = FakeBackend::Writer;

constexpr const char* kParams = R"({"remote_host":"h","remote_port":7,"t":0.25,"ids":[[1,2],[]]})";

inline FakeBackend::Answer always(HttpResponse response) {
  return [response](const HttpRequest&, const Writer& writer) { writer->reply(response); };
}
inline FakeBackend::Answer params_for_decode() {
  return always({.body = std::string(R"({"id":"p","kv_transfer_params":)") + kParams + "}"});
}
inline FakeBackend::Answer refusal(const char* message) {
  return always({.status = 503,
                 .body = std::string(R"({"error":{"message":")") + message + R"("}})",
                 .headers = {{"Retry-After", "1"}}});
}

class RouterTest : public ::testing::Test {
 protected:
  void SetUp() override { start({.poll_interval = std::chrono::hours(1)}); }
  void TearDown() override {
    for (FakeBackend* backend : {&prefill_[0], &prefill_[1], &decode_[0], &decode_[1]})
      backend->die();  // so that no leg keeps the router
    router_.reset();
  }

  // Returns once every instance is ready.
  void start(PdRouterOptions options) {
    router_.reset();
    options.prefill = {prefill_[0].url(), prefill_[1].url()};
    options.decode = {decode_[0].url(), decode_[1].url()};
    auto router = PdRouter::start(std::move(options));
    ASSERT_TRUE(router) << router.error().message;
    router_ = std::move(*router);
    wait_until([&] { return states() == "ready ready ready ready"; });
  }

  template <class Condition>
  static void wait_until(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  HttpClient connect() {
    auto client = HttpClient::connect({.port = router_->port()}, milliseconds(10'000));
    EXPECT_TRUE(client) << client.error().message;
    return std::move(*client);
  }
  HttpResponse call(std::string_view method, std::string_view target, std::string_view body = {},
                    const server::HeaderList& headers = {}) {
    auto response = connect().call(method, target, body, headers);
    EXPECT_TRUE(response) << response.error().message;
    return response ? *response : HttpResponse{.status = 0};
  }
  HttpResponse complete(std::string_view body = R"({"prompt":"x","max_tokens":5})") {
    return call("POST", "/v1/completions", body);
  }

  Json status() { return *parse_json(call("GET", "/status", {}, headers_).body); }
  std::string of_instances(const char* name) {
    std::string all;
    const Json all_status = status();
    for (const Json& instance : *all_status.find("instances")->array()) {
      const Json* value = instance.find(name);
      all += (all.empty() ? "" : " ") + (value->string() ? *value->string() : value->dump());
    }
    return all;
  }
  std::string states() { return of_instances("state"); }
  std::int64_t total(const char* name) {
    const Json all = status();
    return all.find("totals")->find(name)->as_integer();
  }
  std::size_t prefill_legs() {
    return prefill_[0].requests().size() + prefill_[1].requests().size();
  }
  std::size_t decode_legs() { return decode_[0].requests().size() + decode_[1].requests().size(); }
  HttpRequest only_decode_leg() {
    EXPECT_EQ(decode_legs(), 1U);
    const auto first = decode_[0].requests();
    return first.empty() ? decode_[1].wait_for_request() : first[0];
  }

  void set_prefill(const FakeBackend::Answer& answer) {
    for (FakeBackend& backend : prefill_)
      backend.set_answer(answer);
  }
  void set_decode(const FakeBackend::Answer& answer) {
    for (FakeBackend& backend : decode_)
      backend.set_answer(answer);
  }

  // Keeps the answer open until the test ends.
  void hold(const Writer& writer) {
    const std::lock_guard lock(mutex_);
    held_.push_back(writer);
  }

  server::HeaderList headers_;  // of the calls for the status
  std::mutex mutex_;
  std::vector<Writer> held_;
  FakeBackend prefill_[2]{FakeBackend(params_for_decode()), FakeBackend(params_for_decode())};
  FakeBackend decode_[2]{FakeBackend(always({.body = R"({"id":"d"})"})),
                         FakeBackend(always({.body = R"({"id":"d"})"}))};
  std::unique_ptr<PdRouter> router_;
};

}  // namespace dormouse::router
