#include "kv_connector/pull/connection.h"

#include "kv_connector/pull/fake_owner.h"

namespace dormouse::pull {
namespace {

TEST(Connection, EndThatComesMeanwhileDoesNotCutOffTheWordThatTheMemoryIsGone) {
  const Folder folder;
  HostVmmDriver driver;
  const auto agent = make_ipc_agent(driver, 1);
  FakeOwner owner(folder.path + "/owner.sock");
  const auto connection = importing_from(owner, *agent);
  // More than fits into the socket: whoever wants to send waits for it.
  std::thread posting([&] {
    const Heartbeat long_one{{{std::string(1 << 20, 'x'), ""}}};
    EXPECT_TRUE(connection->post(long_one, Clock::now() + std::chrono::seconds(20)));
  });
  ASSERT_TRUE(eventually([&] { return owner.hears_something(); }));
  owner.say(encode_message(Revoke{1}));
  ASSERT_TRUE(eventually([&] { return !connection->holds_memory(); }));
  connection->end();
  EXPECT_EQ(type_of(owner.hear()), "heartbeat");
  EXPECT_EQ(type_of(owner.hear()), "revoked");
  posting.join();
}

}  // namespace
}  // namespace dormouse::pull
