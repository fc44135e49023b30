// What the connectors' tests share: a request, and an engine of one rank that calls both halves of
// a connector in the order of a step.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <thread>

#include "dormouse/kv_connector.h"

namespace dormouse {

// A folder of its own, gone with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = ::testing::TempDir() + "dormouse_kv_XXXXXX";
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct TestRequest {
  RequestId id = 0;
  std::vector<TokenId> tokens;
  std::string salt = {};
  std::string params = {};
  std::uint32_t num_computed = 0;
  std::optional<FinishReason> finished = std::nullopt;

  KvRequest view() const {
    return {.id = id,
            .tokens = tokens,
            .prompt_length = static_cast<std::uint32_t>(tokens.size()),
            .num_computed = num_computed,
            .cache_salt = salt,
            .kv_transfer_params = params,
            .finished = finished};
  }
};

// Tokens first, first + 1, ...
inline TestRequest request_of(RequestId id, std::size_t tokens, TokenId first = 100) {
  TestRequest request{.id = id, .tokens = std::vector<TokenId>(tokens)};
  std::iota(request.tokens.begin(), request.tokens.end(), first);
  return request;
}

inline KvShape small_shape(std::uint32_t head_dim = 4) {
  return {.num_layers = 2,
          .num_kv_heads = 2,
          .first_kv_head = 0,
          .last_kv_head = 2,
          .head_dim = head_dim,
          .block_size = 4};
}

inline KvConnectorContext context_of(std::string extra, std::uint32_t num_blocks = 16,
                                     std::uint32_t head_dim = 4) {
  KvConnectorContext context{.incarnation = "i", .model_hash = "model"};
  context.config.kv_connector_extra_config = std::move(extra);
  context.config.engine_id = "e";
  context.shape = small_shape(head_dim);
  context.num_blocks = num_blocks;
  return context;
}

// Owns the cache and both halves.
class OneRankEngine {
 public:
  OneRankEngine(const KvConnectorContext& context,
                std::unique_ptr<SchedulerConnector> scheduler_half,
                std::unique_ptr<WorkerConnector> worker_half)
      : shape(context.shape),
        cache(context.num_blocks * context.shape.block_bytes()),
        scheduler(std::move(scheduler_half)),
        worker(std::move(worker_half)) {
    EXPECT_TRUE(worker->register_kv_caches(caches()));
    publish();
  }
  ~OneRankEngine() {
    worker->shutdown();
    scheduler->shutdown();
  }

  KvCaches caches() { return {.bytes = cache, .generation = generation}; }
  void publish() { scheduler->set_xfer_handshake_metadata({worker->get_handshake_metadata()}); }
  FollowsMapping& follower() { return dynamic_cast<FollowsMapping&>(*worker); }

  // A step: with `layers` it computes something.
  KvConnectorOutput step(bool layers = false) {
    worker->bind_connector_metadata(scheduler->build_connector_meta());
    worker->handle_preemptions();
    worker->start_load_kv();
    for (std::uint32_t layer = 0; layers && layer < shape.num_layers; ++layer) {
      worker->wait_for_layer_load(layer);
      worker->save_kv_layer(layer);
    }
    if (layers)
      worker->wait_for_save();
    KvConnectorOutput output;
    worker->get_finished({}, output);
    worker->get_block_ids_with_load_errors(output);
    output.worker_meta = worker->build_connector_worker_meta();
    worker->clear_connector_metadata();
    scheduler->update_connector_output(output);
    return output;
  }

  // Steps until a transfer ends.
  KvConnectorOutput poll() {
    for (;;) {
      KvConnectorOutput output = step();
      if (!output.finished_sending.empty() || !output.finished_recving.empty())
        return output;
      std::this_thread::yield();
    }
  }
  void settle() {
    while (scheduler->has_pending_work()) {
      step();
      std::this_thread::yield();
    }
  }

  // The request was computed here, into these blocks, and ends.
  KvRequestFinished finish(TestRequest& request, const std::vector<BlockId>& blocks,
                           FinishReason reason = FinishReason::kLength) {
    scheduler->on_new_request(request.view());
    matched(request);
    scheduler->update_state_after_alloc(request.view(), blocks, 0);
    request.num_computed = static_cast<std::uint32_t>(request.tokens.size());
    request.finished = reason;
    return scheduler->request_finished(request.view(), blocks);
  }

  std::uint32_t matched(const TestRequest& request) {
    for (;;) {
      if (const auto match = scheduler->get_num_new_matched_tokens(request.view(), 0))
        return match->tokens;
      std::this_thread::yield();
    }
  }
  // Starts to load what matches; returns the number of tokens.
  std::uint32_t load(const TestRequest& request, const std::vector<BlockId>& blocks) {
    scheduler->on_new_request(request.view());
    const std::uint32_t tokens = matched(request);
    scheduler->update_state_after_alloc(request.view(), blocks, tokens);
    return tokens;
  }

  std::span<std::byte> block(BlockId id) {
    return std::span(cache).subspan(id * shape.block_bytes(), shape.block_bytes());
  }
  void fill(BlockId id, int seed) {
    int value = seed * 31;
    for (std::byte& each : block(id))
      each = static_cast<std::byte>(value++ % 251);
  }
  bool holds(BlockId id, int seed) {
    int value = seed * 31;
    for (const std::byte each : block(id))
      if (each != static_cast<std::byte>(value++ % 251))
        return false;
    return true;
  }
  double stat(const std::string& name) const {
    double sum = 0;
    for (const KvConnectorStats& stats :
         {scheduler->get_kv_connector_stats(), worker->get_kv_connector_stats()})
      for (const auto& [each, value] : stats)
        if (each == name)
          sum += value;
    return sum;
  }

  const KvShape shape;
  std::vector<std::byte> cache;
  std::uint64_t generation = 1;
  std::unique_ptr<SchedulerConnector> scheduler;
  std::unique_ptr<WorkerConnector> worker;
};

}  // namespace dormouse
