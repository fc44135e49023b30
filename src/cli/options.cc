#include "cli/options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/check.h"
#include "cli/units.h"
#include "kv_connector/registry.h"
#include "server/http_client.h"

namespace dormouse::cli {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 done; 1 failed; 2 wrong command line; 3 no server answers; 4 the server "
    "refused;\n"
    "130 interrupted.";

ExitCode usage_error(const std::string& message) {
  std::fprintf(stderr, "dormouse: %s\n", message.c_str());
  return kExitUsage;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      flags.push_back("--" + name);
    for (const std::string& name : option->get_fnames())
      flags.push_back("--" + name);
  }
  for (const CLI::App* subcommand : app.get_subcommands(nullptr))
    flags.push_back(subcommand->get_name());
  return flags;
}

// Like CLI::Range, but not for what compares with nothing.
CLI::Validator seconds_between(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double value = 0;
        const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return fits ? std::string()
                    : fmt::format("{} is not a number of seconds from {} to {}", text, least, most);
      },
      "");
}

// One of a few words, which the help shows as they are written.
template <class Value>
CLI::Option* add_choice(CLI::App& app, const char* name, Value& target, const char* help,
                        const std::vector<std::pair<std::string, Value>>& choices) {
  std::string words;
  for (const auto& [word, value] : choices)
    words += (words.empty() ? "" : "|") + word;
  const auto to_value = [choices, words](std::string& text) {
    const auto found = std::ranges::find(choices, text, &std::pair<std::string, Value>::first);
    if (found == choices.end())
      return fmt::format("{} is not one of {}", text, words);
    text = std::to_string(static_cast<int>(found->second));
    return std::string();
  };
  return app.add_option(name, target, help)
      ->transform(CLI::Validator(to_value, ""))
      ->type_name(words);
}

CLI::Validator is_url() {
  return CLI::Validator(
      [](const std::string& text) {
        const auto address = server::parse_url(text);
        return address ? std::string() : address.error().message;
      },
      "");
}

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

// Words that no option took: an error that names the near one.
ExitCode check_extras(const CLI::App& app) {
  std::vector<std::string> extras = app.remaining(true);
  if (extras.empty())
    return kExitOk;
  const auto flag = std::find_if(extras.begin(), extras.end(),
                                 [](const std::string& word) { return word.starts_with("-"); });
  const std::string word = flag == extras.end() ? extras.front() : *flag;
  const std::string name = word.substr(0, word.find('='));
  const CLI::App* scope = &app;
  for (const CLI::App* chosen : app.get_subcommands())
    scope = chosen;
  std::string near = nearest(name, flags_of(*scope));
  if (near.empty() && scope != &app)
    near = nearest(name, flags_of(app));
  return usage_error(fmt::format("unknown argument {}{}", word,
                                 near.empty() ? ". See --help" : ". Did you mean " + near + "?"));
}

// Runs the parser; kExitOk: go on. `done` is set where help was printed.
ExitCode parse(CLI::App& app, int argc, char** argv, bool& done) {
  app.allow_extras();
  app.footer(kExitCodes);
  done = false;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    done = true;
    return static_cast<ExitCode>(app.exit(help));
  } catch (const CLI::ParseError& error) {
    if (const ExitCode extras = check_extras(app); extras != kExitOk)
      return extras;
    return usage_error(error.what());
  }
  return check_extras(app);
}

Status read_sizes(const std::string& kv_cache, const std::string& host_limit,
                  EngineConfig& config) {
  if (!kv_cache.empty()) {
    const auto bytes = parse_bytes(kv_cache, "--kv-cache-memory-bytes");
    if (!bytes)
      return tl::unexpected(bytes.error());
    config.kv_cache_memory_bytes = *bytes;
  }
  if (!host_limit.empty()) {
    const auto bytes = parse_bytes(host_limit, "--host-memory-limit");
    if (!bytes)
      return tl::unexpected(bytes.error());
    config.host_memory_limit = *bytes;
  }
  return {};
}

