#include "server/api_server.h"

#include <ctime>
#include <vector>

#include "base/check.h"
#include "server/alias_routes.h"
#include "server/control_routes.h"
#include "server/engine_json.h"
#include "server/metrics_route.h"
#include "server/openai_routes.h"
#include "server/replies.h"
#include "server/routes.h"
#include "server/status_routes.h"
#include "server/worker_pool.h"

#ifndef DORMOUSE_VERSION
#error "the build defines DORMOUSE_VERSION"
#endif

namespace dormouse::server {
namespace {

constexpr std::size_t kInferenceThreads = 2;
constexpr std::size_t kInferenceQueue = 1024;
constexpr std::size_t kControlThreads = 8;
constexpr std::size_t kWakeThreads = 2;
constexpr std::size_t kControlQueue = 64;
constexpr std::string_view kOneModel = "/v1/models/";

struct ControlRoute {
  std::string_view method;
  std::string_view path;
  Lane lane;
  ControlCall call;
};

constexpr ControlRoute kControlRoutes[] = {
    {"POST", "/sleep", Lane::kControl, server::sleep},
    {"POST", "/wake_up", Lane::kWake, wake_up},
    {"POST", "/pause", Lane::kControl, server::pause},
    {"POST", "/resume", Lane::kWake, resume},
    {"POST", "/release_kv_cache_memory", Lane::kControl, release_kv_cache_memory},
    {"POST", "/reset_prefix_cache", Lane::kControl, reset_prefix_cache},
    {"POST", "/reload_weights", Lane::kControl, reload_weights},
    {"POST", "/collective_rpc", Lane::kControl, collective_rpc},
    // What others call them.
    {"POST", "/wakeup", Lane::kWake, wake_up},
    {"POST", "/release_memory_occupation", Lane::kControl, release_memory_occupation},
    {"POST", "/resume_memory_occupation", Lane::kWake, resume_memory_occupation},
    {"POST", "/pause_generation", Lane::kControl, pause_generation},
    {"POST", "/continue_generation", Lane::kWake, continue_generation},
    {"POST", "/flush_cache", Lane::kControl, flush_cache},
    {"GET", "/flush_cache", Lane::kControl, flush_cache}};

class ApiServerImpl final : public ApiServer {
 public:
  ApiServerImpl(Engine& engine, ApiServerOptions options)
      : engine_(engine), options_(std::move(options)), started_(std::time(nullptr)) {
    add_status_routes();
    add_control_routes();
    add_openai_routes();
  }

  ~ApiServerImpl() override { stop(std::chrono::milliseconds(0)); }

  Status listen() {
    HttpServerOptions http = options_.http;
    http.loopback_only = options_.api_key.empty();
    DM_TRY_ASSIGN(http_, HttpServer::start(std::move(http), [this](auto request, auto writer) {
                    dispatch(std::move(request), std::move(writer));
                  }));
    return {};
  }

  std::uint16_t port() const override { return http_->port(); }

  void begin_drain() override { http_->begin_drain(); }

  void stop(std::chrono::milliseconds grace) override {
    if (http_)
      http_->stop(grace);
  }

 private:
  using Answer = std::function<HttpResponse(const HttpRequest&)>;

  void add(std::string_view method, std::string_view path, Lane lane, Answer answer,
           bool open = false) {
    routes_.push_back(Route{.method = method,
                            .path = path,
                            .lane = lane,
                            .open = open,
                            .handler = [answer = std::move(answer)](auto request, auto writer) {
                              writer->reply(answer(request));
                            }});
  }

  void add_status_routes() {
    const auto on_status = [this](auto answer) {
      return [this, answer](const HttpRequest&) { return answer(engine_.status()); };
    };
    const auto empty = [](const HttpRequest&) { return HttpResponse{.content_type = ""}; };
    add("GET", "/health", Lane::kIo, on_status(health), true);
    add("GET", "/health_generate", Lane::kIo, on_status(health), true);
    add("GET", "/ping", Lane::kIo, empty, true);
    add("POST", "/ping", Lane::kIo, empty, true);
    add("GET", "/health/ready", Lane::kIo, on_status(health_ready));
    for (const std::string_view path : {"/status", "/server_info", "/get_server_info"})
      add("GET", path, Lane::kIo, on_status([this](const EngineStatus& status) {
            return json_response(to_json(status, options_.kv_transfer));
          }));
    add("GET", "/v1/models", Lane::kIo, on_status([started = started_](const EngineStatus& status) {
          return models(status, started);
        }));
    add("GET", "/is_sleeping", Lane::kIo, [this](auto&) { return is_sleeping(engine_); });
    add("GET", "/is_paused", Lane::kIo, [this](auto&) { return is_paused(engine_); });
    add(
        "GET", "/version", Lane::kIo,
        [](auto&) { return json_response(Json().add("version", DORMOUSE_VERSION)); }, true);
    add_model_route();
  }

