#include "net/unix_address.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>

namespace dormouse::net {

Result<UnixAddress> unix_address(const std::string& path) {
  UnixAddress address;
  constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (path.empty() || path.size() > kLongest)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the path of a socket has 1 to {} bytes, this one {}: {}", kLongest,
                            path.size(), path));
  address.address_.sun_family = AF_UNIX;
  std::memcpy(address.address_.sun_path, path.data(), path.size());
  return address;
}

Result<PeerCredentials> peer_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return fail(ErrorCode::kUnavailable, fmt::format("SO_PEERCRED: {}", std::strerror(errno)));
  return PeerCredentials{peer.pid, peer.uid};
}

}  // namespace dormouse::net
