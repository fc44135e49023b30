#include "cli/ctl_tables.h"

#include <fmt/core.h>

#include <algorithm>

#include "cli/units.h"

namespace dormouse::cli {
namespace {

double number(const Json& object, std::string_view name) {
  const Json* value = object.find(name);
  return value == nullptr ? 0 : value->as_double();
}

bool is_true(const Json& object, std::string_view name) {
  const Json* value = object.find(name);
  return value != nullptr && value->boolean() != nullptr && *value->boolean();
}

const Json& member(const Json& object, std::string_view name) {
  static const Json kNone;
  const Json* value = object.find(name);
  return value == nullptr ? kNone : *value;
}

const Json::Object& members(const Json& object) {
  static const Json::Object kNone;
  return object.object() == nullptr ? kNone : *object.object();
}

const Json::Array& items(const Json& list) {
  static const Json::Array kNone;
  return list.array() == nullptr ? kNone : *list.array();
}

std::string row(std::string_view name, std::string_view text) {
  return fmt::format("{:<10} {}\n", name, text);
}

std::string detail(std::string_view name, std::string_view text) {
  return fmt::format("  {:<12} {}\n", name, text);
}

std::string tag_line(const std::string& tag, const Json& usage) {
  const auto bytes = [&](std::string_view name) {
    const double value = number(usage, name);
    return value == 0 ? std::string("-") : format_bytes(value);
  };
  return fmt::format("  {:<12} {:>12} {:>12} {:>12} {:>12}\n", tag, bytes("mapped"),
                     bytes("asleep"), bytes("backed_up"), bytes("leaked"));
}

std::string state_text(const Json& status) {
  const std::string state = text_of(status, "state");
  std::string out = state;
  if (is_true(status, "is_sleeping"))
    out += fmt::format(", level {}", text_of(status, "sleep_level"));
  if (state == "loading" || state == "starting")
    out += " " + format_bar(number(status, "load_progress"));
  if (const std::string phase = text_of(status, "transition_phase"); !phase.empty())
    out += fmt::format(", {} {}", phase, format_bar(number(status, "transition_progress")));
  if (const std::string cause = text_of(status, "cause"); !cause.empty())
    out += ": " + cause;
  return out;
}

std::string router_table(const Json& status) {
  const Json& totals = member(status, "totals");
  std::string out =
      row("router", fmt::format("{} requests, {} prefill legs, {} computed locally, "
                                "{} retries",
                                text_of(totals, "requests"), text_of(totals, "prefill_legs"),
                                text_of(totals, "local_computations"), text_of(totals, "retries")));
  const Json::Array& instances = items(member(status, "instances"));
  std::size_t width = 8;
  for (const Json& each : instances)
    width = std::max(width, text_of(each, "url").size());
  out += fmt::format("\n  {:<{}} {:<8} {:<8} {:>9} {:>9} {:>9}\n", "instance", width, "role",
                     "state", "in flight", "requests", "failures");
  for (const Json& each : instances) {
    out += fmt::format("  {:<{}} {:<8} {:<8} {:>9} {:>9} {:>9}", text_of(each, "url"), width,
                       text_of(each, "role"), text_of(each, "state"), text_of(each, "in_flight"),
                       text_of(each, "requests"), text_of(each, "failures"));
    for (const char* why : {"cause", "warning"}) {
      if (const std::string text = text_of(each, why); !text.empty())
        out += "  " + text;
    }
    out += '\n';
  }
  return out;
}

// What a transition did to the memory, in words.
std::string moved(const Json& reply) {
  const Json& receipt = member(reply, "receipt");
  const Json::Object& tags = members(member(receipt, "tags"));
  const Json::Array& kept = items(member(receipt, "kept"));
  double mapped = 0;
  for (const auto& [tag, bytes] : tags)
    mapped += number(bytes, "mapped");
  std::string out;
  if (const double freed = number(reply, "freed_bytes"); freed > 0)
    out += fmt::format("; {} given back", format_bytes(freed));
  else if (mapped > 0)
    out += fmt::format("; {} mapped", format_bytes(mapped));
  for (const Json& each : kept)
    out += fmt::format("; {} kept ({}: {})", format_bytes(number(each, "bytes")),
                       text_of(each, "what"), text_of(each, "why"));
  for (const auto& [tag, bytes] : tags) {
    const std::string what = tag + " backup";
    const double backup = number(bytes, "backup_kept");
    const auto is_named = [&](const Json& each) { return text_of(each, "what") == what; };
    if (backup > 0 && std::ranges::none_of(kept, is_named))
      out += fmt::format("; {} kept ({})", format_bytes(backup), what);
  }
  return out;
}

}  // namespace

std::string text_of(const Json& object, std::string_view name) {
  const Json* value = object.find(name);
  if (value == nullptr || value->is_null())
    return "";
  return value->string() != nullptr ? *value->string() : value->dump();
}

bool is_router(const Json& status) {
  const Json* instances = status.find("instances");
  return instances != nullptr && instances->array() != nullptr;
}

std::string status_table(const Json& status) {
  if (is_router(status))
    return router_table(status);
  std::string out = row(text_of(status, "model"), state_text(status));
  if (const std::string next = text_of(status, "next"); !next.empty())
    out += row("next", in_ctl_words(next));
  out += row("requests",
             fmt::format("{} running, {} waiting{}", text_of(status, "requests_running"),
                         text_of(status, "requests_waiting"),
                         is_true(status, "accepts_requests") ? "" : "; none accepted now"));
  out +=
      row("KV cache", fmt::format("{} of {} blocks of {} tokens", text_of(status, "blocks_used"),
                                  text_of(status, "blocks_total"), text_of(status, "block_size")));
  if (const Json& transfer = member(status, "kv_transfer"); !transfer.is_null())
    out += row("transfer", transfer_text(transfer) +
                               fmt::format("; {} loads and {} sends under way",
                                           text_of(transfer, "loads"), text_of(transfer, "sends")));
  out += fmt::format("\n  {:<12} {:>12} {:>12} {:>12} {:>12}\n", "memory", "mapped", "asleep",
                     "backed up", "leaked");
  for (const auto& [tag, usage] : members(member(status, "memory")))
    out += tag_line(tag, usage);
  return out;
}

std::string transition_table(const Json& reply) {
  const std::string state = text_of(reply, "state");
  std::string out = state;
  if (state == "asleep")
    out += fmt::format(" at level {}", text_of(reply, "sleep_level"));
  if (!is_true(reply, "changed"))
    out += " already; nothing changed\n";
  else
    out += fmt::format(" after {}{}\n", format_duration(number(reply, "seconds")), moved(reply));
  for (const auto& [tag, tag_state] : members(member(reply, "tags")))
    out += detail(tag, tag_state.string() != nullptr ? *tag_state.string() : "");
  for (const auto& [phase, milliseconds] : members(member(member(reply, "receipt"), "phases_ms")))
    out += detail(phase, format_duration(milliseconds.as_double() / 1e3));
  const std::string next = text_of(reply, "next"), cause = text_of(reply, "cause");
  if (!next.empty() && state != "asleep")
    out += fmt::format("{}: {}\n", cause.empty() ? "to go on" : cause, in_ctl_words(next));
  return out;
}

std::string transfer_text(const Json& kv_transfer) {
  std::string peers;
  for (const Json& peer : items(member(kv_transfer, "peers"))) {
    if (peer.string() != nullptr)
      peers += (peers.empty() ? "peers " : ", ") + *peer.string();
  }
  return fmt::format("{}, {} at {}; {}", text_of(kv_transfer, "connector"),
                     text_of(kv_transfer, "role"), text_of(kv_transfer, "address"),
                     peers.empty() ? "no peers" : peers);
}

std::string in_ctl_words(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"POST /wake_up?tags=", "dormouse ctl wake --tags "},
      {"POST /wake_up", "dormouse ctl wake"},
      {"POST /sleep?level=", "dormouse ctl sleep --level "},
      {"POST /reload_weights", "dormouse ctl reload"},
      {"POST /resume", "dormouse ctl resume"},
      {"POST /release_kv_cache_memory", "dormouse ctl release-kv"},
      {"force=true", "--force"}};
  for (const auto& [ours, theirs] : kWords) {
    for (std::size_t at = text.find(ours); at != std::string::npos; at = text.find(ours, at))
      text.replace(at, ours.size(), theirs);
  }
  return text;
}

}  // namespace dormouse::cli
