#include "cli/pd_cluster.h"

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>

#include "base/check.h"

namespace dormouse::cli {
namespace {

using server::HttpClient;

constexpr std::chrono::milliseconds kPatience{60'000};
constexpr std::uint16_t kProducerPort = 1;  // names sockets in a folder of its own

Json ipc_config(const std::string& folder) {
  Json extra;
  extra.add("ipc_dir", folder);
  extra.add("peers", Json().push(fmt::format("127.0.0.1:{}", kProducerPort)));
  return extra;
}

Json connector_config(const std::string& connector, const std::string& folder) {
  if (connector == "IpcConnector")
    return ipc_config(folder);
  Json offload = Json().add("cpu_bytes_to_use", std::uint64_t{256} << 20);
  if (connector == "OffloadingConnector")
    return offload;
  return Json().add("connectors",
                    Json()
                        .push(Json()
                                  .add("kv_connector", "IpcConnector")
                                  .add("kv_connector_extra_config", ipc_config(folder)))
                        .push(Json()
                                  .add("kv_connector", "OffloadingConnector")
                                  .add("kv_connector_extra_config", std::move(offload))));
}

Status bad_answer(const server::HttpResponse& response) {
  return fail(ErrorCode::kUnavailable,
              fmt::format("answered {}: {}", response.status, response.body.substr(0, 500)));
}

}  // namespace

Result<server::HttpResponse> Instance::call(std::string_view method, std::string_view target,
                                            const std::string& body) const {
  DM_TRY_ASSIGN(HttpClient client, HttpClient::connect(address_, kPatience));
  return client.call(method, target, body);
}

Result<Json> Instance::post(std::string_view target, const std::string& body) const {
  auto response = call("POST", target, body);
  if (response && response->status != 200)
    response = tl::unexpected(bad_answer(*response).error());
  if (!response)
    return fail(response.error().code,
                fmt::format("{}: POST {}: {}", name_, target, response.error().message));
  return response->body.empty() ? Json() : parse_json(response->body);
}

Result<double> Instance::metric(std::string_view family) const {
  DM_TRY_ASSIGN(const server::HttpResponse response, call("GET", "/metrics"));
  double sum = 0;
  std::string_view text = response.body;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.starts_with(family) && line.size() > family.size() &&
        (line[family.size()] == '{' || line[family.size()] == ' '))
      sum += std::strtod(std::string(line.substr(line.rfind(' ') + 1)).c_str(), nullptr);
  }
  return sum;
}

Result<std::unique_ptr<Instance>> PdCluster::serve(const ClusterOptions& options,
                                                   const std::string& name, const std::string& role,
                                                   const std::string& policy) {
  server::Address address;
  DM_TRY_ASSIGN(address.port, free_port());
  Json config;
  config.add("kv_connector", options.connector);
  config.add("kv_role", role);
  config.add("engine_id", name);
  config.add("kv_port", kProducerPort);
  config.add("kv_load_failure_policy", policy);
  config.add("kv_connector_extra_config", connector_config(options.connector, folder_));
  std::vector<std::string> words = {options.program,
                                    "serve",
                                    options.model,
                                    "--port",
                                    std::to_string(address.port),
                                    "--max-model-len",
                                    "1024",
                                    "--kv-cache-memory-bytes",
                                    options.kv_cache_bytes,
                                    "--kv-transfer-config",
                                    config.dump()};
  if (options.threads > 0)
    words.insert(words.end(), {"--threads", std::to_string(options.threads)});
  DM_TRY_ASSIGN(auto process, ChildProcess::start(std::move(words)));
  return std::make_unique<Instance>(name, std::move(process), address);
}