// Without a name, the model that tools/fetch_model.sh leaves in ${DORMOUSE_CACHE} or .cache.
Status find_model(std::string& path) {
  if (path.empty()) {
    const char* cache = std::getenv("DORMOUSE_CACHE");
    path = fmt::format("{}/SmolLM2-135M-Instruct.Q4_1.gguf", cache ? cache : ".cache");
  }
  if (!std::filesystem::exists(path))
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no model {}. Name a .gguf file, or fetch the small one with "
                            "tools/fetch_model.sh",
                            path));
  return {};
}

void add_memory_options(CLI::App& app, EngineConfig& engine, std::string& kv_cache,
                        std::string& host_limit) {
  const char* memory = "Sleep and memory";
  app.add_flag("--enable-sleep-mode,!--no-enable-sleep-mode", engine.enable_sleep_mode,
               "Allow /sleep and /wake_up [on]")
      ->group(memory);
  add_choice<WeightBackup>(
      app, "--weight-backup", engine.weight_backup,
      "The host copy of weights that a level-1 sleep makes: retain it after the wake-up, "
      "release it, or read the file again",
      {{"retain", WeightBackup::kRetain},
       {"release", WeightBackup::kRelease},
       {"file", WeightBackup::kFile}})
      ->default_str("retain")
      ->group(memory);
  app.add_option("--kv-cache-memory-bytes", kv_cache,
                 "Size of the KV cache, as 512M or 2GiB [room for max-num-seqs]")
      ->group(memory);
  app.add_option("--host-memory-limit", host_limit, "Most bytes for backups [what is available]")
      ->group(memory);
}

void add_scheduling_options(CLI::App& app, EngineConfig& engine) {
  const char* scheduling = "Scheduling";
  app.add_option("--max-model-len", engine.max_model_len, "Context, in tokens [the model's]")
      ->group(scheduling);
  app.add_option("--max-num-seqs", engine.max_num_seqs, "Sequences that run at the same time")
      ->check(CLI::Range(1U, 65536U))
      ->capture_default_str()
      ->group(scheduling);
  app.add_option("--max-num-batched-tokens", engine.max_num_batched_tokens, "Tokens in one step")
      ->check(CLI::Range(1U, 1U << 20))
      ->capture_default_str()
      ->group(scheduling);
  app.add_option("--block-size", engine.block_size, "Tokens in one KV block")
      ->check(CLI::Range(1U, 1024U))
      ->capture_default_str()
      ->group(scheduling);
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", engine.enable_prefix_caching,
               "Share the KV blocks of equal prompt beginnings [on]")
      ->group(scheduling);
}

void add_transfer_options(CLI::App& app, std::string& kv_transfer, bool& verify_kv) {
  const char* transfer = "KV transfer";
  app.add_option("--kv-transfer-config", kv_transfer,
                 "JSON: {\"kv_connector\":\"IpcConnector\",\"kv_role\":\"kv_both\",...} [none]")
      ->group(transfer);
  app.add_flag("--verify-kv", verify_kv, "Compare a checksum of every block that is transferred")
      ->group(transfer);
}

Status read_transfer(const std::string& json, bool verify_kv, KvTransferConfig& config) {
  if (json.empty() && verify_kv)
    return fail(ErrorCode::kInvalidArgument,
                "--verify-kv needs one that names a connector; without it nothing is transferred");
  if (json.empty())
    return {};
  DM_TRY_ASSIGN(config, parse_kv_transfer_config(json));
  config.verify_kv = config.verify_kv || verify_kv;
  DM_TRY_ASSIGN([[maybe_unused]] const KvConnectorClass known, find_kv_connector(config));
  return {};
}

