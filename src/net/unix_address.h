// Addresses and peers of Unix sockets.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "dormouse/result.h"
#include "net/channel.h"

namespace dormouse::net {

class UnixAddress {
 public:
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t size() const { return sizeof address_; }

 private:
  friend Result<UnixAddress> unix_address(const std::string& path);
  sockaddr_un address_{};
};

// kInvalidArgument: the kernel takes no path of this length.
Result<UnixAddress> unix_address(const std::string& path);

Result<PeerCredentials> peer_of(int socket);

}  // namespace dormouse::net
