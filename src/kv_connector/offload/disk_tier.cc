#include "kv_connector/offload/disk_tier.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kv_connector/offload/disk_block.h"

namespace dormouse {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, kDiskFaults> kFaultNames = {
    "torn", "foreign", "checksum", "vanished", "io", "no_space"};
constexpr std::string_view kEnding = ".kv";
constexpr std::string_view kTemporaryEnding = ".kv.tmp";
constexpr auto kAbandoned = std::chrono::minutes(10);  // a temporary file that nobody finishes

struct File {
  fs::path path;
  fs::file_time_type used;
  std::uint64_t bytes = 0;
};

// <two digits>/<those and 62 more>.r<rank>.kv, or that with an ending of the one who writes it.
bool is_ours(const fs::path& path) {
  constexpr std::size_t kKeyDigits = 64;
  const std::string name = path.filename().string();
  const std::size_t rank = name.find_first_not_of("0123456789abcdef");
  if (rank != kKeyDigits || name.compare(rank, 2, ".r") != 0 ||
      path.parent_path().filename() != name.substr(0, 2))
    return false;
  const std::size_t ending = name.find_first_not_of("0123456789", rank + 2);
  return ending != name.npos && ending > rank + 2 && name.compare(ending, 3, kEnding) == 0 &&
         (name.size() == ending + kEnding.size() || name.ends_with(kTemporaryEnding));
}

// Ours alone, whatever else lies there; those used longest ago first. What vanishes meanwhile is
// not there.
std::vector<File> files_in(const std::string& path) {
  std::vector<File> files;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::recursive_directory_iterator each(path, error), end; !error && each != end;
       each.increment(error)) {
    const std::string name = each->path().filename().string();
    const bool temporary = name.ends_with(kTemporaryEnding);
    std::error_code gone;
    if (each.depth() != 1 || !is_ours(each->path()) || !each->is_regular_file(gone))
      continue;
    File file{each->path(), each->last_write_time(gone)};
    file.bytes = gone ? 0 : each->file_size(gone);
    if (gone || (temporary && now - file.used < kAbandoned))
      continue;
    files.push_back(std::move(file));
  }
  std::ranges::sort(files, {}, &File::used);
  return files;
}

std::uint64_t total_bytes(const std::vector<File>& files) {
  std::uint64_t total = 0;
  for (const File& each : files)
    total += each.bytes;
  return total;
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::create(Options options) {
  std::error_code error;
  fs::create_directories(options.path, error);
  if (error || !fs::is_directory(options.path, error))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cannot use {} for KV blocks: {}", options.path,
                            error ? error.message() : "it is no folder"),
                "disk_path");
  return std::unique_ptr<DiskTier>(new DiskTier(std::move(options)));
}

std::string DiskTier::file_of(const std::string& path, const std::string& key, std::uint32_t rank) {
  return fmt::format("{}/{}/{}.r{}{}", path, std::string_view(key).substr(0, 2), key, rank,
                     kEnding);
}

bool DiskTier::exists(const std::string& path, const std::string& key, std::uint32_t rank) {
  return ::access(file_of(path, key, rank).c_str(), F_OK) == 0;
}

Status DiskTier::miss(DiskFault kind, const std::string& file, const std::string& what) {
  ++faults_[static_cast<std::size_t>(kind)];
  return fail(kind == DiskFault::kVanished ? ErrorCode::kNotFound : ErrorCode::kDataLoss,
              fmt::format("KV block {}: {}", file, what));
}

Status DiskTier::read(const std::string& key, std::span<std::byte> block) {
  const std::string file = file_of(options_.path, key, options_.rank);
  const auto result = read_block_file(file, {key, options_.rank}, block);
  if (result)
    return {};
  const BlockFileError& why = result.error();
  // A file that could not be read need not be a wrong one.
  if (why.kind != DiskFault::kVanished && why.kind != DiskFault::kIo)
    ::unlink(file.c_str());
  return miss(why.kind, file,
              why.error != 0 ? std::strerror(why.error)
                             : std::string(kFaultNames[static_cast<std::size_t>(why.kind)]));
}

void DiskTier::write(const std::string& key, std::span<const std::byte> block) {
  const std::string file = file_of(options_.path, key, options_.rank);
  const std::lock_guard lock(mutex_);
  // There already: it was used now.
  if (::utimensat(AT_FDCWD, file.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0)
    return;
  const std::uint64_t bytes = kBlockHeaderBytes + block.size();
  if (!make_room(bytes))
    return could_not_write(DiskFault::kNoSpace, 0);
  const std::string temporary = fmt::format(
      "{}.{}.{:x}{}", file, ::getpid(), reinterpret_cast<std::uintptr_t>(this), kTemporaryEnding);
  auto result = write_block_file(file, temporary, {key, options_.rank}, block);
  if (!result && result.error().kind == DiskFault::kNoSpace && evict(bytes) > 0)
    result = write_block_file(file, temporary, {key, options_.rank}, block);
  if (!result)
    return could_not_write(result.error().kind, result.error().error);
  granted_ -= std::min(granted_, bytes);
}

bool DiskTier::make_room(std::uint64_t bytes) {
  const std::uint64_t limit = options_.limit_bytes;
  if (limit == 0 || bytes <= granted_)
    return true;
  if (bytes > limit)
    return false;
  // Others write here too, so that the sum must be taken again and again; each writes a sixteenth
  // of the limit at most in between.
  const std::uint64_t stretch = std::max(bytes, limit / 16);
  std::uint64_t total = total_bytes(files_in(options_.path));
  if (total + stretch > limit)
    total -= std::min(total, evict(total + stretch - limit));
  granted_ = total < limit ? std::min(stretch, limit - total) : 0;
  return bytes <= granted_;
}

// Deletes the files used longest ago until so many bytes are gone; tells how many are.
std::uint64_t DiskTier::evict(std::uint64_t bytes) {
  std::uint64_t gone = 0;
  for (const File& each : files_in(options_.path)) {
    if (gone >= bytes)
      break;
    if (::unlink(each.path.c_str()) == 0)
      ++evictions_;
    else if (errno != ENOENT)
      continue;
    gone += each.bytes;
  }
  return gone;
}

void DiskTier::could_not_write(DiskFault kind, int error) {
  ++faults_[static_cast<std::size_t>(kind)];
  if (std::exchange(warned_, true))
    return;
  log(LogLevel::kWarning, "kv_connector",
      "disk tier passed by: path={} why=\"{}\"; further ones are counted and not logged",
      options_.path, error != 0 ? std::strerror(error) : "no room below disk_bytes");
}

void DiskTier::add_stats(KvConnectorStats& stats) const {
  for (std::size_t kind = 0; kind < kDiskFaults; ++kind)
    stats.emplace_back(fmt::format("kv_offload_disk_errors_{}_total", kFaultNames[kind]),
                       static_cast<double>(faults_[kind]));
  stats.emplace_back("kv_offload_disk_evictions_total", static_cast<double>(evictions_));
}

}  // namespace dormouse
