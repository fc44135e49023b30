#include "server/metrics.h"

#include <fmt/core.h>

namespace dormouse::server {
namespace {

constexpr double kTtftBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                  0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                  20,    40,    80,   160,  320,  640,  1280, 2560};
constexpr double kItlBounds[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075,
                                 0.1,    0.15,  0.2,   0.3,   0.4,  0.5,   0.75, 1,
                                 2.5,    5,     7.5,   10,    20,   40,    80};
constexpr double kLatencyBounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokenBounds[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                   1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
constexpr double kCountBounds[] = {1, 2, 5, 10, 20, 50, 100};

}  // namespace

std::string label(std::string_view name, std::string_view value) {
  std::string out = fmt::format("{}=\"", name);
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\')
      out += '\\';
    out += c;
  }
  return out += '"';
}

void PrometheusText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void PrometheusText::line(std::string_view suffix, std::string_view more_labels, double value) {
  text_ += fmt::format("{}{}{{{}{}{}}} {}\n", name_, suffix, labels_,
                       labels_.empty() || more_labels.empty() ? "" : ",", more_labels, value);
}

void PrometheusText::series(double value, std::string_view more_labels) {
  line("", more_labels, value);
}

void PrometheusText::gauge(std::string_view name, std::string_view help, double value) {
  family(name, "gauge", help);
  series(value);
}

void PrometheusText::counter(std::string_view name, std::string_view help, double value) {
  family(name, "counter", help);
  series(value);
}

void PrometheusText::histogram(std::string_view name, std::string_view help,
                               const Histogram& histogram) {
  family(name, "histogram", help);
  histogram_series(histogram, "");
}

void PrometheusText::histogram_series(const Histogram& histogram, const std::string& more_labels) {
  const std::string before = more_labels.empty() ? "" : more_labels + ",";
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
    total += histogram.counts()[i];
    const std::string bound =
        i < histogram.bounds().size() ? fmt::format("{}", histogram.bounds()[i]) : "+Inf";
    line("_bucket", before + label("le", bound), static_cast<double>(total));
  }
  line("_sum", more_labels, histogram.sum());
  line("_count", more_labels, static_cast<double>(total));
}

RequestMetrics::RequestMetrics()
    : ttft_(kTtftBounds),
      itl_(kItlBounds),
      latency_(kLatencyBounds),
      queue_time_(kLatencyBounds),
      prefill_time_(kLatencyBounds),
      decode_time_(kLatencyBounds),
      prompt_tokens_(kTokenBounds),
      generation_tokens_(kTokenBounds),
      max_generation_tokens_(kTokenBounds),
      params_n_(kCountBounds),
      params_max_tokens_(kTokenBounds),
      finished_{{"abort", 0}, {"error", 0}, {"length", 0}, {"stop", 0}} {}

void RequestMetrics::accepted(std::uint32_t n, std::uint32_t max_tokens) {
  const std::lock_guard lock(mutex_);
  params_n_.observe(n);
  params_max_tokens_.observe(max_tokens);
}

void RequestMetrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  ttft_.observe(seconds);
}

void RequestMetrics::next_tokens(double seconds, std::size_t count) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < count; ++i)
    itl_.observe(seconds / static_cast<double>(count));
}

void RequestMetrics::finished(const Finished& request) {
  const std::lock_guard lock(mutex_);
  latency_.observe(request.seconds);
  queue_time_.observe(request.times.queued);
  prefill_time_.observe(request.times.prefill);
  decode_time_.observe(request.times.decode);
  prompt_tokens_.observe(request.prompt_tokens);
  generation_tokens_.observe(request.generation_tokens);
  ++finished_[std::string(request.reason)];
}

void RequestMetrics::longest_answer(std::uint32_t tokens) {
  const std::lock_guard lock(mutex_);
  max_generation_tokens_.observe(tokens);
}

void RequestMetrics::refused(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  ++refused_[std::string(reason)];
}

void RequestMetrics::write(PrometheusText& out) const {
  const std::lock_guard lock(mutex_);
  out.family("vllm:request_success_total", "counter", "Requests that ended, by reason.");
  for (const auto& [reason, count] : finished_)
    out.series(static_cast<double>(count), label("finished_reason", reason));
  out.family("dormouse:requests_refused_total", "counter", "Requests refused, by reason.");
  for (const auto& [reason, count] : refused_)
    out.series(static_cast<double>(count), label("reason", reason));
  out.histogram("vllm:time_to_first_token_seconds", "Time to the first token.", ttft_);
  out.histogram("vllm:inter_token_latency_seconds", "Time between two tokens.", itl_);
  out.histogram("vllm:e2e_request_latency_seconds", "Time from arrival to the end.", latency_);
  out.histogram("vllm:request_queue_time_seconds", "Time until a request was first computed.",
                queue_time_);
  out.histogram("vllm:request_prefill_time_seconds", "Time from there to the first token.",
                prefill_time_);
  out.histogram("vllm:request_decode_time_seconds", "Time from there to the end.", decode_time_);
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", prompt_tokens_);
  out.histogram("vllm:request_generation_tokens", "Tokens generated for a request.",
                generation_tokens_);
  out.histogram("vllm:request_max_num_generation_tokens",
                "Tokens of the longest of a request's n answers.", max_generation_tokens_);
  out.histogram("vllm:request_params_n", "The n of requests.", params_n_);
  out.histogram("vllm:request_params_max_tokens", "The max_tokens of requests.",
                params_max_tokens_);
}

}  // namespace dormouse::server