void add_server_options(CLI::App& app, server::HttpServerOptions& http, std::string& api_key,
                        double& shutdown_seconds, LogLevel& log_level) {
  const char* network = "Server";
  app.add_option("--host", http.host, "Address; any but loopback needs --api-key")
      ->capture_default_str()
      ->group(network);
  app.add_option("--port", http.port, "0: the system picks one")
      ->capture_default_str()
      ->group(network);
  app.add_option("--api-key", api_key, "Key that every call but /health must carry")
      ->envname("DORMOUSE_API_KEY")
      ->group(network);
  app.add_option("--shutdown-timeout", shutdown_seconds,
                 "Seconds that requests under way get after SIGTERM")
      ->check(seconds_between(0, 86400))
      ->capture_default_str()
      ->group(network);
  add_choice<LogLevel>(app, "--log-level", log_level, "What is logged",
                       {{"debug", LogLevel::kDebug},
                        {"info", LogLevel::kInfo},
                        {"warning", LogLevel::kWarning},
                        {"error", LogLevel::kError},
                        {"off", LogLevel::kOff}})
      ->default_str("info")
      ->group(network);
}

}  // namespace

std::variant<ServeOptions, ExitCode> parse_serve(int argc, char** argv) {
  ServeOptions options;
  EngineConfig& engine = options.engine;
  options.api.http.port = 8000;
  std::string device = "host";
  CLI::App app("Serve a model over HTTP, with an API like OpenAI's", "dormouse serve");

  app.add_option("MODEL", engine.model, "The model: a .gguf file")->required();
  app.add_option("--served-model-name", engine.served_model_name,
                 "Its name in the API [the file's name]");
  app.add_option("--device", device, "Where it runs: host")->capture_default_str();
  app.add_option("--threads", engine.threads, "Threads that compute [one for each core]")
      ->check(CLI::Range(1U, 1024U));

  std::string kv_cache, host_limit;
  add_memory_options(app, engine, kv_cache, host_limit);
  add_scheduling_options(app, engine);
  std::string kv_transfer;
  bool verify_kv = false;
  add_transfer_options(app, kv_transfer, verify_kv);
  double shutdown_seconds = 30;
  add_server_options(app, options.api.http, options.api.api_key, shutdown_seconds,
                     options.log_level);

  bool done = false;
  if (const ExitCode code = parse(app, argc, argv, done); done || code != kExitOk)
    return code;
  if (const Status transfer = read_transfer(kv_transfer, verify_kv, engine.kv_transfer); !transfer)
    return usage_error("--kv-transfer-config: " + transfer.error().message);
  if (device != "host")
    return usage_error(
        fmt::format("--device {}: this build runs on the host's CPU only; use "
                    "--device host",
                    device));
  if (const Status sizes = read_sizes(kv_cache, host_limit, engine); !sizes)
    return usage_error(sizes.error().message);
  options.shutdown_timeout = to_milliseconds(shutdown_seconds);
  options.api.kv_transfer = engine.kv_transfer;
  return options;
}

std::variant<RouterOptions, ExitCode> parse_router(int argc, char** argv) {
  RouterOptions options;
  router::PdRouterOptions& router = options.router;
  router.http.port = 8080;
  CLI::App app(
      "Stand in front of several engines: one computes the prompt, another pulls its KV cache and\n"
      "answers. An instance that is asleep or gone is replaced by another, or by computing locally",
      "dormouse router");
  const char* instances = "Instances";
  app.add_option("--prefill", router.prefill, "URLs of those that compute prompts")
      ->required()
      ->check(is_url())
      ->type_name("URL")
      ->group(instances);
  app.add_option("--decode", router.decode, "URLs of those that answer")
      ->required()
      ->check(is_url())
      ->type_name("URL")
      ->group(instances);
  app.add_option("--backend-api-key", router.backend_api_key, "Their key")
      ->envname("DORMOUSE_BACKEND_API_KEY")
      ->group(instances);
  double prefill_seconds = 60, decode_seconds = 600;
  app.add_option("--prefill-timeout", prefill_seconds, "Seconds until another computes the prompt")
      ->check(seconds_between(0.001, 86400))
      ->capture_default_str()
      ->group(instances);
  app.add_option("--decode-timeout", decode_seconds, "Seconds that an answer may stand still")
      ->check(seconds_between(0.001, 86400))
      ->capture_default_str()
      ->group(instances);
  double shutdown_seconds = 30;
  add_server_options(app, router.http, router.api_key, shutdown_seconds, options.log_level);

  bool done = false;
  if (const ExitCode code = parse(app, argc, argv, done); done || code != kExitOk)
    return code;
  router.prefill_timeout = to_milliseconds(prefill_seconds);
  router.decode_timeout = to_milliseconds(decode_seconds);
  options.shutdown_timeout = to_milliseconds(shutdown_seconds);
  return options;
}

