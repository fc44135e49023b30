#include "cli/ctl.h"

#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "base/check.h"
#include "cli/options.h"
#include "cli/units.h"
#include "server/http_client.h"

namespace dormouse::cli {
namespace {

using server::HttpResponse;
using std::chrono::milliseconds;

constexpr milliseconds kStatusTimeout{5'000};
constexpr milliseconds kCallTimeout{86'400'000};  // a sleep may wait for long requests
constexpr milliseconds kPoll{100};

std::string text(const Json& object, std::string_view name) {
  const Json* value = object.find(name);
  if (value == nullptr || value->is_null())
    return "";
  return value->string() != nullptr ? *value->string() : value->dump();
}

double number(const Json& object, std::string_view name) {
  const Json* value = object.find(name);
  return value == nullptr ? 0 : value->as_double();
}

bool is_true(const Json& object, std::string_view name) {
  const Json* value = object.find(name);
  return value != nullptr && value->boolean() != nullptr && *value->boolean();
}

class Remote {
 public:
  explicit Remote(const CtlOptions& options) : options_(options) {}

  Result<HttpResponse> call(std::string_view method, std::string_view target, milliseconds timeout,
                            std::string_view body = {}) const {
    server::Address address;
    DM_TRY_ASSIGN(address, server::parse_url(options_.url));
    auto client = server::HttpClient::connect(address, timeout);
    if (!client)
      return tl::unexpected(client.error());
    server::HeaderList headers;
    if (!options_.api_key.empty())
      headers.emplace_back("Authorization", "Bearer " + options_.api_key);
    return client->call(method, target, body, headers);
  }

 private:
  const CtlOptions& options_;
};

int unreachable(const Error& error) {
  std::fprintf(stderr, "dormouse: %s. Is the server running? --url names it\n",
               error.message.c_str());
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitUnreachable;
}

int refused(const CtlOptions& options, const HttpResponse& response) {
  if (options.json)
    std::printf("%s\n", response.body.c_str());
  const auto body = parse_json(response.body);
  const Json* error = body ? body->find("error") : nullptr;
  std::string why = error == nullptr             ? response.body
                    : error->string() != nullptr ? *error->string()
                                                 : text(*error, "message");
  if (response.status == 401)
    why += ". Pass --api-key KEY, or set DORMOUSE_API_KEY";
  std::fprintf(stderr, "dormouse: the server refused (%d): %s\n", response.status, why.c_str());
  return kExitRefused;
}

int show(const CtlOptions& options, const Result<HttpResponse>& response,
         std::string (*table)(const Json&)) {
  if (!response)
    return unreachable(response.error());
  if (response->status != 200)
    return refused(options, *response);
  const auto body = parse_json(response->body);
  if (!body) {
    std::fprintf(stderr, "dormouse: the server's answer is not JSON; is it Dormouse?\n");
    return kExitFailed;
  }
  std::printf("%s", options.json ? (response->body + "\n").c_str() : table(*body).c_str());
  std::fflush(stdout);
  return kExitOk;
}

// Shows the phase that the engine is in, on a terminal, until the call has its answer.
void follow(const Remote& remote, const std::atomic<bool>& done) {
  bool shown = false;
  while (!done) {
    std::this_thread::sleep_for(kPoll);
    const auto response = remote.call("GET", "/status", kStatusTimeout);
    const auto status = response ? parse_json(response->body) : Json();
    if (!status || done)
      continue;
    shown = true;
    const std::string phase = text(*status, "transition_phase");
    std::fprintf(stderr, "\r%-12s %-12s %s", text(*status, "state").c_str(), phase.c_str(),
                 phase.empty() ? std::string(38, ' ').c_str()
                               : format_bar(number(*status, "transition_progress")).c_str());
  }
  if (shown)
    std::fprintf(stderr, "\r%64s\r", "");
}

int transition(const CtlOptions& options, const Remote& remote, std::string_view route,
               const Json& body) {
  std::atomic<bool> done = false;
  std::thread progress;
  if (isatty(STDERR_FILENO) == 1)
    progress = std::thread([&] { follow(remote, done); });
  const auto response = remote.call("POST", route, kCallTimeout, body.dump());
  done = true;
  if (progress.joinable())
    progress.join();
  return show(options, response, transition_table);
}

int top(const CtlOptions& options, const Remote& remote) {
  const bool terminal = isatty(STDOUT_FILENO) == 1 && !options.json;
  for (int i = 0; options.refreshes == 0 || i < options.refreshes; ++i) {
    if (i > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_seconds));
    const auto response = remote.call("GET", "/status", kStatusTimeout);
    if (terminal)
      std::printf("\x1b[H\x1b[2J");
    if (const int code = show(options, response, status_table); code != kExitOk)
      return code;
  }
  return kExitOk;
}

std::string tag_line(const std::string& tag, const Json& usage) {
  const auto bytes = [&](std::string_view name) {
    const double value = number(usage, name);
    return value == 0 ? std::string("-") : format_bytes(value);
  };
  return fmt::format("  {:<12} {:>12} {:>12} {:>12} {:>12}\n", tag, bytes("mapped"),
                     bytes("asleep"), bytes("backed_up"), bytes("leaked"));
}

// What a transition did to the memory, in words.
std::string moved(const Json& reply) {
  if (const double freed = number(reply, "freed_bytes"); freed > 0)
    return fmt::format("; {} given back", format_bytes(freed));
  const Json* receipt = reply.find("receipt");
  const Json* tags = receipt == nullptr ? nullptr : receipt->find("tags");
  double mapped = 0;
  if (tags != nullptr && tags->object() != nullptr) {
    for (const auto& [tag, bytes] : *tags->object())
      mapped += number(bytes, "mapped");
  }
  return mapped > 0 ? fmt::format("; {} mapped", format_bytes(mapped)) : "";
}

}  // namespace

std::string status_table(const Json& status) {
  std::string out = fmt::format("{:<10} {}", text(status, "model"), text(status, "state"));
  if (is_true(status, "is_sleeping"))
    out += fmt::format(", level {}", text(status, "sleep_level"));
  if (const std::string state = text(status, "state"); state == "loading" || state == "starting")
    out += " " + format_bar(number(status, "load_progress"));
  if (const std::string phase = text(status, "transition_phase"); !phase.empty())
    out += fmt::format(", {} {}", phase, format_bar(number(status, "transition_progress")));
  if (const std::string cause = text(status, "cause"); !cause.empty())
    out += ": " + cause;
  out += fmt::format("\n{:<10} {}\n", "requests",
                     fmt::format("{} running, {} waiting{}", text(status, "requests_running"),
                                 text(status, "requests_waiting"),
                                 is_true(status, "accepts_requests") ? "" : "; none accepted now"));
  out +=
      fmt::format("{:<10} {} of {} blocks of {} tokens\n", "KV cache", text(status, "blocks_used"),
                  text(status, "blocks_total"), text(status, "block_size"));
  out += fmt::format("\n  {:<12} {:>12} {:>12} {:>12} {:>12}\n", "memory", "mapped", "asleep",
                     "backed up", "leaked");
  const Json* memory = status.find("memory");
  if (memory != nullptr && memory->object() != nullptr) {
    for (const auto& [tag, usage] : *memory->object())
      out += tag_line(tag, usage);
  }
  return out;
}

std::string transition_table(const Json& reply) {
  std::string out = text(reply, "state");
  if (text(reply, "state") == "asleep")
    out += fmt::format(" at level {}", text(reply, "sleep_level"));
  if (!is_true(reply, "changed"))
    out += " already; nothing changed\n";
  else
    out += fmt::format(" after {}{}\n", format_duration(number(reply, "seconds")), moved(reply));
  if (const Json* tags = reply.find("tags"); tags != nullptr && tags->object() != nullptr) {
    for (const auto& [tag, state] : *tags->object())
      out += fmt::format("  {:<12} {}\n", tag, state.string() != nullptr ? *state.string() : "");
  }
  const Json* receipt = reply.find("receipt");
  const Json* phases = receipt == nullptr ? nullptr : receipt->find("phases_ms");
  if (phases != nullptr && phases->object() != nullptr) {
    for (const auto& [phase, milliseconds] : *phases->object())
      out += fmt::format("  {:<12} {}\n", phase, format_duration(milliseconds.as_double() / 1e3));
  }
  return out;
}

int run_ctl(int argc, char** argv) {
  const auto parsed = parse_ctl(argc, argv);
  if (const auto* code = std::get_if<ExitCode>(&parsed))
    return *code;
  const auto& options = std::get<CtlOptions>(parsed);
  const Remote remote(options);
  Json body{Json::Object()};
  switch (options.action) {
    case CtlAction::kStatus:
      return show(options, remote.call("GET", "/status", kStatusTimeout), status_table);
    case CtlAction::kTop:
      return top(options, remote);
    case CtlAction::kSleep:
      body.add("level", options.level);
      if (!options.mode.empty())
        body.add("mode", options.mode);
      if (options.timeout_ms >= 0)
        body.add("timeout_ms", options.timeout_ms);
      return transition(options, remote, "/sleep", body);
    case CtlAction::kWake:
      if (!options.tags.empty())
        body.add("tags", Json(Json::Array(options.tags.begin(), options.tags.end())));
      return transition(options, remote, "/wake_up", body);
  }
  return kExitFailed;
}

}  // namespace dormouse::cli
