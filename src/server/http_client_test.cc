#include "server/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "testing/silent_server.h"

namespace dormouse::server {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Answers one connection with these bytes, then with `more` again and again until it is closed.
class RawServer {
 public:
  RawServer(std::string bytes, std::string more, milliseconds pause = milliseconds(0)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([=, this] {
      const int client = ::accept(listener_, nullptr, nullptr);
      ::send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      while (!more.empty() && ::send(client, more.data(), more.size(), MSG_NOSIGNAL) > 0) {
        sent_ += more.size();
        std::this_thread::sleep_for(pause);  // allowed: a server that trickles
      }
      ::close(client);
    });
  }
  ~RawServer() {
    thread_.join();
    ::close(listener_);
  }

  Result<HttpClient> connect() {
    auto client = HttpClient::connect({.port = port_}, milliseconds(20'000));
    EXPECT_TRUE(client);
    return client;
  }
  Result<HttpResponse> call(milliseconds deadline, std::uint64_t max_body = 1 << 20) {
    auto client = connect();
    client->set_deadline(Clock::now() + deadline);
    client->set_max_body_bytes(max_body);
    return client->call("GET", "/");
  }
  std::size_t sent() const { return sent_; }

 private:
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<std::size_t> sent_ = 0;
  std::thread thread_;
};

ErrorCode refusal(const Result<HttpResponse>& response) {
  EXPECT_FALSE(response);
  return response ? ErrorCode::kInternal : response.error().code;
}

const std::string kOk = "HTTP/1.1 200 OK\r\n";

TEST(HttpClient, ReadsBodiesOfEveryKind) {
  EXPECT_EQ(RawServer(kOk + "Content-Length: 3\r\n\r\nabc", "").call(milliseconds(5'000))->body,
            "abc");
  EXPECT_EQ(RawServer(kOk + "\r\nabc", "").call(milliseconds(5'000))->body, "abc");
  EXPECT_EQ(RawServer(kOk + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", "")
                .call(milliseconds(5'000))
                ->body,
            "abc");
}

TEST(HttpClient, TakesNoEndlessHeadersAndNoEndlessBody) {
  EXPECT_EQ(refusal(RawServer(kOk, "A: b\r\n").call(milliseconds(20'000))), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(RawServer(kOk + "\r\n", "more").call(milliseconds(20'000))),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(refusal(RawServer(kOk + "Transfer-Encoding: chunked\r\n\r\n", "2\r\nab\r\n")
                        .call(milliseconds(20'000))),
            ErrorCode::kResourceExhausted);
  RawServer large(kOk + "Content-Length: 99999999999\r\n\r\n", std::string(4096, 'x'));
  EXPECT_EQ(refusal(large.call(milliseconds(20'000))), ErrorCode::kResourceExhausted);
  EXPECT_LT(large.sent(), 64U << 20) << "not read to its end";
}

TEST(HttpClient, ALengthThatIsNoneIsNoAnswer) {
  for (const std::string length : {"-1", "99999999999999999999", "x", ""})
    EXPECT_EQ(refusal(RawServer(kOk + "Content-Length: " + length + "\r\n\r\nabc", "")
                          .call(milliseconds(5'000))),
              ErrorCode::kDataLoss)
        << length;
}

TEST(HttpClient, TheDeadlineHoldsAgainstAServerThatTrickles) {
  for (const std::string& begin : {kOk, kOk + "Content-Length: 100000\r\n\r\n"}) {
    RawServer server(begin, "x", milliseconds(10));
    const auto before = Clock::now();
    EXPECT_EQ(refusal(server.call(milliseconds(200))), ErrorCode::kDeadlineExceeded);
    EXPECT_LT(Clock::now() - before, std::chrono::seconds(10));
  }
}

TEST(HttpClient, TheDeadlineHoldsAgainstAServerThatDoesNotRead) {
  const testing::SilentServer server(4);
  auto client = HttpClient::connect(server.address(), milliseconds(20'000));
  ASSERT_TRUE(client) << client.error().message;
  const auto before = Clock::now();
  client->set_deadline(before + milliseconds(200));
  EXPECT_EQ(refusal(client->call("POST", "/", std::string(32 << 20, 'x'))),
            ErrorCode::kDeadlineExceeded);
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(10));
}

TEST(HttpClient, ADeadlineThatIsLiftedBoundsNoMoreWaits) {
  RawServer server(kOk + "Content-Length: 2\r\n\r\n", "x", milliseconds(400));
  auto client = server.connect();
  client->set_deadline(Clock::now() + milliseconds(200));
  const auto lift = [&](const HttpResponse&) { client->set_deadline(std::nullopt); };
  std::string body;
  const auto response = client->stream("GET", "/", "", {}, lift, [&](std::string_view part) {
    body += part;
    return true;
  });
  EXPECT_TRUE(response) << response.error().message;
  EXPECT_EQ(body, "xx");
  client->close();
}

TEST(HttpClient, OpeningEndsAtTheDeadlineAndByAnInterrupt) {
  testing::SilentServer server(0);
  server.fill();
  const auto before = Clock::now();
  HttpClient late;
  late.set_deadline(before + milliseconds(50));
  EXPECT_FALSE(late.open(server.address(), milliseconds(20'000)));
  HttpClient interrupted;
  std::jthread other([&] {
    std::this_thread::sleep_for(milliseconds(50));  // allowed: either order ends it
    interrupted.interrupt();
  });
  EXPECT_FALSE(interrupted.open(server.address(), milliseconds(20'000)));
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(10));
}

}  // namespace
}  // namespace dormouse::server