std::variant<CtlOptions, ExitCode> parse_ctl(int argc, char** argv) {
  CtlOptions options;
  CLI::App app("See and steer a running server", "dormouse ctl");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--url", options.url, "Address of the server")
      ->envname("DORMOUSE_URL")
      ->default_str("http://127.0.0.1:8000");
  app.add_option("--api-key", options.api_key, "Its key")->envname("DORMOUSE_API_KEY");
  app.add_flag("--json", options.json, "Print the server's answer as it is");

  const auto add_call = [&](const char* name, const char* route, const char* help) {
    CLI::App* call = app.add_subcommand(name, help);
    call->callback([&options, route] { options.route = route; });
    return call;
  };
  app.add_subcommand("status", "State, and bytes of each memory tag; of a router, its instances");
  CLI::App* sleep = add_call("sleep", "/sleep", "Put the engine to sleep");
  sleep
      ->add_option("--level", options.level,
                   "0: pause; 1: weights to host memory, KV cache dropped; 2: both dropped")
      ->check(CLI::Range(0, 2))
      ->capture_default_str();
  sleep->add_option("--mode", options.mode, "Requests under way: abort, wait or keep [abort]")
      ->check(CLI::IsMember({"abort", "wait", "keep"}));
  sleep->add_option("--timeout-ms", options.timeout_ms, "Longest wait of --mode wait")
      ->check(CLI::Range(std::int64_t{0}, (std::int64_t{1} << 31) - 1));
  sleep->add_flag("--force", options.force, "Go on without peers that do not let go of the memory");
  CLI::App* wake = add_call("wake", "/wake_up", "Wake the engine");
  wake->add_option("--tags", options.tags,
                   "Only these: weights, kv_cache, scratch; scheduling: end a pause alone [all]")
      ->delimiter(',');
  add_call("reload", "/reload_weights", "Read the weights again, as after a sleep at level 2");
  CLI::App* pause = add_call("pause", "/pause", "Stop computing; the memory stays");
  pause->add_option("--mode", options.mode, "Requests under way: abort, wait or keep [abort]")
      ->check(CLI::IsMember({"abort", "wait", "keep"}));
  add_call("resume", "/resume", "End a pause");
  add_call("release-kv", "/release_kv_cache_memory", "Give the KV cache's memory back, it alone")
      ->alias("release-kv-cache-memory");
  CLI::App* top = app.add_subcommand("top", "The status, again and again");
  top->add_option("--interval", options.interval_seconds, "Seconds between two looks")
      ->check(seconds_between(0.05, 3600))
      ->capture_default_str();
  top->add_option("--count", options.refreshes, "Looks before it ends [until interrupted]")
      ->check(CLI::Range(1, 1 << 30));
  top->preparse_callback([&options](std::size_t) { options.refreshes = 0; });
  for (CLI::App* subcommand : app.get_subcommands(nullptr))
    subcommand->allow_extras();

  bool done = false;
  if (const ExitCode code = parse(app, argc, argv, done); done || code != kExitOk)
    return code;
  if (options.url.empty())
    options.url = "http://127.0.0.1:8000";
  return options;
}

