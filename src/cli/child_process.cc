#include "cli/child_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/unique_fd.h"

namespace dormouse::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::string new_log_path() {
  std::string path = std::filesystem::temp_directory_path() / "dormouse-child-XXXXXX";
  const UniqueFd made(::mkstemp(path.data()));
  return path;
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(std::vector<std::string> words) {
  std::unique_ptr<ChildProcess> child(new ChildProcess(new_log_path()));
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, child->log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const int error = ::posix_spawn(&child->pid_, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    child->pid_ = -1;
    return fail(ErrorCode::kNotFound, fmt::format("{}: {}", words.front(), std::strerror(error)));
  }
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove(log_, ignored);
}

bool ChildProcess::ended() {
  if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == pid_)
    pid_ = -1;
  return pid_ <= 0;
}

std::string ChildProcess::log() const {
  std::ifstream file(log_);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string ChildProcess::last_log_line() const {
  std::ifstream file(log_);
  std::string last;
  for (std::string line; std::getline(file, line);)
    last = line;
  return last;
}

Result<std::uint16_t> free_port() {
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (!probe || ::bind(probe.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return fail(ErrorCode::kInternal, "no free port on loopback");
  return ntohs(address.sin_port);
}

Status wait_until_healthy(ChildProcess& process, const server::Address& address,
                          const std::string& path) {
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  while (Clock::now() < deadline) {
    if (process.ended())
      return fail(ErrorCode::kUnavailable, "a process ended: " + process.last_log_line());
    if (auto client = server::HttpClient::connect(address, std::chrono::seconds(5))) {
      const auto health = client->call("GET", path);
      if (health && health->status == 200)
        return {};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fail(ErrorCode::kUnavailable, "a process did not come up within a minute");
}

}  // namespace dormouse::cli
