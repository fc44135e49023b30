#include "server/http_server.h"

#include <gtest/gtest.h>

#include <future>

#include "base/json.h"
#include "server/http_client.h"

namespace dormouse::server {
namespace {

using std::chrono::milliseconds;

// Answers with what it saw; some paths misbehave.
class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpServerOptions options;
    options.header_timeout = milliseconds(200);
    options.body_timeout = milliseconds(200);
    options.max_stream_backlog_bytes = 64 << 10;
    options.max_connections = 4;
    options.newcomer_grace = milliseconds(300);
    auto server = HttpServer::start(options, [this](HttpRequest request, auto writer) {
      handle(std::move(request), std::move(writer));
    });
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }

  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    if (request.path == "/drop")
      return;
    if (request.path == "/hold") {
      std::lock_guard lock(mutex_);
      return streams_.push_back(writer);
    }
    if (request.path == "/stream" || request.path == "/flood") {
      writer->on_disconnect([this] { disconnected_.set_value(); });
      writer->start_stream({.content_type = "text/plain"});
      writer->write("one");
      if (request.path == "/flood") {
        for (int i = 0; i < 10'000; ++i)
          writer->write(std::string(4096, 'x'));
      }
      std::lock_guard lock(mutex_);
      streams_.push_back(writer);
      if (request.query == "finish") {
        writer->write("two");
        writer->finish();
      }
      return;
    }
    writer->reply({.body = request.method + " " + request.path + "?" + request.query + " " +
                           std::to_string(request.body.size()),
                   .content_type = "text/plain"});
  }

  HttpClient connect() {
    auto client = HttpClient::connect({.port = server_->port()}, milliseconds(20'000));
    EXPECT_TRUE(client);
    return std::move(*client);
  }
  void wait_for_streams(std::size_t number) {
    while (true) {
      const std::lock_guard lock(mutex_);
      if (streams_.size() >= number)
        return;
    }
  }
  int status_of(std::string_view bytes) {
    HttpClient client = connect();
    EXPECT_TRUE(client.send(bytes));
    const auto response = client.receive();
    return response ? response->status : 0;
  }

  std::promise<void> disconnected_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<ResponseWriter>> streams_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepsAConnectionForManyRequests) {
  HttpClient client = connect();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(client.call("POST", "/a?b=c", "body")->body, "POST /a?b=c 4");
  ASSERT_TRUE(client.send("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(client.receive()->body, "GET /1? 0");
  EXPECT_EQ(client.receive()->body, "GET /2? 0");
}

TEST_F(HttpServerTest, IdleConnectionsKeepNobodyOut) {
  std::vector<HttpClient> idle;
  for (int i = 0; i < 10; ++i) {
    idle.push_back(connect());
    EXPECT_EQ(idle.back().call("GET", "/" + std::to_string(i))->status, 200);
  }
  EXPECT_EQ(idle.back().call("GET", "/again")->status, 200);
  EXPECT_FALSE(idle.front().call("GET", "/again")) << "the one idle for longest";
}

TEST_F(HttpServerTest, AsLongAsAllAreBusyANewcomerWaitsAndIsThenServed) {
  std::vector<HttpClient> busy;
  for (std::size_t i = 0; i < 4; ++i) {
    busy.push_back(connect());
    ASSERT_TRUE(busy.back().send("GET /hold HTTP/1.1\r\n\r\n"));
    wait_for_streams(i + 1);
  }
  HttpClient newcomer = connect();
  newcomer.set_deadline(std::chrono::steady_clock::now() + milliseconds(50));
  const auto early = newcomer.call("GET", "/waits");
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, ErrorCode::kDeadlineExceeded) << early.error().message;
  newcomer.set_deadline(std::nullopt);
  streams_[0]->reply({.body = "done"});
  const auto served = newcomer.receive();
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(served->status, 200);
  EXPECT_EQ(busy[0].receive()->body, "done") << "it went once it was idle";
  EXPECT_FALSE(busy[0].call("GET", "/again"));
}

TEST_F(HttpServerTest, ThoseThatNeverAskKeepNobodyOut) {
  std::vector<HttpClient> silent;
  for (int i = 0; i < 8; ++i)
    silent.push_back(connect());
  EXPECT_EQ(connect().call("GET", "/")->status, 200);
}

TEST_F(HttpServerTest, ReadsAChunkedBodyAndAnswersExpect) {
  HttpClient client = connect();
  ASSERT_TRUE(
      client.send("POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"));
  EXPECT_EQ(client.receive()->body, "POST /c? 5");
  ASSERT_TRUE(client.send("POST /e HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"));
  ASSERT_TRUE(client.send("ab"));
  EXPECT_EQ(client.receive()->body, "POST /e? 2");
}

TEST_F(HttpServerTest, RefusesWhatIsNotHttp) {
  EXPECT_EQ(status_of("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET http://evil/status HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET * HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "0\r\n\r\n"),
            400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
            400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of(std::string("GET /\0 HTTP/1.1\r\n\r\n", 19)), 400);
}

TEST_F(HttpServerTest, LimitsHeadersAndBodies) {
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nX: " + std::string(70'000, 'x') + "\r\n\r\n"), 431);
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 10'000; ++i)
    many += "X: yyyyyy\r\n";
  EXPECT_EQ(status_of(many + "\r\n"), 431);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nContent-Length: 16777217\r\n\r\n"), 413);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n"), 413);
}

TEST_F(HttpServerTest, SlowHeadersAndBodiesTimeOut) {
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n"), 408);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"), 408);
}

