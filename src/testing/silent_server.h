// A server that never takes a connection: the system does, the first ones, and nobody reads what
// they send.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "server/http_client.h"

namespace dormouse::testing {

class SilentServer {
 public:
  explicit SilentServer(int backlog) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, backlog), 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~SilentServer() { ::close(listener_); }
  server::Address address() const { return {.port = port_}; }

  // From now on nobody gets a connection any more.
  void fill() {
    constexpr std::chrono::milliseconds kTimeout{100};
    for (auto one = server::HttpClient::connect(address(), kTimeout); one;
         one = server::HttpClient::connect(address(), kTimeout))
      queued_.push_back(std::move(*one));
  }

 private:
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::vector<server::HttpClient> queued_;
};

}  // namespace dormouse::testing
