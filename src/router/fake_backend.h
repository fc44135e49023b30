// An engine's HTTP face whose answers a test gives, and which remembers what it was asked.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "server/http_server.h"

namespace dormouse::router {

class FakeBackend {
 public:
  using Writer = std::shared_ptr<server::ResponseWriter>;
  using Answer = std::function<void(const server::HttpRequest&, Writer)>;

  explicit FakeBackend(Answer answer) : answer_(std::move(answer)) {
    auto server = server::HttpServer::start(
        {.max_stream_backlog_bytes = 128 << 20},
        [this](auto request, auto writer) { handle(std::move(request), std::move(writer)); });
    EXPECT_TRUE(server);
    server_ = std::move(*server);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  // Like a process that is killed: every connection breaks.
  void die() { server_->stop(std::chrono::milliseconds(0)); }

  void set_answer(Answer answer) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  void set_health(server::HttpResponse health) {
    const std::lock_guard lock(mutex_);
    health_ = std::move(health);
  }
  // Answers for its health once it is held no more.
  void hold_health(bool held) {
    const std::lock_guard lock(mutex_);
    health_held_ = held;
    if (!held)
      for (const Writer& writer : std::exchange(held_, {}))
        writer->reply(health_);
  }
  std::size_t health_calls() {
    const std::lock_guard lock(mutex_);
    return health_calls_;
  }
  void set_status(server::HttpResponse status) {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }

  std::vector<server::HttpRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  server::HttpRequest wait_for_request(std::size_t number = 0) {
    std::unique_lock lock(mutex_);
    const bool came = arrived_.wait_for(lock, std::chrono::seconds(20),
                                        [&] { return requests_.size() > number; });
    EXPECT_TRUE(came);
    return came ? requests_[number] : server::HttpRequest();
  }

 private:
  void handle(server::HttpRequest request, Writer writer) {
    std::unique_lock lock(mutex_);
    if (request.path == "/health/ready") {
      ++health_calls_;
      if (health_held_)
        return held_.push_back(std::move(writer));
      return writer->reply(health_);
    }
    if (request.path == "/status")
      return writer->reply(status_);
    requests_.push_back(request);
    const Answer answer = answer_;
    lock.unlock();
    arrived_.notify_all();
    answer(request, std::move(writer));
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  Answer answer_;
  server::HttpResponse health_ = {.body = R"({"ready":true,"state":"running","reason":""})"};
  server::HttpResponse status_ = {.body = R"({"kv_transfer":{"connector":"C"}})"};
  std::vector<server::HttpRequest> requests_;
  std::size_t health_calls_ = 0;
  bool health_held_ = false;
  std::vector<Writer> held_;
  std::unique_ptr<server::HttpServer> server_;
};

}  // namespace dormouse::router
