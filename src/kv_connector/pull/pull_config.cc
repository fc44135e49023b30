#include "kv_connector/pull/pull_config.h"

#include <charconv>

#include "kv_connector/extra_config.h"

namespace dormouse::pull {
namespace {

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
  PullConfig result;
  DM_TRY(read_extra_config(config, [&](FieldReader& fields) {
    fields.seconds("kv_lease_duration", result.lease_duration);
    fields.seconds("pull_timeout", result.pull_timeout);
    fields.integer("num_threads", result.num_threads, 1, 64);
    fields.string("ipc_dir", result.ipc_dir, 90);  // a Unix socket's path has 108 bytes
    fields.string("peer_token", result.peer_token, 256);
    read_peers(fields, result.peers);
  }));
  return result;
}

Result<net::MeetingPlace> meeting_place(const PullConfig& config) {
  auto place = net::open_meeting_place(config.ipc_dir);
  if (!place)
    return fail(
        place.error().code,
        fmt::format("kv_connector_extra_config.ipc_dir: {}. Choose a folder of your own, "
                    "whose parent exists{}",
                    place.error().message, config.ipc_dir.empty() ? "" : ", or leave ipc_dir out"),
        "kv_connector_extra_config.ipc_dir");
  if (!config.peer_token.empty())
    place->token = config.peer_token;
  return place;
}

std::string scheduler_socket(const std::string& directory, std::uint32_t port) {
  return fmt::format("{}/{}.sock", directory, port);
}

std::string rank_socket(const std::string& directory, std::uint32_t port, std::uint32_t rank) {
  return fmt::format("{}/{}.{}.sock", directory, port, rank);
}

}  // namespace dormouse::pull
