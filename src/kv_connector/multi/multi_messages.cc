#include "kv_connector/multi/multi_messages.h"

#include <algorithm>

#include "base/check.h"
#include "base/json.h"

namespace dormouse {
namespace {

constexpr JsonLimits kLimits = {.depth = 8, .values = std::size_t{1} << 24};

tl::unexpected<Error> malformed() {
  return fail(ErrorCode::kDataLoss, "a message between the halves of a connector is malformed");
}

template <class Integer>
Json integers(const std::vector<Integer>& values) {
  return Json::Array(values.begin(), values.end());
}

template <class Integer>
bool read_integers(const Json& json, std::vector<Integer>& to) {
  if (json.array() == nullptr)
    return false;
  for (const Json& each : *json.array()) {
    if (!each.is_integer())
      return false;
    to.push_back(static_cast<Integer>(each.as_unsigned()));
  }
  return true;
}

bool read_string(const Json& json, std::string& to) {
  if (json.string() == nullptr)
    return false;
  to = *json.string();
  return true;
}

bool is_empty(const KvConnectorOutput& output) {
  return output.finished_sending.empty() && output.finished_recving.empty() &&
         output.invalid_block_ids.empty() && output.failure.empty() && output.worker_meta.empty();
}

bool read_output(const Json& json, KvConnectorOutput& output) {
  const Json::Array* fields = json.array();
  return fields != nullptr && fields->size() == 5 &&
         read_integers((*fields)[0], output.finished_sending) &&
         read_integers((*fields)[1], output.finished_recving) &&
         read_integers((*fields)[2], output.invalid_block_ids) &&
         read_string((*fields)[3], output.failure) && read_string((*fields)[4], output.worker_meta);
}

}  // namespace

std::string join_children(const std::vector<std::string>& by_child) {
  if (std::ranges::all_of(by_child, &std::string::empty))
    return {};
  return to_msgpack(Json::Array(by_child.begin(), by_child.end()));
}

Result<std::vector<std::string>> split_children(const std::string& bytes, std::size_t count) {
  std::vector<std::string> by_child(count);
  if (bytes.empty())
    return by_child;
  DM_TRY_ASSIGN(const Json json, parse_msgpack(bytes, kLimits));
  if (json.array() == nullptr || json.array()->size() != count)
    return malformed();
  for (std::size_t i = 0; i < count; ++i)
    if (!read_string((*json.array())[i], by_child[i]))
      return malformed();
  return by_child;
}

std::string encode(const MultiMetadata& metadata) {
  const std::string children = join_children(metadata.by_child);
  if (children.empty() && metadata.holders.empty())
    return {};
  Json::Array holders;
  for (const auto& [request, count] : metadata.holders)
    holders.push_back(Json::Array{request, count});
  return to_msgpack(Json::Array{children, std::move(holders)});
}

Result<MultiMetadata> decode_multi_metadata(const std::string& bytes, std::size_t count) {
  MultiMetadata metadata{.by_child = std::vector<std::string>(count)};
  if (bytes.empty())
    return metadata;
  DM_TRY_ASSIGN(const Json json, parse_msgpack(bytes, kLimits));
  const Json::Array* fields = json.array();
  std::string children;
  if (fields == nullptr || fields->size() != 2 || !read_string((*fields)[0], children) ||
      (*fields)[1].array() == nullptr)
    return malformed();
  DM_TRY_ASSIGN(metadata.by_child, split_children(children, count));
  for (const Json& each : *(*fields)[1].array()) {
    std::vector<std::uint64_t> pair;
    if (!read_integers(each, pair) || pair.size() != 2)
      return malformed();
    metadata.holders.emplace_back(pair[0], static_cast<std::uint32_t>(pair[1]));
  }
  return metadata;
}

std::string encode(const std::vector<KvConnectorOutput>& by_child) {
  if (std::ranges::all_of(by_child, is_empty))
    return {};
  Json::Array outputs;
  for (const KvConnectorOutput& each : by_child)
    outputs.push_back(Json::Array{integers(each.finished_sending), integers(each.finished_recving),
                                  integers(each.invalid_block_ids), each.failure,
                                  each.worker_meta});
  return to_msgpack(outputs);
}

Result<std::vector<KvConnectorOutput>> decode_multi_outputs(const std::string& bytes,
                                                            std::size_t count) {
  std::vector<KvConnectorOutput> outputs(count);
  if (bytes.empty())
    return outputs;
  DM_TRY_ASSIGN(const Json json, parse_msgpack(bytes, kLimits));
  if (json.array() == nullptr || json.array()->size() != count)
    return malformed();
  for (std::size_t i = 0; i < count; ++i)
    if (!read_output((*json.array())[i], outputs[i]))
      return malformed();
  return outputs;
}

}  // namespace dormouse
