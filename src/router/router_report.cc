#include "router/router_report.h"

#include <fmt/core.h>

#include "server/metrics.h"
#include "server/replies.h"

namespace dormouse::router {
namespace {

struct Total {
  const char* name;
  const char* help;
  std::atomic<std::uint64_t> Totals::*value;
};

constexpr Total kTotals[] = {
    {"requests", "Requests taken.", &Totals::requests},
    {"prefill_legs", "Prefill legs sent.", &Totals::prefill_legs},
    {"local_computations", "Prompts computed on the decode side.", &Totals::local_computations},
    {"retries", "Legs sent to one more instance.", &Totals::retries},
};

}  // namespace

server::HttpResponse health_ready(const InstancePool& pool) {
  const bool ready = pool.any_ready(Role::kDecode);
  Json body;
  body.add("ready", ready);
  body.add("reason", ready ? "" : "no decode instance is ready");
  server::HttpResponse response = server::json_response(body, ready ? 200 : 503);
  if (!ready)
    response.headers.emplace_back("Retry-After", "1");
  return response;
}

server::HttpResponse status(const InstancePool& pool, const Totals& totals) {
  Json instances = Json::Array();
  for (const Instance& instance : pool.snapshot()) {
    Json one;
    one.add("url", instance.url);
    one.add("role", to_string(instance.role));
    one.add("state", to_string(instance.state));
    one.add("cause", instance.cause);
    one.add("in_flight", instance.in_flight);
    one.add("requests", instance.requests);
    one.add("failures", instance.failures);
    one.add("refused_params", instance.refused_params);
    one.add("warning", instance.warning);
    instances.push(std::move(one));
  }
  Json sums;
  for (const Total& total : kTotals)
    sums.add(total.name, (totals.*total.value).load());
  return server::json_response(
      Json().add("instances", std::move(instances)).add("totals", std::move(sums)));
}

server::HttpResponse metrics(const InstancePool& pool, const Totals& totals) {
  server::PrometheusText out("");
  for (const Total& total : kTotals)
    out.counter(fmt::format("dormouse_router_{}_total", total.name), total.help,
                static_cast<double>((totals.*total.value).load()));
  const auto instances = pool.snapshot();
  const auto for_each = [&](const char* name, const char* type, const char* help, auto value) {
    out.family(fmt::format("dormouse_router_instance_{}", name), type, help);
    for (const Instance& instance : instances)
      out.series(static_cast<double>(value(instance)),
                 fmt::format("{},{}", server::label("url", instance.url),
                             server::label("role", to_string(instance.role))));
  };
  for_each("ready", "gauge", "1 if the instance takes requests.", [](const Instance& instance) {
    return instance.state == InstanceState::kReady ? 1 : 0;
  });
  for_each("in_flight", "gauge", "Legs under way.",
           [](const Instance& instance) { return instance.in_flight; });
  for_each("requests_total", "counter", "Legs sent to the instance.",
           [](const Instance& instance) { return instance.requests; });
  for_each("failures_total", "counter", "Legs that the instance did not serve.",
           [](const Instance& instance) { return instance.failures; });
  for_each("refused_params_total", "counter",
           "Legs whose kv_transfer_params the instance refused: it is misconfigured.",
           [](const Instance& instance) { return instance.refused_params; });
  for_each("misconfigured", "gauge", "1 if the instance cannot take part in transfers.",
           [](const Instance& instance) { return instance.warning.empty() ? 0 : 1; });
  return {.body = out.take(), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace dormouse::router
