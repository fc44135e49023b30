// Blocks of KV in files of one folder, one for each block and rank:
// <path>/<first two digits of the key>/<key>.r<rank>.kv. Several engines may share the folder.
//
// A file is published whole: written under a temporary name, synchronised, renamed. A read checks
// everything, and a file that is not exactly what its name says is a miss and deleted. The folder
// is kept below its limit, also when several engines write, but for a sixteenth of it for each;
// what no longer fits on the filesystem makes room once: the files used longest ago go.
//
// Threads: any; no call touches the KV cache.
// Errors:  a miss is kNotFound (there is none) or kDataLoss (of no use), and counted by its kind.
//          Writing never fails: what cannot be written is not there afterwards, and counted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "dormouse/kv_connector.h"

namespace dormouse {

enum class DiskFault { kTorn, kForeign, kChecksum, kVanished, kIo, kNoSpace };
inline constexpr std::size_t kDiskFaults = 6;

class DiskTier {
 public:
  struct Options {
    std::string path;
    std::uint64_t limit_bytes = 0;  // of all files in the folder; 0: what the filesystem has
    std::uint32_t rank = 0;
  };

  // Makes the folder. kInvalidArgument with param disk_path if it cannot be.
  static Result<std::unique_ptr<DiskTier>> create(Options options);

  void write(const std::string& key, std::span<const std::byte> block);
  Status read(const std::string& key, std::span<std::byte> block);
  bool exists(const std::string& key) const { return exists(options_.path, key, options_.rank); }

  static bool exists(const std::string& path, const std::string& key, std::uint32_t rank);
  static std::string file_of(const std::string& path, const std::string& key, std::uint32_t rank);

  std::uint64_t faults(DiskFault kind) const { return faults_[static_cast<std::size_t>(kind)]; }
  std::uint64_t evictions() const { return evictions_; }
  // Appends the counters under their names in /metrics.
  void add_stats(KvConnectorStats& stats) const;

 private:
  explicit DiskTier(Options options) : options_(std::move(options)) {}

  Status miss(DiskFault kind, const std::string& file, const std::string& what);
  bool make_room(std::uint64_t bytes);
  std::uint64_t evict(std::uint64_t bytes);
  void could_not_write(DiskFault kind, int error);

  const Options options_;
  std::mutex mutex_;           // serialises what changes the folder
  std::uint64_t granted_ = 0;  // bytes that may be written before the folder is looked at again
  bool warned_ = false;
  std::array<std::atomic<std::uint64_t>, kDiskFaults> faults_ = {};
  std::atomic<std::uint64_t> evictions_ = 0;
};

}  // namespace dormouse
