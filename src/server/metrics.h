// What the server itself measures of its requests, and Prometheus text.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "dormouse/metrics.h"
#include "dormouse/request.h"

namespace dormouse::server {

// Writes the text format 0.0.4. Every series carries the labels given here, then its own.
class PrometheusText {
 public:
  explicit PrometheusText(std::string labels) : labels_(std::move(labels)) {}

  // Opens a family; its series follow.
  void family(std::string_view name, std::string_view type, std::string_view help);
  void series(double value, std::string_view more_labels = {});
  // One line of a histogram: `suffix` is _bucket, _sum or _count.
  void line(std::string_view suffix, std::string_view more_labels, double value);
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram);
  // One of several histograms of the family that was opened last.
  void histogram_series(const Histogram& histogram, const std::string& more_labels);
  // A family of one series.
  void gauge(std::string_view name, std::string_view help, double value);
  void counter(std::string_view name, std::string_view help, double value);

  std::string take() { return std::move(text_); }

 private:
  const std::string labels_;
  std::string name_;
  std::string text_;
};
// name="value", the value escaped.
std::string label(std::string_view name, std::string_view value);

class RequestMetrics {
 public:
  struct Finished {
    std::string_view reason;
    double seconds = 0;
    std::uint32_t prompt_tokens = 0;
    std::uint32_t generation_tokens = 0;
    RequestTimes times = {};
  };

  RequestMetrics();
  void accepted(std::uint32_t n, std::uint32_t max_tokens);
  void first_token(double seconds);
  void next_tokens(double seconds, std::size_t count);
  void finished(const Finished& request);
  // The most tokens that one of a request's n answers has.
  void longest_answer(std::uint32_t tokens);
  void refused(std::string_view reason);

  void write(PrometheusText& out) const;

 private:
  mutable std::mutex mutex_;
  Histogram ttft_;
  Histogram itl_;
  Histogram latency_;
  Histogram queue_time_;
  Histogram prefill_time_;
  Histogram decode_time_;
  Histogram prompt_tokens_;
  Histogram generation_tokens_;
  Histogram max_generation_tokens_;
  Histogram params_n_;
  Histogram params_max_tokens_;
  std::map<std::string, std::uint64_t, std::less<>> finished_;
  std::map<std::string, std::uint64_t, std::less<>> refused_;
};

}  // namespace dormouse::server
