#include "net/server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <set>
#include <thread>

#include "net/net_fixture.h"

namespace dormouse::net {
namespace {

const std::string kToken(64, 't');

struct ServerTest : ::testing::Test {
  Result<std::unique_ptr<Server>> start() {
    return Server::start({path, kToken, std::chrono::milliseconds(5)}, handler);
  }
  Channel connect() {
    auto channel = connect_with_token(path, kToken, soon());
    EXPECT_TRUE(channel);
    return std::move(*channel);
  }
  // A connection that has not said anything.
  Channel bare() { return std::move(*Channel::connect(path, soon())); }

  TemporaryFolder folder;
  std::string path = folder.path + "/a.sock";
  RecordingHandler handler;
};

TEST_F(ServerTest, AnswersEveryMessageInOrder) {
  std::unique_ptr<Server> server = *start();
  handler.on_message = [&](ConnectionId connection, Message& message) {
    EXPECT_TRUE(server->send(connection, {"re: " + message.bytes}));
  };
  Channel channel = connect();
  for (const std::string text : {"one", "", "three"})
    ASSERT_TRUE(channel.send({text}, soon()));
  for (const std::string text : {"one", "", "three"})
    EXPECT_EQ(channel.receive(soon())->bytes, "re: " + text);
  EXPECT_EQ(handler.next(), "opened");
}

TEST_F(ServerTest, SendsDescriptorsAndKeepsNone) {
  const std::size_t before = open_descriptors();
  {
    std::unique_ptr<Server> server = *start();
    handler.on_message = [&](ConnectionId connection, Message&) {
      Message answer{"here"};
      answer.descriptors.emplace_back(::memfd_create("test", MFD_CLOEXEC));
      EXPECT_TRUE(server->send(connection, std::move(answer)));
    };
    Channel channel = connect();
    ASSERT_TRUE(channel.send({"give"}, soon()));
    EXPECT_EQ(channel.receive(soon())->descriptors.size(), 1U);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ServerTest, AWrongTokenIsClosedBeforeAnythingReachesTheHandler) {
  const std::unique_ptr<Server> server = *start();
  const std::string wrong = kToken.substr(1) + "x";
  for (const std::string& token : {std::string(), wrong, kToken + "t", kToken.substr(1)}) {
    Channel channel = bare();
    (void)channel.send({token}, soon());
    (void)channel.send({"secret"}, soon());
    ASSERT_EQ(channel.receive(soon()).error().code, ErrorCode::kUnavailable) << token;
  }
  EXPECT_TRUE(handler.await_tick());
  EXPECT_EQ(handler.next(std::chrono::milliseconds(0)), "nothing");
}

TEST_F(ServerTest, AFrameBeyondTheLimitClosesTheConnectionAlone) {
  const std::unique_ptr<Server> server = *start();
  Channel good = connect();
  EXPECT_EQ(handler.next(), "opened");
  Channel bad = connect();
  EXPECT_EQ(handler.next(), "opened");
  ASSERT_EQ(::send(bad.fd(), "\x01\0\x40\0x", 5, MSG_NOSIGNAL), 5);
  EXPECT_EQ(handler.next(), "closed");
  EXPECT_EQ(bad.receive(soon()).error().code, ErrorCode::kUnavailable);
  ASSERT_TRUE(good.send({"still here"}, soon()));
  EXPECT_EQ(handler.next(), "still here");
}

TEST_F(ServerTest, AFrameCutShortReachesNobody) {
  const std::unique_ptr<Server> server = *start();
  {
    Channel channel = connect();
    ASSERT_TRUE(channel.send({"whole"}, soon()));
    ASSERT_EQ(::send(channel.fd(), "\x05\0\0\0abc", 7, MSG_NOSIGNAL), 7);
  }
  EXPECT_EQ(handler.next(), "opened");
  EXPECT_EQ(handler.next(), "whole");
  EXPECT_EQ(handler.next(), "closed");
}

TEST_F(ServerTest, AThousandConnectionsLeaveNoDescriptor) {
  const std::unique_ptr<Server> server = *start();
  std::set<ConnectionId> ids;
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 1000; ++i) {
    {
      Channel channel = connect();
      ASSERT_EQ(handler.next(), "opened");
    }
    ASSERT_EQ(handler.next(), "closed");
    ids.insert(handler.last_connection());
  }
  EXPECT_EQ(ids.size(), 1000U) << "an id was used again";
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ServerTest, TheDeathOfAPeerIsToldAtOnce) {
  const std::unique_ptr<Server> server = *start();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto channel = connect_with_token(path, kToken, soon());
    ::pause();
    ::_exit(0);
  }
  ASSERT_EQ(handler.next(), "opened");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(handler.next(std::chrono::seconds(1)), "closed");
  ::waitpid(child, nullptr, 0);
}

TEST_F(ServerTest, APeerThatDoesNotReadIsClosedAndCostsNobodyElse) {
  const std::unique_ptr<Server> server = *start();
  Channel slow = connect();
  ASSERT_EQ(handler.next(), "opened");
  const ConnectionId connection = handler.last_connection();
  int sent = 0;
  while (server->send(connection, {std::string(1 << 20, 'x')}))
    ASSERT_LT(++sent, 64) << "what is not read must be bounded";
  EXPECT_GE(sent, 16);
  EXPECT_EQ(handler.next(), "closed");
  EXPECT_FALSE(server->send(connection, {"x"}));
  Channel other = connect();
  EXPECT_EQ(handler.next(), "opened");
}

TEST_F(ServerTest, CloseEndsAConnectionAndTellsBothSides) {
  const std::unique_ptr<Server> server = *start();
  Channel channel = connect();
  ASSERT_EQ(handler.next(), "opened");
  server->close(handler.last_connection());
  EXPECT_EQ(handler.next(), "closed");
  EXPECT_EQ(channel.receive(soon()).error().code, ErrorCode::kUnavailable);
}

TEST_F(ServerTest, MoreConnectionsThanAllowedAreRefused) {
  const auto server = *Server::start({path, kToken, std::chrono::milliseconds(5), 1}, handler);
  const Channel first = connect();
  ASSERT_EQ(handler.next(), "opened");
  Channel second = bare();
  EXPECT_EQ(second.receive(soon()).error().code, ErrorCode::kUnavailable);
}

TEST_F(ServerTest, ItsEndClosesEveryConnectionAndRemovesTheFile) {
  std::unique_ptr<Server> server = *start();
  Channel channel = connect();
  ASSERT_EQ(handler.next(), "opened");
  server.reset();
  EXPECT_EQ(handler.next(), "closed");
  EXPECT_EQ(channel.receive(soon()).error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ServerTest, TheFileIsItsOwnersAlone) {
  const std::unique_ptr<Server> server = *start();
  struct stat found {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0600U);
}

TEST_F(ServerTest, AFileLeftOverIsReplaced) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto server = start();
    ::_exit(server ? 0 : 1);  // without a destructor, as after a crash
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(std::filesystem::exists(path));
  ASSERT_TRUE(start());
}

TEST_F(ServerTest, ALivingListenerIsNotReplaced) {
  const std::unique_ptr<Server> server = *start();
  RecordingHandler other;
  const auto second = Server::start({path, kToken}, other);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(second.error().message.find(path), std::string::npos);
  const Channel channel = connect();
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(ServerTest, AFileThatIsNoSocketIsLeftAlone) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
  EXPECT_EQ(start().error().code, ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
}

}  // namespace
}  // namespace dormouse::net
