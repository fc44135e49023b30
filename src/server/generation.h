// One request of the OpenAI API under way: its sequences in the engine, and its answer.
//
// Owns:    itself, through the sinks it gave the engine; it lives until each sequence had its last
// event. Threads: submit on any; events are handled on the writer's I/O thread; abort on any.
// Order:   a client that goes away aborts every sequence; each one still gets its last event.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dormouse/engine.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/request_registry.h"
#include "server/sequence.h"

namespace dormouse::server {

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  struct Parts {
    Engine& engine;
    std::shared_ptr<RequestMetrics> metrics;
    std::shared_ptr<RequestRegistry> registry;
    std::shared_ptr<const text::Tokenizer> tokenizer;
    std::shared_ptr<ResponseWriter> writer;
    OpenAiRequest request;
    std::vector<std::vector<TokenId>> prompts;  // one for each of the request's
    std::string id;
    std::string model;
  };
  explicit Generation(Parts parts);
  ~Generation();

  // Hands every sequence to the engine. If it refuses one, the others are aborted and the refusal
  // is the answer.
  void submit();
  // The number of sequences that were still under way.
  std::size_t abort();

 private:
  using Clock = std::chrono::steady_clock;
  struct Lane {
    Sequence sequence;
    Choice choice;  // what the whole answer holds of it
    Clock::time_point last_token;
    RequestTimes times;
  };

  void begin();
  void on_output(std::size_t lane, RequestOutput output);
  void stream(std::size_t lane, const Sequence::Delta& delta);
  void measure(Lane& lane, const Sequence::Delta& delta);
  void finish_lane(std::size_t lane);
  void finish();
  void fail(const Error& error);
  void send_chunk(const Choice& choice);
  void send(const Json& chunk);
  Request engine_request(std::size_t lane) const;
  const std::vector<TokenId>& prompt_of(std::size_t lane) const;
  Usage usage() const;
  Json transfer_json() const;

  const Parts parts_;
  const Clock::time_point arrived_ = Clock::now();
  ResponseFormat format_;

  // On the I/O thread alone.
  std::vector<Lane> lanes_;
  std::size_t unfinished_;
  bool begun_ = false;
  bool answered_ = false;
  std::string kv_transfer_params_;                            // of the choice that had a transfer
  std::vector<std::pair<std::size_t, RequestOutput>> early_;  // came before `begin`

  std::mutex ids_mutex_;
  std::vector<RequestId> ids_;
  bool aborted_ = false;
};

}  // namespace dormouse::server
