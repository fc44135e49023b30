// What the halves of a MultiConnector tell each other: what each child tells, kept apart.
//
// Errors: kDataLoss for bytes that are not such a message.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dormouse/kv_connector.h"

namespace dormouse {

// One string for each child, in order. All empty: empty.
std::string join_children(const std::vector<std::string>& by_child);
// Empty bytes: so many empty strings.
Result<std::vector<std::string>> split_children(const std::string& bytes, std::size_t count);

struct MultiMetadata {
  std::vector<std::string> by_child;
  // Requests whose blocks several children hold, and how many do.
  std::vector<std::pair<RequestId, std::uint32_t>> holders;
};
std::string encode(const MultiMetadata& metadata);
Result<MultiMetadata> decode_multi_metadata(const std::string& bytes, std::size_t count);

// Without stats. All empty: empty.
std::string encode(const std::vector<KvConnectorOutput>& by_child);
Result<std::vector<KvConnectorOutput>> decode_multi_outputs(const std::string& bytes,
                                                            std::size_t count);

}  // namespace dormouse
