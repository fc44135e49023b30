#include "net/channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <thread>

#include "net/net_fixture.h"

namespace dormouse::net {
namespace {

struct ChannelTest : ::testing::Test {
  ChannelTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    a = std::make_unique<Channel>(UniqueFd(ends[0]));
    b = std::make_unique<Channel>(UniqueFd(ends[1]));
  }
  std::unique_ptr<Channel> a, b;
};

UniqueFd file_with(char content) {
  UniqueFd file(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.get(), &content, 1), 1);
  return file;
}

char content_of(const UniqueFd& file) {
  char content = 0;
  EXPECT_EQ(::pread(file.get(), &content, 1, 0), 1);
  return content;
}

TEST_F(ChannelTest, MessagesOfEverySizeArriveWholeAndInOrder) {
  std::thread sender([&] {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{65536},
                                   std::size_t{1'000'001}, kMaxFrameBytes})
      EXPECT_TRUE(a->send({std::string(size, static_cast<char>('a' + size % 7))}, soon()));
  });
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{65536}, std::size_t{1'000'001}, kMaxFrameBytes})
    EXPECT_TRUE(b->receive(soon())->bytes == std::string(size, static_cast<char>('a' + size % 7)));
  sender.join();
}

TEST_F(ChannelTest, DescriptorsStayWithTheirMessage) {
  for (char name : {'x', 'y'}) {
    Message message{std::string(1, name)};
    message.descriptors.push_back(file_with(name));
    ASSERT_TRUE(a->send(std::move(message), soon()));
    ASSERT_TRUE(a->send({"without"}, soon()));
  }
  for (char name : {'x', 'y'}) {
    const auto message = b->receive(soon());
    ASSERT_EQ(message->bytes, std::string(1, name));
    ASSERT_EQ(message->descriptors.size(), 1U);
    EXPECT_EQ(content_of(message->descriptors[0]), name);
    EXPECT_NE(::fcntl(message->descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_TRUE(b->receive(soon())->descriptors.empty());
  }
}

TEST_F(ChannelTest, MoreDescriptorsThanTheKernelTakesAtOnceArriveInOrder) {
  constexpr std::size_t kMany = 620;
  Message message{""};
  for (std::size_t i = 0; i < kMany; ++i)
    message.descriptors.push_back(file_with(static_cast<char>(i % 128)));
  std::thread sender([&] { EXPECT_TRUE(a->send(std::move(message), soon())); });
  const auto received = b->receive(soon());
  sender.join();
  ASSERT_TRUE(received);
  ASSERT_EQ(received->descriptors.size(), kMany);
  for (std::size_t i = 0; i < kMany; ++i)
    ASSERT_EQ(content_of(received->descriptors[i]), static_cast<char>(i % 128)) << i;
}

TEST_F(ChannelTest, AReadOnlyDescriptorStaysReadOnly) {
  const UniqueFd file = file_with('x');
  Message message{"x"};
  message.descriptors.emplace_back(
      ::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY));
  ASSERT_TRUE(a->send(std::move(message), soon()));
  const auto received = b->receive(soon());
  EXPECT_EQ(::write(received->descriptors.at(0).get(), "y", 1), -1);
}

TEST_F(ChannelTest, AMessageBeyondTheLimitsIsNotSent) {
  EXPECT_EQ(a->send({std::string(kMaxFrameBytes + 1, 'x')}, soon()).error().code,
            ErrorCode::kInvalidArgument);
  ASSERT_TRUE(a->send({"next"}, soon()));
  EXPECT_EQ(b->receive(soon())->bytes, "next");
}

TEST_F(ChannelTest, AFrameBeyondTheLimitIsDataLoss) {
  ASSERT_EQ(::send(a->fd(), "\xff\xff\xff\xff", 4, 0), 4);
  EXPECT_EQ(b->receive(soon()).error().code, ErrorCode::kDataLoss);
}

TEST_F(ChannelTest, AFrameCutShortIsAClosedConnection) {
  ASSERT_EQ(::send(a->fd(), "\x05\0\0\0abc", 7, 0), 7);
  a.reset();
  EXPECT_EQ(b->receive(soon()).error().code, ErrorCode::kUnavailable);
}

TEST_F(ChannelTest, AReceiveThatWasTooEarlyGoesOnLater) {
  ASSERT_EQ(::send(a->fd(), "\x05\0\0\0abc", 7, 0), 7);
  EXPECT_EQ(b->receive(soon(std::chrono::milliseconds(5))).error().code,
            ErrorCode::kDeadlineExceeded);
  ASSERT_EQ(::send(a->fd(), "de", 2, 0), 2);
  EXPECT_EQ(b->receive(soon())->bytes, "abcde");
}

TEST_F(ChannelTest, ASendThatNobodyReadsEndsWithTheDeadlineAndTheChannel) {
  Status sent;
  while (sent)
    sent = a->send({std::string(1 << 20, 'x')}, soon(std::chrono::milliseconds(5)));
  EXPECT_EQ(sent.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(a->send({"x"}, soon()).error().code, ErrorCode::kUnavailable);
}

TEST_F(ChannelTest, ShutDownEndsABlockedReceive) {
  std::thread receiver(
      [&] { EXPECT_EQ(b->receive(soon()).error().code, ErrorCode::kUnavailable); });
  b->shut_down();
  receiver.join();
  EXPECT_EQ(b->receive(soon()).error().code, ErrorCode::kUnavailable);
}

TEST(ChannelConnect, SaysWhereNobodyListens) {
  const TemporaryFolder folder;
  const auto channel = Channel::connect(folder.path + "/nobody", soon());
  EXPECT_EQ(channel.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(channel.error().message.find("nobody"), std::string::npos);
  EXPECT_EQ(Channel::connect(std::string(200, 'x'), soon()).error().code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace dormouse::net
