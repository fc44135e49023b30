#include "kv_connector/pull/peer.h"

#include "kv_connector/pull/fake_owner.h"
#include "kv_connector/pull/meta_service.h"

namespace dormouse::pull {
namespace {

// Listens and accepts nobody, and as many wait already as may.
class FullBacklog {
 public:
  explicit FullBacklog(const std::string& path)
      : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto address = *net::unix_address(path);
    EXPECT_EQ(::bind(listener_.get(), address.get(), address.size()), 0);
    EXPECT_EQ(::listen(listener_.get(), 0), 0);
    for (int failed = 0; failed == 0;) {
      waiting_.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      failed = ::connect(waiting_.back().get(), address.get(), address.size());
    }
    waiting_.pop_back();
  }
  // Lets those who wait in; then there is room for others.
  void accept() {
    for (std::size_t i = 0; i < waiting_.size(); ++i)
      accepted_.emplace_back(::accept(listener_.get(), nullptr, nullptr));
  }

 private:
  UniqueFd listener_;
  std::vector<UniqueFd> waiting_, accepted_;
};

TEST(PeerTable, OwnerThatLetsNobodyInHoldsUpOnlyWhoeverDialsIt) {
  const Folder folder;
  const auto service = *MetaService::start(scheduler_socket(folder.path, 1), "token");
  service->publish(
      Meta{.ranks = {encode_message(RankMetadata{.num_blocks = 1, .shape = test_shape()})}});
  FullBacklog rank(rank_socket(folder.path, 1, 0));
  HostVmmDriver driver;
  const auto agent = make_ipc_agent(driver, 1);
  PeerTable peers({folder.path, "token", "me"}, *agent);
  const auto peer = *peers.get(1, Clock::now() + std::chrono::seconds(20));
  std::thread dialling([&] {
    const auto dialled = peer->connection(0, Clock::now() + std::chrono::seconds(3));
    ASSERT_FALSE(dialled);
    EXPECT_EQ(dialled.error().code, ErrorCode::kUnavailable) << "it was dropped meanwhile";
  });
  const auto quick = [&] {
    const Time began = Clock::now();
    peers.counters();
    return peers.known(1) == peer && Clock::now() - began < std::chrono::seconds(1);
  };
  EXPECT_TRUE(stays(quick, milliseconds(200)));
  EXPECT_TRUE(peers.drop_all({.deadline = Clock::now() + std::chrono::seconds(1)}));
  EXPECT_EQ(peers.known(1), nullptr);
  rank.accept();
  dialling.join();
}

TEST(PeerTable, EndOfASpentPeerHoldsUpNobody) {
  const Folder folder;
  const auto service = *MetaService::start(scheduler_socket(folder.path, 1), "token");
  const auto rank = [](std::uint32_t number) {
    return encode_message(RankMetadata{.rank = number, .num_blocks = 1, .shape = test_shape()});
  };
  service->publish(Meta{.world_size = 2, .ranks = {rank(0), rank(1)}});
  FakeOwner first(rank_socket(folder.path, 1, 0)), second(rank_socket(folder.path, 1, 1));
  HostVmmDriver driver;
  WatchedAgent::Hooks hooks;
  WatchedAgent agent(make_ipc_agent(driver, 1), hooks);
  PeerTable peers({folder.path, "token", "me"}, agent);
  const Time deadline = Clock::now() + std::chrono::seconds(20);
  {
    const auto peer = *peers.get(1, deadline);
    const auto mapping = *peer->connection(0, deadline);
    first.accept();
    std::thread answering([&] { first.give_memory(agent); });
    EXPECT_TRUE(mapping->use({deadline}));
    answering.join();
    (*peer->connection(1, deadline))->end();
    EXPECT_TRUE(peer->spent());
  }
  std::atomic<bool> dropping = false, go_on = false;
  hooks.before_drop = [&] {
    dropping = true;
    EXPECT_TRUE(eventually([&] { return go_on.load(); }, std::chrono::seconds(2)));
  };
  std::thread meeting([&] { EXPECT_TRUE(peers.get(1, deadline)); });
  ASSERT_TRUE(eventually([&] { return dropping.load(); }));
  EXPECT_NE(peers.known(1), nullptr);
  go_on = true;
  meeting.join();
}

}  // namespace
}  // namespace dormouse::pull
