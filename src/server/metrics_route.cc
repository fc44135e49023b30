#include "server/metrics_route.h"

#include <fmt/core.h>

#include <algorithm>

#include "dormouse/metrics.h"

namespace dormouse::server {
namespace {

// vLLM's three words, and one of our own: it has none for weights that are there alone.
constexpr std::string_view kSleepStates[] = {"awake", "weights_offloaded", "discard_all",
                                             "weights_alone"};

std::string_view sleep_state(const EngineStatus& status) {
  const auto& asleep = status.tags_asleep;
  if (asleep.empty())
    return "awake";
  if (std::find(asleep.begin(), asleep.end(), kWeightsTag.name()) == asleep.end())
    return "weights_alone";
  return status.sleep_level >= 2 ? "discard_all" : "weights_offloaded";
}

void write_state(const EngineStatus& status, PrometheusText& out) {
  out.gauge("vllm:num_requests_running", "Requests being computed.", status.requests_running);
  out.gauge("vllm:num_requests_waiting", "Requests that wait.", status.requests_waiting);
  const double used =
      status.blocks_total == 0 ? 0 : static_cast<double>(status.blocks_used) / status.blocks_total;
  out.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", used);
  out.gauge("vllm:gpu_cache_usage_perc", "The same under its older name.", used);
  out.family("vllm:engine_sleep_state", "gauge", "1 for the state that the memory is in.");
  for (const std::string_view state : kSleepStates)
    out.series(state == sleep_state(status) ? 1 : 0, label("sleep_state", state));
  out.family("vllm:cache_config_info", "gauge", "How the KV cache is laid out.");
  out.series(1, fmt::format("{},{}", label("block_size", std::to_string(status.block_size)),
                            label("num_gpu_blocks", std::to_string(status.blocks_total))));
  out.family("dormouse:engine_state", "gauge", "1 for the state that the engine is in.");
  out.series(1, label("state", to_string(status.state)));
  out.gauge("dormouse:accepts_requests", "1 if a request would be served now.",
            status.accepts_requests ? 1 : 0);
}

void write_memory(const EngineStatus& status, PrometheusText& out) {
  out.family("dormouse:mem_tag_bytes", "gauge", "Bytes of each memory tag, by where they are.");
  for (const auto& [tag, usage] : status.memory) {
    const std::pair<std::string_view, std::uint64_t> states[] = {{"mapped", usage.mapped},
                                                                 {"asleep", usage.asleep},
                                                                 {"backed_up", usage.backed_up},
                                                                 {"leaked", usage.leaked}};
    for (const auto& [state, bytes] : states)
      out.series(static_cast<double>(bytes),
                 fmt::format("{},{}", label("tag", tag), label("state", state)));
  }
  out.family("dormouse:mem_tag_generation", "gauge", "How often each tag has been mapped.");
  for (const auto& [tag, usage] : status.memory)
    out.series(static_cast<double>(usage.generation), label("tag", tag));
  out.gauge("dormouse:last_transition_seconds", "How long the last sleep or wake-up took.",
            status.last_transition.total_ms / 1e3);
}

void write_counters(const EngineCounters& counters, PrometheusText& out) {
  const auto count = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  count("vllm:prompt_tokens_total", "Prompt tokens computed or found.", counters.prompt_tokens);
  count("vllm:generation_tokens_total", "Tokens generated.", counters.generation_tokens);
  count("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
        counters.prefix_cache_queries);
  count("vllm:prefix_cache_hits_total", "Of those, found.", counters.prefix_cache_hits);
  count("vllm:gpu_prefix_cache_queries_total", "The same under its older name.",
        counters.prefix_cache_queries);
  count("vllm:gpu_prefix_cache_hits_total", "The same under its older name.",
        counters.prefix_cache_hits);
  count("vllm:external_prefix_cache_queries_total", "Prompt tokens looked up in the KV connector.",
        counters.external_cache_queries);
  count("vllm:external_prefix_cache_hits_total", "Of those, found.", counters.external_cache_hits);
  count("vllm:num_preemptions_total", "Requests preempted.", counters.preemptions);
  count("dormouse:steps_total", "Model steps.", counters.steps);
  out.histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", counters.step_tokens);
  count("dormouse:kv_transferred_tokens_total", "Prompt tokens loaded through the KV connector.",
        counters.transferred_tokens);
  count("dormouse:kv_recomputed_tokens_total", "Prompt tokens computed because a load failed.",
        counters.recomputed_tokens);
}

void write_operations(const EngineCounters& counters, PrometheusText& out) {
  constexpr std::string_view kNames[] = {"sleep", "release_kv_cache_memory", "wake"};
  const auto each = [&](const auto& write) {
    for (std::size_t i = 0; i < counters.operations.size(); ++i)
      write(label("operation", kNames[i]), counters.operations[i]);
  };
  out.family("vllm:rl_sleep_mode_operations_total", "counter", "Sleeps and wake-ups, by outcome.");
  each([&](const std::string& operation, const OperationCounters& of) {
    out.series(static_cast<double>(of.succeeded), operation + "," + label("status", "success"));
    out.series(static_cast<double>(of.failed), operation + "," + label("status", "error"));
  });
  out.family("vllm:rl_sleep_mode_in_flight", "gauge", "1 while such a call is carried out.");
  each([&](const std::string& operation, const OperationCounters& of) {
    out.series(of.in_flight ? 1 : 0, operation);
  });
  out.family("vllm:rl_sleep_mode_duration_seconds", "histogram", "How long they took.");
  each([&](const std::string& operation, const OperationCounters& of) {
    out.histogram_series(of.seconds, operation);
  });
}

constexpr std::string_view kBucket = "_bucket{";

struct Series {
  std::string_view family;
  std::string_view suffix;  // of a histogram's line
  std::string_view labels;
};

// `family`: that of the line before. Sums and counts of a histogram follow its buckets.
Series series_of(std::string_view name, std::string_view family) {
  if (const auto bucket = name.find(kBucket); bucket != name.npos)
    return {name.substr(0, bucket), "_bucket",
            name.substr(bucket + kBucket.size(), name.size() - bucket - kBucket.size() - 1)};
  for (const std::string_view suffix : {"_sum", "_count"})
    if (name.ends_with(suffix) && name.substr(0, name.size() - suffix.size()) == family)
      return {family, suffix, {}};
  return {name, {}, {}};
}

// The stats of one family lie together.
void write_family(std::span<const KvConnectorStats::value_type> stats, const std::string& name,
                  std::string_view help, PrometheusText& out) {
  const Series first = series_of(stats.front().first, {});
  const bool counts = first.family.ends_with("_total");
  out.family(name, !first.suffix.empty() ? "histogram" : counts ? "counter" : "gauge", help);
  for (const auto& [each, value] : stats) {
    const Series series = series_of(each, first.family);
    out.line(series.suffix, series.labels, value);
  }
}

// What the connector counts, and the part of it that vLLM counts for its own under other names.
void write_connector(const KvConnectorStats& stats, PrometheusText& out) {
  constexpr std::pair<std::string_view, const char*> kVllmNames[] = {
      {"kv_failed_transfers_total", "vllm:nixl_num_failed_transfers_total"},
      {"kv_expired_leases_total", "vllm:nixl_num_kv_expired_reqs_total"},
      {"kv_failed_notifications_total", "vllm:nixl_num_failed_notifications_total"},
      {"kv_transfer_bytes", "vllm:nixl_bytes_transferred"},
      {"kv_transfer_descriptors", "vllm:nixl_num_descriptors"},
      {"kv_transfer_seconds", "vllm:nixl_xfer_time_seconds"},
      {"kv_transfer_post_seconds", "vllm:nixl_post_time_seconds"}};
  for (std::size_t from = 0, to = 0; from < stats.size(); from = to) {
    const std::string_view family = series_of(stats[from].first, {}).family;
    while (to < stats.size() && series_of(stats[to].first, family).family == family)
      ++to;
    const auto part = std::span(stats).subspan(from, to - from);
    write_family(part, fmt::format("dormouse:{}", family), "Of the KV connector.", out);
    for (const auto& [ours, theirs] : kVllmNames)
      if (family == ours)
        write_family(part, theirs, "The same under vLLM's name.", out);
  }
}

void write_components(const EngineStatus& status, PrometheusText& out) {
  const auto asleep = [&](const MemoryTag& tag) {
    const auto& tags = status.tags_asleep;
    return std::find(tags.begin(), tags.end(), tag.name()) != tags.end();
  };
  const bool weights = asleep(kWeightsTag);
  const bool offloaded = weights && status.weights_valid;
  out.family("vllm:engine_sleep_component_state", "gauge", "1 for the state of each component.");
  const auto state = [&](std::string_view component, std::string_view name, bool is) {
    out.series(is ? 1 : 0, label("component", component) + "," + label("state", name));
  };
  state("scheduler", "running", !status.is_paused);
  state("scheduler", "paused", status.is_paused);
  state("weights", "resident", !weights);
  state("weights", "offloaded", offloaded);
  state("weights", "discarded", weights && !offloaded);
  state("kv_cache", "resident", !asleep(kKvCacheTag));
  state("kv_cache", "discarded", asleep(kKvCacheTag));
}

}  // namespace

HttpResponse metrics_response(const Engine& engine, const RequestMetrics& requests) {
  const EngineStatus status = engine.status();
  PrometheusText out(
      fmt::format("{},{}", label("model_name", status.served_model_name), label("engine", "0")));
  write_state(status, out);
  write_memory(status, out);
  write_components(status, out);
  const EngineCounters counters = engine.counters();
  write_counters(counters, out);
  write_operations(counters, out);
  write_connector(counters.connector, out);
  requests.write(out);
  return {.body = out.take(), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace dormouse::server
