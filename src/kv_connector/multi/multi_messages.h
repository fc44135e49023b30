// What the halves of a MultiConnector tell each other: what each child tells, kept apart.
//
// Each message has one entry for each child, in order; where no child has anything to say it is
// empty bytes. Errors: kDataLoss for bytes that are not such a message of so many children.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dormouse/kv_connector.h"

namespace dormouse {

std::string join_children(const std::vector<std::string>& by_child);
Result<std::vector<std::string>> split_children(const std::string& bytes, std::size_t count);

// A request whose blocks several children hold, and how many do.
struct MultiHolders {
  RequestId request = 0;
  std::uint32_t count = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("request", self.request);
    io("count", self.count);
  }
};

struct MultiMetadata {
  std::vector<std::string> by_child;
  std::vector<MultiHolders> holders;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("by_child", self.by_child);
    io("holders", self.holders);
  }
};
std::string encode(const MultiMetadata& metadata);
Result<MultiMetadata> decode_multi_metadata(const std::string& bytes, std::size_t count);

// Without stats.
std::string encode(const std::vector<KvConnectorOutput>& by_child);
Result<std::vector<KvConnectorOutput>> decode_multi_outputs(const std::string& bytes,
                                                            std::size_t count);

}  // namespace dormouse
