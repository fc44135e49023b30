#include "net/framing.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace dormouse::net {
namespace {

constexpr std::size_t kDescriptorsAtOnce = 250;  // the kernel takes 253
constexpr std::size_t kBytesAtOnce = 64 << 10;   // so that a length alone reserves no memory

using Control = std::array<char, CMSG_SPACE(sizeof(int) * 253)>;

bool blocked() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

tl::unexpected<Error> closed(const char* why) {
  return fail(ErrorCode::kUnavailable, fmt::format("the connection is closed: {}", why));
}

void take_descriptors(msghdr& header, std::vector<UniqueFd>& to) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
      continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      to.emplace_back(fd);
    }
  }
}

std::string header_of(std::size_t size) {
  std::string bytes;
  for (std::size_t i = 0; i < kHeaderBytes; ++i)
    bytes += static_cast<char>(size >> 8 * i & 0xff);
  return bytes;
}

std::size_t size_in(const std::string& header) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < kHeaderBytes; ++i)
    size |= static_cast<std::size_t>(static_cast<unsigned char>(header[i])) << 8 * i;
  return size;
}

}  // namespace

Result<std::optional<Message>> FrameReader::read(int socket, std::size_t max_bytes,
                                                 std::size_t max_descriptors) {
  DM_TRY_ASSIGN(const bool begun, fill(socket, header_, kHeaderBytes, max_descriptors));
  if (!begun)
    return std::nullopt;
  const std::size_t size = size_in(header_);
  if (size > max_bytes)
    return fail(ErrorCode::kDataLoss,
                fmt::format("a frame of {} bytes is beyond the limit of {}", size, max_bytes));
  DM_TRY_ASSIGN(const bool whole, fill(socket, message_.bytes, size, max_descriptors));
  if (!whole)
    return std::nullopt;
  header_.clear();
  return std::exchange(message_, {});
}

// True: `to` has `size` bytes.
Result<bool> FrameReader::fill(int socket, std::string& to, std::size_t size,
                               std::size_t max_descriptors) {
  while (to.size() < size) {
    const std::size_t before = to.size();
    to.resize(std::min(size, before + kBytesAtOnce));
    iovec part{to.data() + before, to.size() - before};
    alignas(cmsghdr) Control control;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    to.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0 && blocked())
      return false;
    if (got <= 0)
      return closed(got == 0 ? "the peer ended it" : std::strerror(errno));
    take_descriptors(header, message_.descriptors);
    if ((header.msg_flags & MSG_CTRUNC) != 0)
      return fail(ErrorCode::kDataLoss, "descriptors of a message were lost: too many are open");
    if (message_.descriptors.size() > max_descriptors)
      return fail(ErrorCode::kDataLoss, fmt::format("more than {} descriptors", max_descriptors));
  }
  return true;
}

Status FrameWriter::push(Message message) {
  if (message.bytes.size() > kMaxFrameBytes || message.descriptors.size() > kMaxDescriptors)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a message of {} bytes and {} descriptors is beyond the limits",
                            message.bytes.size(), message.descriptors.size()));
  Frame frame{header_of(message.bytes.size()) + message.bytes, std::move(message.descriptors)};
  // A descriptor travels with a byte; the reader skips none, since every one is of this frame.
  if (frame.descriptors.size() > frame.bytes.size() * kDescriptorsAtOnce)
    return fail(ErrorCode::kInvalidArgument, "more descriptors than so few bytes can carry");
  unsent_ += frame.cost();
  frames_.push_back(std::move(frame));
  return {};
}

Result<bool> FrameWriter::write(int socket) {
  while (!frames_.empty()) {
    DM_TRY_ASSIGN(const bool sent, write(socket, frames_.front()));
    if (!sent)
      return false;
    unsent_ -= frames_.front().cost();
    frames_.pop_front();
  }
  return true;
}

Result<bool> FrameWriter::write(int socket, Frame& frame) {
  while (frame.bytes_sent < frame.bytes.size()) {
    const std::size_t waiting = frame.descriptors.size() - frame.descriptors_sent;
    const std::size_t count = std::min(waiting, kDescriptorsAtOnce);
    // The bytes that are left must carry the descriptors that are left.
    iovec part{frame.bytes.data() + frame.bytes_sent,
               waiting > count ? 1 : frame.bytes.size() - frame.bytes_sent};
    alignas(cmsghdr) Control control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (count > 0) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
      for (std::size_t i = 0; i < count; ++i) {
        const int fd = frame.descriptors[frame.descriptors_sent + i].get();
        std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(int));
      }
    }
    const ssize_t sent = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent < 0 && blocked())
      return false;
    if (sent < 0)
      return closed(std::strerror(errno));
    frame.bytes_sent += static_cast<std::size_t>(sent);
    frame.descriptors_sent += count;
  }
  return true;
}

}  // namespace dormouse::net
