#include "router/pd_router.h"

#include "base/check.h"
#include "router/health_poller.h"
#include "router/legs.h"
#include "router/routed_request.h"
#include "router/router_report.h"
#include "server/replies.h"
#include "server/routes.h"
#include "server/worker_pool.h"

namespace dormouse::router {
namespace {

using server::HttpRequest;
using server::HttpResponse;
using server::Lane;
using server::ResponseWriter;
using server::Route;
using Writer = std::shared_ptr<ResponseWriter>;

constexpr std::chrono::milliseconds kModelsTimeout{10'000};

class PdRouterImpl final : public PdRouter {
 public:
  PdRouterImpl(PdRouterOptions options, std::vector<Instance> instances)
      : options_(std::move(options)),
        pool_(std::move(instances)),
        poller_(pool_, options_.backend_api_key, options_.poll_interval),
        backends_{.pool = pool_,
                  .poller = poller_,
                  .totals = totals_,
                  .api_key = options_.backend_api_key,
                  .prefill_timeout = options_.prefill_timeout,
                  .decode_timeout = options_.decode_timeout},
        workers_(options_.max_concurrent, options_.max_queued) {
    add(
        "GET", "/health", [](auto&) { return server::json_response(Json().add("status", "ok")); },
        true);
    add("GET", "/health/ready", [this](auto&) { return health_ready(pool_); });
    add("GET", "/status", [this](auto&) { return status(pool_, totals_); });
    add("GET", "/metrics", [this](auto&) { return metrics(pool_, totals_); });
    add_blocking("GET", "/v1/models", [this](auto&, auto& writer, auto& cancellation) {
      writer->reply(models(cancellation));
    });
    for (const char* path : {"/v1/completions", "/v1/chat/completions"})
      add_blocking("POST", path, [this](auto& request, auto& writer, auto& cancellation) {
        RoutedRequest(backends_, std::move(request), writer, cancellation).run();
      });
  }

  ~PdRouterImpl() override { stop(std::chrono::milliseconds(0)); }

  Status listen() {
    server::HttpServerOptions http = options_.http;
    http.loopback_only = options_.api_key.empty();
    DM_TRY_ASSIGN(http_,
                  server::HttpServer::start(std::move(http), [this](auto request, auto writer) {
                    dispatch(std::move(request), std::move(writer));
                  }));
    return {};
  }

  std::uint16_t port() const override { return http_->port(); }

  void stop(std::chrono::milliseconds grace) override {
    if (http_)
      http_->stop(grace);
  }

 private:
  template <class Answer>
  void add(std::string_view method, std::string_view path, Answer answer, bool open = false) {
    routes_.push_back(
        Route{.method = method,
              .path = path,
              .open = open,
              .handler = [answer](auto request, auto writer) { writer->reply(answer(request)); }});
  }

  // The client is watched from here on, while its request waits for a thread too.
  template <class Operation>
  void add_blocking(std::string_view method, std::string_view path, Operation operation) {
    const auto handler = [this, operation](HttpRequest request, Writer writer) {
      const auto cancellation = std::make_shared<Cancellation>();
      writer->on_disconnect([cancellation] { cancellation->cancel(); });
      const bool taken = workers_.submit(
          [operation, cancellation, request = std::move(request), writer]() mutable {
            if (!cancellation->cancelled())
              operation(request, writer, *cancellation);
          });
      if (!taken)
        writer->reply(server::error_response(503, "too many requests are waiting; try again"));
    };
    routes_.push_back(Route{.method = method, .path = path, .handler = handler});
  }

  void dispatch(HttpRequest request, Writer writer) {
    std::string allowed;
    const Route* route = server::find_route(routes_, request, allowed);
    const bool open = route != nullptr && route->open;
    if (!open && !options_.api_key.empty() && !server::is_authorized(request, options_.api_key))
      return writer->reply({.status = 401,
                            .body = R"({"error":"Unauthorized"})",
                            .headers = {{"WWW-Authenticate", "Bearer"}}});
    if (!open && options_.api_key.empty() && server::is_from_foreign_page(request))
      return writer->reply(server::error_response(
          403, "web pages of other hosts may not call a server without an API key"));
    if (route != nullptr)
      return route->handler(std::move(request), std::move(writer));
    if (allowed.empty())
      return writer->reply(server::error_response(404, "Not Found"));
    HttpResponse response = server::error_response(405, "Method Not Allowed; use " + allowed);
    response.headers.emplace_back("Allow", allowed);
    writer->reply(std::move(response));
  }

  HttpResponse models(Cancellation& cancellation) {
    InstancePool::Turn turn = pool_.take(Role::kDecode, Choice::kAnyIfNoneIsReady, {});
    server::HttpClient client;
    const Cancellation::Watch watch(cancellation, client);
    client.set_deadline(std::chrono::steady_clock::now() + kModelsTimeout);
    client.set_max_body_bytes(1 << 20);
    if (const Status opened = client.open(turn.address(), kModelsTimeout); !opened)
      return server::error_response(opened.error(), server::Audience::kOperator);
    auto response = client.call("GET", "/v1/models", {}, authorization(options_.backend_api_key));
    if (!response)
      return server::error_response(response.error(), server::Audience::kOperator);
    if (response->status == 401)
      return server::error_response(502, kLockedCause);
    response->headers.clear();
    return std::move(*response);
  }

  const PdRouterOptions options_;
  InstancePool pool_;
  Totals totals_;
  HealthPoller poller_;
  const Backends backends_;
  std::vector<Route> routes_;
  server::WorkerPool workers_;
  std::unique_ptr<server::HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<PdRouter>> PdRouter::start(PdRouterOptions options) {
  std::vector<Instance> instances;
  DM_TRY_ASSIGN(instances, InstancePool::parse(options.prefill, options.decode));
  auto router = std::make_unique<PdRouterImpl>(std::move(options), std::move(instances));
  DM_TRY(router->listen());
  return router;
}

}  // namespace dormouse::router
