// A prefill instance, two decode instances and a router on loopback, each a process of its own.
//
// Owns:    the processes, and the folder where they meet.
// Threads: one, but `ask` uses one of its own for each prompt.
// Errors:  kUnavailable (a process ended or does not answer), or what an instance answered.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/child_process.h"
#include "cli/demo_answers.h"

namespace dormouse::cli {

// An engine that serves.
class Instance {
 public:
  Instance(std::string name, std::unique_ptr<ChildProcess> process, server::Address address)
      : name_(std::move(name)), process_(std::move(process)), address_(address) {}

  const std::string& name() const { return name_; }
  pid_t pid() const { return process_->pid(); }
  ChildProcess& process() { return *process_; }
  const server::Address& address() const { return address_; }

  Result<server::HttpResponse> call(std::string_view method, std::string_view target,
                                    const std::string& body = {}) const;
  // The same; what is not 200 is an error.
  Result<Json> post(std::string_view target, const std::string& body = {}) const;
  // The sum of a family's series in /metrics; 0 if there is none.
  Result<double> metric(std::string_view family) const;

 private:
  std::string name_;
  std::unique_ptr<ChildProcess> process_;
  server::Address address_;
};

struct ClusterOptions {
  std::string program;  // this command's own path
  std::string model;
  std::string connector;  // IpcConnector, OffloadingConnector or MultiConnector of both
  std::string kv_cache_bytes = "64MiB";
  std::uint32_t threads = 0;
};

class PdCluster {
 public:
  static Result<std::unique_ptr<PdCluster>> start(const ClusterOptions& options);
  ~PdCluster();

  Instance& prefill() { return *prefill_; }
  Instance& decode() { return *decode_; }            // fails a request whose load failed
  Instance& recomputing() { return *recomputing_; }  // computes what a load did not bring
  Instance& router() { return *router_; }

  // Until the router takes both for ready.
  Status wait_until_routed();

 private:
  PdCluster() = default;
  Result<std::unique_ptr<Instance>> serve(const ClusterOptions& options, const std::string& name,
                                          const std::string& role, const std::string& policy);

  std::string folder_;
  std::unique_ptr<Instance> prefill_;
  std::unique_ptr<Instance> decode_;
  std::unique_ptr<Instance> recomputing_;
  std::unique_ptr<Instance> router_;
};

// A greedy completion of exactly `tokens` tokens, with `kv_transfer_params` unless null.
std::string completion_body(const std::vector<TokenId>& prompt, std::uint32_t tokens,
                            const Json& kv_transfer_params = {});
Result<Answer> read_answer(const server::HttpResponse& response);

// Asks all prompts at the same time.
Result<std::vector<Answer>> ask(const Instance& instance,
                                const std::vector<std::vector<TokenId>>& prompts,
                                std::uint32_t tokens);

}  // namespace dormouse::cli
