// A server in front of a FakeEngine, and a client for it.
#pragma once

#include <gtest/gtest.h>

#include "base/json.h"
#include "server/api_server.h"
#include "server/fake_engine.h"
#include "server/http_client.h"

namespace dormouse::server {

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
    auto client = HttpClient::connect({.port = server_->port()}, std::chrono::milliseconds(20'000));
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

}  // namespace dormouse::server