TEST_F(HttpServerTest, AnAnswerThatNobodyGivesIsA500) {
  EXPECT_EQ(connect().call("GET", "/drop")->status, 500);
}

TEST_F(HttpServerTest, StreamsInChunksAndToOldClientsUntilTheEnd) {
  HttpClient client = connect();
  EXPECT_EQ(client.call("GET", "/stream?finish")->body, "onetwo");
  EXPECT_EQ(client.call("GET", "/again")->status, 200);
  HttpClient old = connect();
  ASSERT_TRUE(old.send("GET /stream?finish HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(old.receive()->body, "onetwo");
}

TEST_F(HttpServerTest, SeesAClientLeaveAStream) {
  connect().stream("GET", "/stream", "", {}, [](std::string_view) { return false; });
  disconnected_.get_future().wait();
}

TEST_F(HttpServerTest, DisconnectsAStreamThatNobodyReads) {
  HttpClient client = connect();
  ASSERT_TRUE(client.send("GET /flood HTTP/1.1\r\n\r\n"));
  disconnected_.get_future().wait();
}

TEST_F(HttpServerTest, StopClosesWhatDoesNotEnd) {
  HttpClient client = connect();
  ASSERT_TRUE(client.send("GET /stream HTTP/1.1\r\n\r\n"));
  wait_for_streams(1);
  server_->stop(milliseconds(10));
  disconnected_.get_future().wait();
}

TEST(Json, KeepsNumbersAndOrder) {
  const char* text =
      R"({"b":1,"a":[-9223372036854775808,18446744073709551615,0.5,true,null,"x\n"]})";
  EXPECT_EQ(parse_json(text)->dump(), text);
  EXPECT_EQ(Json("a\xFFz\x01").dump(), "\"a\xEF\xBF\xBDz\\u0001\"");
}

TEST(Json, RefusesWhatCouldMeanTwoThingsOrTooMuch) {
  for (const char* text :
       {"", "{", "[1,]", R"({"a":1,"a":1})", "NaN", "1e999", "\"\xC0\x80\"", "1 2"})
    EXPECT_FALSE(parse_json(text)) << text;
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(parse_json(std::string(65, '[') + std::string(65, ']')));
  EXPECT_FALSE(parse_json(std::string(1'000'000, '[')));
  EXPECT_FALSE(parse_json("[1,1,1]", {.values = 3}));
}

TEST(Url, HasAHostAndAPort) {
  const auto read = [](std::string_view url) {
    const auto address = parse_url(url);
    return address ? address->host + " " + std::to_string(address->port) : "none";
  };
  EXPECT_EQ(read("http://127.0.0.1:81"), "127.0.0.1 81");
  EXPECT_EQ(read("a-b.example:82/"), "a-b.example 82");
  EXPECT_EQ(read("localhost"), "localhost 8000");
  EXPECT_EQ(read("http://[::1]:83"), "::1 83");
  for (const char* bad : {"", "--port", "19122", "https://a:1", "http://", "a:", "a:0", "a:70000",
                          "a:b", "a/b", "a b:1", ":1", "[::1", "http://a:1/v1"})
    EXPECT_EQ(read(bad), "none") << bad;
}

}  // namespace
}  // namespace dormouse::server
