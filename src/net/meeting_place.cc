#include "net/meeting_place.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/secret.h"
#include "base/unique_fd.h"

namespace dormouse::net {
namespace {

constexpr std::size_t kTokenBytes = 32;

tl::unexpected<Error> unsafe(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kFailedPrecondition, fmt::format("{}: {}", path, why));
}

tl::unexpected<Error> system_error(const std::string& path) {
  return unsafe(path, std::strerror(errno));
}

std::string default_directory() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  return fmt::format("{}/dormouse-{}", runtime && *runtime ? runtime : "/tmp", ::geteuid());
}

Status check_owner(const std::string& path, const struct stat& found) {
  if (found.st_uid != ::geteuid())
    return unsafe(path, "it belongs to another user");
  if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return unsafe(path, "others may enter or read it");
  return {};
}

Status open_directory(const std::string& path) {
  if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return system_error(path);
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0)
    return system_error(path);
  if (!S_ISDIR(found.st_mode))
    return unsafe(path, "it is no directory");
  return check_owner(path, found);
}

// Nothing: there is no such file.
Result<std::optional<std::string>> read_token(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file && errno == ENOENT)
    return std::nullopt;
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0)
    return system_error(path);
  DM_TRY(check_owner(path, found));
  std::string token(2 * kTokenBytes, '\0');
  const ssize_t got = ::read(file.get(), token.data(), token.size());
  if (got != static_cast<ssize_t>(token.size()) || found.st_size != got)
    return unsafe(path, "it holds no token: remove it");
  return token;
}

// The file appears whole, under its name, and once: of two processes that link, one is first.
Status write_token(const std::string& path) {
  const std::string token = random_hex(kTokenBytes);
  const std::string draft = fmt::format("{}.{}", path, token.substr(0, 16));
  const UniqueFd file(
      ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file)
    return system_error(draft);
  Status written;
  if (::write(file.get(), token.data(), token.size()) != static_cast<ssize_t>(token.size()))
    written = system_error(draft);
  else if (::link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST)
    written = system_error(path);
  (void)::unlink(draft.c_str());
  return written;
}

}  // namespace

Result<MeetingPlace> open_meeting_place(const std::string& directory) {
  MeetingPlace place{directory.empty() ? default_directory() : directory, {}};
  DM_TRY(open_directory(place.directory));
  const std::string path = place.directory + "/token";
  DM_TRY_ASSIGN(std::optional<std::string> token, read_token(path));
  if (!token) {
    DM_TRY(write_token(path));
    DM_TRY_ASSIGN(token, read_token(path));
  }
  if (!token)
    return unsafe(path, "it was removed meanwhile");
  place.token = *std::move(token);
  return place;
}

}  // namespace dormouse::net
