#include "net/channel.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "net/framing.h"
#include "net/unix_address.h"

namespace dormouse::net {
namespace {

std::chrono::microseconds left_until(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  return std::max(std::chrono::ceil<std::chrono::microseconds>(left), {});
}

Status wait_for(int socket, short events, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(left_until(deadline));
    pollfd entry{socket, events, 0};
    const int ready =
        ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1 << 30)));
    if (ready > 0)
      return {};
    if (ready < 0 && errno != EINTR)
      return fail(ErrorCode::kInternal, fmt::format("poll: {}", std::strerror(errno)));
    if (ready == 0 && left.count() == 0)
      return fail(ErrorCode::kDeadlineExceeded, "the peer did not answer in time");
  }
}

}  // namespace

struct Channel::Incoming {
  FrameReader reader;
};

Channel::Channel(UniqueFd socket)
    : socket_(std::move(socket)), incoming_(std::make_unique<Incoming>()) {}
Channel::Channel(Channel&&) noexcept = default;
Channel& Channel::operator=(Channel&&) noexcept = default;
Channel::~Channel() = default;

Result<Channel> Channel::connect(const std::string& path, Deadline deadline) {
  DM_TRY_ASSIGN(const UnixAddress address, unix_address(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // A connection waits while the listener has too many; this time is counted for it as well.
  const auto left = std::max<std::int64_t>(left_until(deadline).count(), 1);
  const timeval patience{left / 1'000'000, left % 1'000'000};
  if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience))
    return fail(ErrorCode::kInternal, fmt::format("socket: {}", std::strerror(errno)));
  while (::connect(socket.get(), address.get(), address.size()) != 0) {
    if (errno == EINTR)
      continue;
    if (errno == ENOENT || errno == ECONNREFUSED)
      return fail(ErrorCode::kUnavailable, "nobody listens there");
    const auto code = errno == EAGAIN ? ErrorCode::kDeadlineExceeded : ErrorCode::kUnavailable;
    return fail(code, std::strerror(errno));
  }
  return Channel(std::move(socket));
}

Status Channel::send(Message message, Deadline deadline) {
  FrameWriter writer;
  DM_TRY(writer.push(std::move(message)));
  for (;;) {
    const auto sent = writer.write(fd());
    if (sent && *sent)
      return {};
    Status waited;
    if (sent)
      waited = wait_for(fd(), POLLOUT, deadline);
    else
      waited = tl::unexpected(sent.error());
    if (!waited) {
      shut_down();  // part of a frame may be out: nothing can follow it
      return waited;
    }
  }
}

Result<Message> Channel::receive(Deadline deadline) {
  for (;;) {
    DM_TRY_ASSIGN(std::optional<Message> message, incoming_->reader.read(fd()));
    if (message)
      return *std::move(message);
    DM_TRY(wait_for(fd(), POLLIN, deadline));
  }
}

void Channel::shut_down() {
  (void)::shutdown(fd(), SHUT_RDWR);
}

}  // namespace dormouse::net