  void add_model_route() {
    add("GET", kOneModel, Lane::kIo, [this](const HttpRequest& request) {
      std::string_view name = std::string_view(request.path).substr(kOneModel.size());
      if (name.ends_with('/'))
        name.remove_suffix(1);
      return model(engine_.status(), started_, name);
    });
    routes_.back().prefix = true;
  }

  void add_control_routes() {
    for (const ControlRoute& route : kControlRoutes)
      add(route.method, route.path, route.lane,
          [this, call = route.call](const HttpRequest& request) {
            return run_control(call, engine_, request);
          });
  }

  void add_openai_routes() {
    const auto on_routes = [this](auto operation) {
      return
          [this, operation](const HttpRequest& request) { return (openai_.*operation)(request); };
    };
    add("POST", "/tokenize", Lane::kInference, on_routes(&OpenAiRoutes::tokenize));
    add("POST", "/detokenize", Lane::kInference, on_routes(&OpenAiRoutes::detokenize));
    add("POST", "/abort_requests", Lane::kInference, on_routes(&OpenAiRoutes::abort_requests));
    add("POST", "/abort_request", Lane::kInference, on_routes(&OpenAiRoutes::abort_request));
    add("GET", "/load", Lane::kIo, [this](auto&) { return openai_.load(); });
    add("GET", "/metrics", Lane::kIo,
        [this](auto&) { return metrics_response(engine_, openai_.metrics()); });
    const auto add_streaming = [this](std::string_view path, auto operation) {
      routes_.push_back(Route{.method = "POST",
                              .path = path,
                              .lane = Lane::kInference,
                              .handler = [this, operation](auto request, auto writer) {
                                (openai_.*operation)(std::move(request), std::move(writer));
                              }});
    };
    add_streaming("/v1/completions", &OpenAiRoutes::completions);
    add_streaming("/v1/chat/completions", &OpenAiRoutes::chat_completions);
  }

  void dispatch(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    std::string allowed;
    const Route* route = find_route(routes_, request, allowed);
    const bool open = route != nullptr && route->open;
    if (!open && !options_.api_key.empty() && !is_authorized(request, options_.api_key)) {
      writer->reply({.status = 401,
                     .body = R"({"error":"Unauthorized"})",
                     .headers = {{"WWW-Authenticate", "Bearer"}}});
      return;
    }
    if (!open && options_.api_key.empty() && is_from_foreign_page(request)) {
      writer->reply(error_response(403,
                                   "web pages of other hosts may not call a server without "
                                   "an API key"));
      return;
    }
    if (route == nullptr) {
      HttpResponse response = allowed.empty()
                                  ? error_response(404, "Not Found")
                                  : error_response(405, "Method Not Allowed; use " + allowed);
      if (!allowed.empty())
        response.headers.emplace_back("Allow", allowed);
      writer->reply(std::move(response));
      return;
    }
    if (route->lane == Lane::kIo)
      return route->handler(std::move(request), std::move(writer));
    const bool taken =
        pool(route->lane).submit([route, request = std::move(request), writer]() mutable {
          route->handler(std::move(request), std::move(writer));
        });
    if (!taken)
      writer->reply(error_response(503, "too many calls are waiting; try again"));
  }

  WorkerPool& pool(Lane lane) {
    return lane == Lane::kInference ? inference_ : lane == Lane::kWake ? wake_ : control_;
  }

  Engine& engine_;
  const ApiServerOptions options_;
  const std::int64_t started_;
  OpenAiRoutes openai_{engine_};
  std::vector<Route> routes_;
  WorkerPool inference_{kInferenceThreads, kInferenceQueue};
  WorkerPool control_{kControlThreads, kControlQueue};
  WorkerPool wake_{kWakeThreads, kControlQueue};
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<ApiServer>> ApiServer::start(Engine& engine, ApiServerOptions options) {
  auto server = std::make_unique<ApiServerImpl>(engine, std::move(options));
  DM_TRY(server->listen());
  return server;
}

}  // namespace dormouse::server
