#include "cli/ctl.h"

#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <optional>
#include <thread>

#include "base/check.h"
#include "cli/ctl_tables.h"
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
                                                 : text_of(*error, "message");
  if (response.status == 401)
    why += ". Pass --api-key KEY, or set DORMOUSE_API_KEY";
  std::fprintf(stderr, "dormouse: the server refused (%d): %s\n", response.status,
               in_ctl_words(why).c_str());
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

Json body_of(const CtlOptions& options) {
  Json body{Json::Object()};
  if (options.route == "/sleep")
    body.add("level", options.level);
  if (!options.mode.empty())
    body.add("mode", options.mode);
  if (options.timeout_ms >= 0)
    body.add("timeout_ms", options.timeout_ms);
  if (options.force)
    body.add("force", true);
  if (!options.tags.empty())
    body.add("tags", Json(Json::Array(options.tags.begin(), options.tags.end())));
  return body;
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
    const std::string phase = text_of(*status, "transition_phase");
    const Json* progress = status->find("transition_progress");
    std::fprintf(stderr, "\r%-12s %-12s %s", text_of(*status, "state").c_str(), phase.c_str(),
                 phase.empty() || progress == nullptr ? std::string(38, ' ').c_str()
                                                      : format_bar(progress->as_double()).c_str());
  }
  if (shown)
    std::fprintf(stderr, "\r%64s\r", "");
}

// The answer if the server is a router, which has no memory of its own; otherwise nothing.
std::optional<int> refuse_router(const Remote& remote) {
  const auto response = remote.call("GET", "/status", kStatusTimeout);
  const auto status = response ? parse_json(response->body) : Json();
  if (!status || !is_router(*status))
    return std::nullopt;
  std::string urls;
  for (const Json& each : *status->find("instances")->array())
    urls += (urls.empty() ? "--url " : ", --url ") + text_of(each, "url");
  std::fprintf(stderr, "dormouse: this is a router; name an instance: %s\n", urls.c_str());
  return kExitRefused;
}

int transition(const CtlOptions& options, const Remote& remote) {
  std::atomic<bool> done = false;
  std::thread progress;
  if (isatty(STDERR_FILENO) == 1)
    progress = std::thread([&] { follow(remote, done); });
  const auto response = remote.call("POST", options.route, kCallTimeout, body_of(options).dump());
  done = true;
  if (progress.joinable())
    progress.join();
  if (response && response->status == 404) {
    if (const auto code = refuse_router(remote))
      return *code;
  }
  return show(options, response, transition_table);
}

int watch(const CtlOptions& options, const Remote& remote) {
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

}  // namespace

int run_ctl(int argc, char** argv) {
  const auto parsed = parse_ctl(argc, argv);
  if (const auto* code = std::get_if<ExitCode>(&parsed))
    return *code;
  const auto& options = std::get<CtlOptions>(parsed);
  const Remote remote(options);
  return options.route.empty() ? watch(options, remote) : transition(options, remote);
}

}  // namespace dormouse::cli