Result<std::unique_ptr<PdCluster>> PdCluster::start(const ClusterOptions& options) {
  std::unique_ptr<PdCluster> cluster(new PdCluster());
  std::string folder = std::filesystem::temp_directory_path() / "dormouse-demo-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    return fail(ErrorCode::kInternal, "cannot make a folder " + folder);
  cluster->folder_ = folder;

  DM_TRY_ASSIGN(cluster->prefill_, cluster->serve(options, "prefill", "kv_producer", "fail"));
  DM_TRY_ASSIGN(cluster->decode_, cluster->serve(options, "decode", "kv_consumer", "fail"));
  DM_TRY_ASSIGN(cluster->recomputing_,
                cluster->serve(options, "recompute", "kv_consumer", "recompute"));
  for (Instance* instance : {&cluster->prefill(), &cluster->decode(), &cluster->recomputing()})
    DM_TRY(wait_until_healthy(instance->process(), instance->address(), "/health/ready"));

  server::Address address;
  DM_TRY_ASSIGN(address.port, free_port());
  const auto url = [](const Instance& instance) {
    return fmt::format("http://127.0.0.1:{}", instance.address().port);
  };
  DM_TRY_ASSIGN(auto process,
                ChildProcess::start({options.program, "router", "--prefill",
                                     url(cluster->prefill()), "--decode", url(cluster->decode()),
                                     "--port", std::to_string(address.port)}));
  cluster->router_ = std::make_unique<Instance>("router", std::move(process), address);
  DM_TRY(wait_until_healthy(cluster->router().process(), address, "/health/ready"));
  DM_TRY(cluster->wait_until_routed());
  return cluster;
}

PdCluster::~PdCluster() {
  router_.reset();
  decode_.reset();
  recomputing_.reset();
  prefill_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Status PdCluster::wait_until_routed() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    DM_TRY_ASSIGN(const server::HttpResponse response, router_->call("GET", "/status"));
    DM_TRY_ASSIGN(const Json status, parse_json(response.body));
    const Json* instances = status.find("instances");
    bool ready = instances != nullptr && instances->array() != nullptr;
    if (ready)
      for (const Json& instance : *instances->array()) {
        const Json* state = instance.find("state");
        ready =
            ready && state != nullptr && state->string() != nullptr && *state->string() == "ready";
      }
    if (ready)
      return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return fail(ErrorCode::kDeadlineExceeded, "the router does not see its instances ready");
}

std::string completion_body(const std::vector<TokenId>& prompt, std::uint32_t tokens,
                            const Json& kv_transfer_params) {
  Json body;
  body.add("prompt", Json(Json::Array(prompt.begin(), prompt.end())));
  body.add("max_tokens", tokens);
  body.add("temperature", 0);
  body.add("ignore_eos", true);
  body.add("logprobs", 0);
  body.add("return_token_ids", true);
  if (!kv_transfer_params.is_null())
    body.add("kv_transfer_params", kv_transfer_params);
  return body.dump();
}

Result<Answer> read_answer(const server::HttpResponse& response) {
  if (response.status != 200)
    return tl::unexpected(bad_answer(response).error());
  DM_TRY_ASSIGN(const Json body, parse_json(response.body));
  const Json* choices = body.find("choices");
  const auto* list = choices == nullptr ? nullptr : choices->array();
  if (list == nullptr || list->empty())
    return tl::unexpected(bad_answer(response).error());
  const Json* ids = list->front().find("token_ids");
  const Json* logprobs = list->front().find("logprobs");
  const Json* values = logprobs == nullptr ? nullptr : logprobs->find("token_logprobs");
  if (ids == nullptr || ids->array() == nullptr || values == nullptr || values->array() == nullptr)
    return tl::unexpected(bad_answer(response).error());
  Answer answer;
  for (const Json& id : *ids->array())
    answer.tokens.push_back(static_cast<TokenId>(id.as_integer()));
  for (const Json& value : *values->array())
    answer.logprobs.push_back(static_cast<float>(value.as_double()));
  return answer;
}

Result<std::vector<Answer>> ask(const Instance& instance,
                                const std::vector<std::vector<TokenId>>& prompts,
                                std::uint32_t tokens) {
  std::vector<std::future<Result<Answer>>> replies;
  for (const std::vector<TokenId>& prompt : prompts)
    replies.push_back(std::async(std::launch::async, [&]() -> Result<Answer> {
      DM_TRY_ASSIGN(const server::HttpResponse response,
                    instance.call("POST", "/v1/completions", completion_body(prompt, tokens)));
      return read_answer(response);
    }));
  std::vector<Answer> answers;
  Status first;
  for (auto& reply : replies) {
    auto answer = reply.get();
    if (answer)
      answers.push_back(std::move(*answer));
    else
      keep_first(first, tl::unexpected(answer.error()));
  }
  if (!first)
    return tl::unexpected(first.error());
  return answers;
}

}  // namespace dormouse::cli
