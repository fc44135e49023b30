// What the two halves of the OffloadingConnector tell each other.
//
// Errors: kDataLoss for bytes that are not such a message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dormouse/kv_connector.h"

namespace dormouse {

struct OffloadBlock {
  std::string key;
  std::optional<std::uint32_t> slot;  // nothing: on disk
  BlockId block = 0;
};

// A store (cache to slots) or a load (slots or files to cache) for one request.
struct OffloadJob {
  std::uint64_t id = 0;
  bool load = false;
  RequestId request = 0;
  // What each rank's mapping said of itself when the blocks were named; see get_handshake_metadata.
  std::vector<std::string> generations;
  std::vector<OffloadBlock> blocks;
};

// Of one rank, since its last report.
struct OffloadReport {
  struct Ended {
    std::uint64_t job = 0;
    std::uint32_t done = 0;  // the first so many blocks were copied
  };
  std::vector<Ended> ended;
  // With a disk tier: slots whose block is written, or never will be. Once for each block stored.
  std::vector<std::uint32_t> written;
  std::vector<std::string> bad;  // files that are of no use and cannot be deleted

  bool empty() const { return ended.empty() && written.empty() && bad.empty(); }
};

std::string encode(const std::vector<OffloadJob>& jobs);
Result<std::vector<OffloadJob>> decode_offload_jobs(const std::string& bytes);
std::string encode(const OffloadReport& report);
Result<OffloadReport> decode_offload_report(const std::string& bytes);

}  // namespace dormouse
