#include "kv_connector/multi/multi_messages.h"

#include <algorithm>

#include "base/check.h"
#include "kv_connector/wire.h"

namespace dormouse {
namespace {

constexpr JsonLimits kLimits = {.depth = 8, .values = std::size_t{1} << 24};

struct Output {
  KvConnectorOutput output;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("finished_sending", self.output.finished_sending);
    io("finished_recving", self.output.finished_recving);
    io("invalid_block_ids", self.output.invalid_block_ids);
    io("failure", self.output.failure);
    io("worker_meta", self.output.worker_meta);
  }
};

struct Outputs {
  std::vector<Output> by_child;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("by_child", self.by_child);
  }
};

bool is_empty(const KvConnectorOutput& output) {
  return output.finished_sending.empty() && output.finished_recving.empty() &&
         output.invalid_block_ids.empty() && output.failure.empty() && output.worker_meta.empty();
}

// Nothing: so many children who say nothing.
template <class Message>
Result<Message> decode(const std::string& bytes, std::size_t count) {
  Message message;
  message.by_child.resize(count);
  if (bytes.empty())
    return message;
  DM_TRY_ASSIGN(message, decode_fields<Message>(bytes, "MultiConnector", kLimits));
  if (message.by_child.size() != count)
    return fail(ErrorCode::kDataLoss, "MultiConnector: a message of another number of children");
  return message;
}

}  // namespace

std::string join_children(const std::vector<std::string>& by_child) {
  return encode(MultiMetadata{.by_child = by_child});
}

Result<std::vector<std::string>> split_children(const std::string& bytes, std::size_t count) {
  DM_TRY_ASSIGN(MultiMetadata message, decode_multi_metadata(bytes, count));
  return std::move(message.by_child);
}

std::string encode(const MultiMetadata& metadata) {
  if (metadata.holders.empty() && std::ranges::all_of(metadata.by_child, &std::string::empty))
    return {};
  return encode_fields(metadata);
}

Result<MultiMetadata> decode_multi_metadata(const std::string& bytes, std::size_t count) {
  return decode<MultiMetadata>(bytes, count);
}

std::string encode(const std::vector<KvConnectorOutput>& by_child) {
  if (std::ranges::all_of(by_child, is_empty))
    return {};
  Outputs message;
  for (const KvConnectorOutput& each : by_child)
    message.by_child.push_back({each});
  return encode_fields(message);
}

Result<std::vector<KvConnectorOutput>> decode_multi_outputs(const std::string& bytes,
                                                            std::size_t count) {
  DM_TRY_ASSIGN(Outputs message, decode<Outputs>(bytes, count));
  std::vector<KvConnectorOutput> outputs;
  for (Output& each : message.by_child)
    outputs.push_back(std::move(each.output));
  return outputs;
}

}  // namespace dormouse
