// What tests of sockets share: a folder of their own, and a handler that remembers.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "net/server.h"

namespace dormouse::net {

inline Deadline soon(std::chrono::milliseconds time = std::chrono::seconds(20)) {
  return std::chrono::steady_clock::now() + time;
}

inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

struct TemporaryFolder {
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "/net.XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path;
};

// Writes down what it is told, "opened", "closed" or the bytes of a message, and can answer.
class RecordingHandler : public Server::Handler {
 public:
  std::function<void(ConnectionId, Message&)> on_message = [](ConnectionId, Message&) {};

  void opened(ConnectionId connection, const PeerCredentials& peer) override {
    note("opened", connection);
    EXPECT_EQ(peer.uid, ::geteuid());
  }
  void received(ConnectionId connection, Message message) override {
    note(message.bytes, connection);
    on_message(connection, message);
  }
  void closed(ConnectionId connection) override { note("closed", connection); }
  void tick() override {
    const std::lock_guard lock(mutex_);
    ++ticks_;
    changed_.notify_all();
  }

  // The next event; "nothing" if none comes.
  std::string next(std::chrono::milliseconds patience = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, patience, [this] { return !events_.empty(); }))
      return "nothing";
    std::string event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  bool await_tick() {
    std::unique_lock lock(mutex_);
    const std::size_t from = ticks_;
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return ticks_ > from + 1; });
  }
  ConnectionId last_connection() {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  void note(std::string event, ConnectionId connection) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    last_ = connection;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> events_;
  std::size_t ticks_ = 0;
  ConnectionId last_ = 0;
};

}  // namespace dormouse::net
