// What the two halves of the OffloadingConnector tell each other.
//
// Errors: kDataLoss for bytes that are not such a message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dormouse/kv_connector.h"
#include "kv_connector/wire.h"

namespace dormouse {

struct OffloadBlock {
  std::string key;
  std::optional<std::uint32_t> slot;  // nothing: on disk
  BlockId block = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("key", self.key);
    io("slot", self.slot);
    io("block", self.block);
  }
};

// A store (cache to slots) or a load (slots or files to cache) for one request.
struct OffloadJob {
  std::uint64_t id = 0;
  bool load = false;
  RequestId request = 0;
  // What each rank's mapping said of itself when the blocks were named; see get_handshake_metadata.
  std::vector<std::string> generations;
  std::vector<OffloadBlock> blocks;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("id", self.id);
    io("load", self.load);
    io("request", self.request);
    io("generations", self.generations);
    io("blocks", self.blocks);
  }
};

inline constexpr JsonLimits kOffloadMessageLimits = {.depth = 8, .values = std::size_t{1} << 24};

struct OffloadJobs {
  std::vector<OffloadJob> jobs;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("jobs", self.jobs);
  }
};

// Of one rank, since its last report.
struct OffloadReport {
  struct Ended {
    std::uint64_t job = 0;
    std::uint32_t done = 0;  // the first so many blocks were copied
    template <class Io, class Self>
    static void fields(Io& io, Self& self) {
      io("job", self.job);
      io("done", self.done);
    }
  };
  std::vector<Ended> ended;
  // With a disk tier: slots whose block is written, or never will be. Once for each block stored.
  std::vector<std::uint32_t> written;
  std::vector<std::string> bad;  // files that are of no use and cannot be deleted

  bool empty() const { return ended.empty() && written.empty() && bad.empty(); }
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("ended", self.ended);
    io("written", self.written);
    io("bad", self.bad);
  }
};

}  // namespace dormouse
