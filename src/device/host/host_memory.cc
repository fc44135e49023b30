#include "device/host/host_memory.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

namespace dormouse {
namespace {

Result<std::uint64_t> field_in_kib(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name))
      return std::stoull(line.substr(name.size())) * 1024;
  return fail(ErrorCode::kInternal, fmt::format("{} has no field {}", path, name));
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value)
    return value;
  return std::nullopt;
}

// A process in a control group of its own may be allowed less than the machine has.
std::optional<std::uint64_t> control_group_room() {
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used)
    return std::nullopt;
  return *limit > *used ? *limit - *used : 0;
}

}  // namespace

Result<std::uint64_t> available_host_memory() {
  auto available = field_in_kib("/proc/meminfo", "MemAvailable:");
  if (available)
    available = std::min(*available, control_group_room().value_or(*available));
  return available;
}

Result<std::uint64_t> shared_memory_in_use() {
  return field_in_kib("/proc/meminfo", "Shmem:");
}

Result<std::uint64_t> resident_memory() {
  return field_in_kib("/proc/self/status", "VmRSS:");
}

Result<BlockReferences> block_references(int pid) {
  const std::string process = pid == 0 ? "/proc/self" : fmt::format("/proc/{}", pid);
  BlockReferences found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd", error)) {
    std::error_code vanished;
    const auto target = std::filesystem::read_symlink(entry.path(), vanished);
    if (target.string().find(kHostBlockName) != std::string::npos)
      ++found.descriptors;
  }
  if (error)
    return fail(ErrorCode::kNotFound, fmt::format("{}/fd: {}", process, error.message()));
  std::ifstream maps(process + "/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(kHostBlockName) != std::string::npos)
      ++found.mappings;
  return found;
}

}  // namespace dormouse
