#include "kv_connector/pull/pull_config.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/field_reader.h"
#include "base/json.h"

namespace dormouse::pull {
namespace {

constexpr std::string_view kPrefix = "kv_connector_extra_config";
constexpr std::array<std::string_view, 6> kKeys = {
    "kv_lease_duration", "pull_timeout", "num_threads", "peers", "ipc_dir", "peer_token"};

void seconds(FieldReader& reader, std::string_view name, Clock::duration& target) {
  float value = std::chrono::duration<float>(target).count();
  reader.number(name, value, 0.05, 86400);
  target = std::chrono::round<std::chrono::milliseconds>(std::chrono::duration<float>(value));
}

void refuse_unknown(FieldReader& reader, const Json& object) {
  std::string known;
  for (const std::string_view key : kKeys)
    known += fmt::format(" {}", key);
  for (const auto& [name, value] : *object.object()) {
    if (std::find(kKeys.begin(), kKeys.end(), name) == kKeys.end())
      reader.fail(name, fmt::format("{} is unknown; known are{}", name, known));
  }
}

// "host:port", each of them.
void read_peers(FieldReader& reader, std::set<std::string>& target) {
  const Json* value = reader.find("peers");
  if (value == nullptr)
    return;
  if (value->array() == nullptr)
    return reader.fail("peers", "peers must be a list of \"host:port\"");
  for (const Json& peer : *value->array()) {
    const std::string text = peer.string() == nullptr ? "" : *peer.string();
    const std::size_t colon = text.rfind(':');
    int port = 0;
    if (colon != std::string::npos)
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    const bool plain = colon != std::string::npos && colon > 0 && port > 0 && port <= 65535 &&
                       text.substr(colon + 1) == std::to_string(port);
    if (!plain)
      return reader.fail("peers",
                         fmt::format("peers must hold \"host:port\", not {}", excerpt(peer)));
    target.insert(text);
  }
}

}  // namespace

Result<PullConfig> read_pull_config(const KvTransferConfig& config) {
  const auto json = parse_json(config.kv_connector_extra_config);
  if (!json || json->object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, "kv_connector_extra_config must be a JSON object",
                std::string(kPrefix));
  PullConfig result;
  FieldReader reader(*json);
  refuse_unknown(reader, *json);
  seconds(reader, "kv_lease_duration", result.lease_duration);
  seconds(reader, "pull_timeout", result.pull_timeout);
  reader.integer("num_threads", result.num_threads, 1, 64);
  reader.string("ipc_dir", result.ipc_dir, 90);  // a Unix socket's path has 108 bytes
  reader.string("peer_token", result.peer_token, 256);
  read_peers(reader, result.peers);
  if (!reader.status()) {
    Error error = reader.status().error();
    error.message = fmt::format("{}.{}", kPrefix, error.message);
    error.param = fmt::format("{}.{}", kPrefix, error.param);
    return tl::unexpected(std::move(error));
  }
  return result;
}

Result<net::MeetingPlace> meeting_place(const PullConfig& config) {
  DM_TRY_ASSIGN(net::MeetingPlace place, net::open_meeting_place(config.ipc_dir));
  if (!config.peer_token.empty())
    place.token = config.peer_token;
  return place;
}

std::string scheduler_socket(const std::string& directory, std::uint32_t port) {
  return fmt::format("{}/{}.sock", directory, port);
}

std::string rank_socket(const std::string& directory, std::uint32_t port, std::uint32_t rank) {
  return fmt::format("{}/{}.{}.sock", directory, port, rank);
}

}  // namespace dormouse::pull
