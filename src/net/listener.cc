#include "net/listener.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "net/unix_address.h"

namespace dormouse::net {
namespace {

constexpr int kBacklog = 64;

tl::unexpected<Error> refused(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kFailedPrecondition, fmt::format("cannot listen at {}: {}", path, why));
}

tl::unexpected<Error> system_error(const std::string& path) {
  return refused(path, std::strerror(errno));
}

// Held from the look at what is there until the new socket listens.
Result<UniqueFd> lock_directory(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  UniqueFd directory(
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory)
    return system_error(path);
  while (::flock(directory.get(), LOCK_EX) != 0)
    if (errno != EINTR)
      return system_error(path);
  return directory;
}

// Takes away the file of a process that ended.
Status clear(const std::string& path, const UnixAddress& address) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0)
    return errno == ENOENT ? Status{} : Status(system_error(path));
  if (!S_ISSOCK(found.st_mode))
    return refused(path, "the file there is no socket");
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe)
    return system_error(path);
  if (::connect(probe.get(), address.get(), address.size()) == 0 || errno != ECONNREFUSED)
    return refused(path, "another process listens there");
  if (::unlink(path.c_str()) != 0)
    return system_error(path);
  return {};
}

}  // namespace

Result<Listener> Listener::open(const std::string& path) {
  DM_TRY_ASSIGN(const UnixAddress address, unix_address(path));
  DM_TRY_ASSIGN(const UniqueFd lock, lock_directory(path));
  DM_TRY(clear(path, address));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::bind(socket.get(), address.get(), address.size()) != 0)
    return system_error(path);
  Listener listener(std::move(socket), path);
  if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || ::listen(listener.fd(), kBacklog) != 0)
    return system_error(path);
  return listener;
}

Listener::~Listener() {
  if (socket_)
    (void)::unlink(path_.c_str());
}

}  // namespace dormouse::net