std::variant<DemoOptions, ExitCode> parse_demo(int argc, char** argv) {
  DemoOptions options;
  options.engine.max_model_len = 2048;
  std::string kv_cache = "128MiB";
  CLI::App app(
      "Put an engine to sleep and wake it in every way, and compare every answer, token ids and\n"
      "log probabilities, with the one before. What each sleep gives back is measured from outside",
      "dormouse demo");
  app.add_option("MODEL", options.engine.model, "The model [what tools/fetch_model.sh fetched]");
  app.add_flag("--json", options.json, "Print one line of JSON and nothing else");
  app.add_option("--prompts", options.prompts, "Prompts, 5 to over 512 tokens long")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "Tokens of each answer")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
  app.add_option("--cycles", options.cycles, "Cycles of each way to sleep")
      ->check(CLI::Range(1U, 100000U))
      ->capture_default_str();
  app.add_flag("--full", options.full,
               "Prefill and decode instances: every level, two cycles [level 1, one cycle]");
  app.add_option("--kv-cache-memory-bytes", kv_cache, "Size of the KV cache")
      ->capture_default_str();
  app.add_option("--threads", options.engine.threads, "Threads that compute [one for each core]")
      ->check(CLI::Range(1U, 1024U));

  bool done = false;
  if (const ExitCode code = parse(app, argc, argv, done); done || code != kExitOk)
    return code;
  if (const Status sizes = read_sizes(kv_cache, {}, options.engine); !sizes)
    return usage_error(sizes.error().message);
  if (const Status found = find_model(options.engine.model); !found)
    return usage_error(found.error().message);
  return options;
}

std::variant<BenchOptions, ExitCode> parse_bench(int argc, char** argv) {
  BenchOptions options;
  options.engine.max_model_len = 2048;
  std::string bytes;
  CLI::App app("Measure, with the machine's own limit or a peer beside each figure",
               "dormouse bench");
  app.require_subcommand(1);
  CLI::App* sleep = app.add_subcommand("sleep", "Sleep and wake-up, beside a bare copy");
  sleep->add_option("--bytes", bytes, "Instead of a model an allocation of this size, as 1GiB");
  CLI::App* serve = app.add_subcommand("serve", "Tokens per second, beside llama.cpp");
  serve->add_option(
      "--peer-server", options.peer_server,
      "Path of llama.cpp's llama-server, to be measured on the same file and threads");
  CLI::App* transfer =
      app.add_subcommand("transfer", "Pulling KV between two engines, beside memcpy");
  transfer->add_option("--bytes", bytes, "Of KV in one pull [1GiB]");
  for (CLI::App* kind : {sleep, serve, transfer}) {
    kind->add_option("MODEL", options.engine.model,
                     "The model [what tools/fetch_model.sh fetched]");
    kind->add_flag("--json", options.json, "Print one line of JSON and nothing else");
    kind->add_option("--rounds", options.rounds, "Rounds, of which the median counts")
        ->check(CLI::Range(1U, 1000U))
        ->capture_default_str();
    kind->add_option("--threads", options.engine.threads, "Threads [one for each core]")
        ->check(CLI::Range(1U, 1024U));
    kind->allow_extras();
  }

  bool done = false;
  if (const ExitCode code = parse(app, argc, argv, done); done || code != kExitOk)
    return code;
  options.kind = serve->parsed()      ? BenchKind::kServe
                 : transfer->parsed() ? BenchKind::kTransfer
                                      : BenchKind::kSleep;
  if (transfer->parsed() && bytes.empty())
    bytes = "1GiB";
  if (!bytes.empty()) {
    const auto size = parse_bytes(bytes, "--bytes");
    if (!size)
      return usage_error(size.error().message);
    options.bytes = *size;
  }
  if (sleep->parsed() && options.bytes > 0)
    return options;
  if (const Status found = find_model(options.engine.model); !found)
    return usage_error(found.error().message);
  return options;
}

}  // namespace dormouse::cli
