// An owner's rank that speaks by hand, and reads only what a test asks it to.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include "kv_connector/pull/connection.h"
#include "kv_connector/pull/pull_fixture.h"
#include "net/unix_address.h"

namespace dormouse::pull {

class FakeOwner {
 public:
  explicit FakeOwner(std::string path)
      : path_(std::move(path)), listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto address = *net::unix_address(path_);
    EXPECT_EQ(::bind(listener_.get(), address.get(), address.size()), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
  }
  const std::string& path() const { return path_; }

  void accept() {
    channel_.emplace(UniqueFd(::accept(listener_.get(), nullptr, nullptr)));
    EXPECT_TRUE(channel_->receive(deadline_)) << "the token";
  }
  std::string hear() {
    const auto message = channel_->receive(deadline_);
    return message ? message->bytes : "nothing: " + message.error().message;
  }
  bool hears_something() const {
    pollfd entry{channel_->fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  void say(std::string bytes, std::vector<UniqueFd> descriptors = {}) {
    EXPECT_TRUE(channel_->send({std::move(bytes), std::move(descriptors)}, deadline_));
  }
  // Answers an import with memory of one block.
  void give_memory(TransferAgent& agent) {
    const auto asked = decode_fields<MessageHead>(hear(), "message");
    ASSERT_TRUE(asked);
    const BlockHandle block = *driver_.create(driver_.granularity());
    const std::vector<std::byte> bytes(1);
    KvCaches caches{.bytes = {const_cast<std::byte*>(bytes.data()), 1}, .driver = &driver_};
    caches.device_blocks = {block.id};
    auto exported = (*agent.register_memory(caches))->export_memory();
    ASSERT_TRUE(exported);
    say(encode_message(Memory{"first", 1, std::move(exported->metadata)}, asked->id),
        std::move(exported->descriptors));
    EXPECT_TRUE(driver_.release(block));
  }

 private:
  const std::string path_;
  const Time deadline_ = Clock::now() + std::chrono::seconds(20);
  UniqueFd listener_;
  HostVmmDriver driver_;
  std::optional<net::Channel> channel_;
};

// A consumer's connection to it that maps its memory.
inline std::shared_ptr<Connection> importing_from(FakeOwner& owner, TransferAgent& agent) {
  const Time deadline = Clock::now() + std::chrono::seconds(20);
  auto connection = *Connection::open({owner.path(), "token", "me"}, agent, deadline);
  owner.accept();
  std::thread answering([&] { owner.give_memory(agent); });
  EXPECT_TRUE(connection->use({deadline}));
  answering.join();
  return connection;
}

}  // namespace dormouse::pull
