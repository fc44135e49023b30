// What a KV connector implements: it moves blocks of the KV cache between engines, or between an
// engine and a store. Names, order and invariants are those of vLLM's KVConnectorBase_V1. How to
// write one, step by step: docs/writing_a_connector.md.
//
// A connector has two halves that meet in plain bytes alone. The scheduler half decides, once for
// the engine; the worker half moves, once for each rank. What the scheduler half wants of the
// workers travels down with a step (build_connector_meta); what happened travels up with the
// step's result (KvConnectorOutput). Steps that compute nothing run for connectors alone, while a
// load, a send or metadata is under way.
//
// Order within one step:
//   scheduler: get_num_new_matched_tokens, update_state_after_alloc (for each request admitted),
//              build_connector_meta
//   worker:    bind_connector_metadata, handle_preemptions, start_load_kv, then for each layer
//              wait_for_layer_load and save_kv_layer, wait_for_save, get_finished,
//              get_block_ids_with_load_errors, clear_connector_metadata
//   scheduler: update_connector_output, then requests that ended: request_finished
// Steps without tokens skip the layers and wait_for_save.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dormouse/config.h"
#include "dormouse/memory.h"
#include "dormouse/request.h"

namespace dormouse {

class VmmDriver;  // device/vmm_driver.h; opaque outside the library

// The part of every block that one rank holds. A block is [layer][K or V][kv head], heads of equal
// size, so that a range of heads of one layer's plane is contiguous.
struct KvShape {
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;  // of the model
  std::uint32_t first_kv_head = 0;
  std::uint32_t last_kv_head = 0;  // one past; this rank's are [first, last)
  std::uint32_t head_dim = 0;
  std::uint32_t block_size = 0;  // tokens
  std::string dtype = "float16";
  std::string layout = "K:head_dim,token V:token,head_dim";  // within a head of a block

  std::size_t head_bytes() const { return std::size_t{2} * head_dim * block_size; }
  std::size_t plane_bytes() const { return (last_kv_head - first_kv_head) * head_bytes(); }
  std::size_t block_bytes() const { return std::size_t{2} * num_layers * plane_bytes(); }
  bool operator==(const KvShape&) const = default;
};

// What both halves are built from.
struct KvConnectorContext {
  KvTransferConfig config;  // engine_id is set
  std::string incarnation;  // of this engine: drawn anew at every start
  std::string model_hash;   // of the weights' content; KV of another model is of no use
  KvShape shape;            // scheduler half: of rank 0
  std::uint32_t num_blocks = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t threads = 1;  // that copying may use
};

// A rank's cache as it is mapped now.
struct KvCaches {
  std::span<std::byte> bytes;    // num_blocks * shape.block_bytes(); the address never changes
  std::uint64_t generation = 0;  // of the mapping; grows with every wake-up
  VmmDriver* driver = nullptr;   // whose memory it is
  std::vector<std::uint64_t> device_blocks = {};  // behind `bytes`, by address: handles of `driver`
};

// --- worker half ---

using RequestIds = std::vector<RequestId>;

// By their names in /metrics without the prefix: gauges; counters since the start, `name_total`;
// histograms, as `name_bucket{le="bound"}` of all up to each bound, `name_sum` and `name_count`.
using KvConnectorStats = std::vector<std::pair<std::string, double>>;

// What happened on one rank since the last step.
struct KvConnectorOutput {
  RequestIds finished_sending;             // blocks that the connector held may go
  RequestIds finished_recving;             // a load ended, well or not
  std::vector<BlockId> invalid_block_ids;  // of loads that failed; no later than their request
  std::string failure;                     // of the first that failed: why
  std::string worker_meta;                 // for the scheduler half; empty: nothing
  KvConnectorStats stats;                  // now; empty: as before
};

// Threads: every call from the rank's own thread, and none blocks for long but the waits.
// Errors:  nothing here throws. A load that fails names its blocks and finishes all the same.
class WorkerConnector {
 public:
  virtual ~WorkerConnector() = default;

  // Once, before any other call.
  virtual Status register_kv_caches(const KvCaches& caches) = 0;

  virtual void bind_connector_metadata(const std::string& metadata) = 0;
  virtual void clear_connector_metadata() {}
  // Blocks that the step is about to overwrite must have been read when this returns.
  virtual void handle_preemptions() {}
  virtual void start_load_kv() = 0;
  virtual void wait_for_layer_load(std::uint32_t /*layer*/) {}
  virtual void save_kv_layer(std::uint32_t /*layer*/) {}
  virtual void wait_for_save() {}

  // Fills finished_sending and finished_recving, each request once. `finished`: requests that
  // ended since the last step.
  virtual void get_finished(const RequestIds& finished, KvConnectorOutput& output) = 0;
  virtual void get_block_ids_with_load_errors(KvConnectorOutput& /*output*/) {}
  virtual std::string build_connector_worker_meta() { return {}; }

  // What peers need in order to reach this rank; empty: nothing. Asked at the start and after
  // every wake-up.
  virtual std::string get_handshake_metadata() { return {}; }
  virtual KvConnectorStats get_kv_connector_stats() const { return {}; }

  // Ends what is under way. No call follows.
  virtual void shutdown() {}
};

// Implemented by a worker half that follows the mapping of the KV cache, and only by one: that is
// how a connector declares that it supports sleep mode.
class FollowsMapping {
 public:
  virtual ~FollowsMapping() = default;

  // Before any page of the cache is unmapped: drains what is in flight, then drops every
  // registration, at peers as well. On error everything is still mapped and restore_kv_caches
  // follows. May be called when nothing is registered.
  virtual Status release_kv_caches(Unmapping& unmapping) = 0;

  // After a wake-up that left the cache mapped. Idempotent: `caches` may be what it was.
  virtual Status restore_kv_caches(const KvCaches& caches) = 0;
};

// --- scheduler half ---

// A request as connectors see it. Valid during the call.
struct KvRequest {
  RequestId id = 0;
  std::span<const TokenId> tokens;  // prompt, then what was generated
  std::uint32_t prompt_length = 0;
  std::uint32_t num_computed = 0;  // tokens whose keys and values are in the blocks
  const std::string& cache_salt;
  const std::string& kv_transfer_params;  // JSON object; empty: none
  std::optional<FinishReason> finished = std::nullopt;
};

struct KvMatch {
  std::uint32_t tokens = 0;    // beyond those computed here already
  bool load_is_async = false;  // true: the request waits for finished_recving; false for 0 tokens
};

struct KvRequestFinished {
  // True: the blocks belong to the connector until finished_sending names the request.
  bool delay_free = false;
  std::string kv_transfer_params = {};  // JSON object for the reply; empty: none
};

// Threads: the engine's own, but check_request.
class SchedulerConnector {
 public:
  virtual ~SchedulerConnector() = default;

  // From any thread, before a request is accepted: kv_transfer_params that are malformed, or that
  // name a peer that is not configured. kInvalidArgument with `param`.
  virtual Status check_request(const Request& /*request*/) const { return {}; }

  virtual void on_new_request(const KvRequest& /*request*/) {}
  // How much could be loaded beyond num_computed tokens. May be called again for the same request;
  // changes nothing. Nothing: ask again in a later step.
  virtual std::optional<KvMatch> get_num_new_matched_tokens(const KvRequest& request,
                                                            std::uint32_t num_computed) = 0;
  // `blocks` of the whole request are allocated; num_external of its tokens are to be loaded,
  // 0 if nothing is.
  virtual void update_state_after_alloc(const KvRequest& request, std::span<const BlockId> blocks,
                                        std::uint32_t num_external) = 0;
  // What the workers shall do in this step; empty: nothing. Resets what it tells.
  virtual std::string build_connector_meta() = 0;
  // True: a step should run for the connector although nothing else asks for one.
  virtual bool has_pending_work() const { return false; }

  // Of every rank that had something to say.
  virtual void update_connector_output(const KvConnectorOutput& /*output*/) {}
  // Once for every request, whatever ended it, also if it was never admitted (no blocks).
  virtual KvRequestFinished request_finished(const KvRequest& request,
                                             std::span<const BlockId> blocks) = 0;

  // By rank, at the start and after every wake-up; and without any when a sleep has released them.
  virtual void set_xfer_handshake_metadata(const std::vector<std::string>& /*by_rank*/) {}
  // Other weights were loaded.
  virtual void set_model_hash(const std::string& /*model_hash*/) {}
  // Forgets what it has stored in memory; files that are keyed by their content may stay. False: it
  // could not.
  virtual bool reset_cache() { return true; }
  virtual KvConnectorStats get_kv_connector_stats() const { return {}; }

  virtual void shutdown() {}
};

// --- registry ---

// A connector's class. `follows_mapping` and the factories depend on the configuration alone.
struct KvConnectorClass {
  std::string name;
  bool (*follows_mapping)(const KvTransferConfig& config) = nullptr;
  Result<std::unique_ptr<SchedulerConnector>> (*make_scheduler)(const KvConnectorContext&) =
      nullptr;
  Result<std::unique_ptr<WorkerConnector>> (*make_worker)(const KvConnectorContext&) = nullptr;
  // What the factories would refuse of the configuration alone; null: nothing.
  Status (*check_config)(const KvTransferConfig& config) = nullptr;
};

// The class of two halves, each with `static Result<std::unique_ptr<Half>> create(context)`. It
// supports sleep mode exactly if its worker half follows the mapping.
template <class SchedulerHalf, class WorkerHalf>
KvConnectorClass kv_connector_class(std::string name) {
  return {.name = std::move(name),
          .follows_mapping =
              [](const KvTransferConfig&) { return std::is_base_of_v<FollowsMapping, WorkerHalf>; },
          .make_scheduler =
              [](const KvConnectorContext& context) -> Result<std::unique_ptr<SchedulerConnector>> {
            return SchedulerHalf::create(context);
          },
          .make_worker = [](const KvConnectorContext& context)
              -> Result<std::unique_ptr<WorkerConnector>> { return WorkerHalf::create(context); }};
}

// A connector in a shared library, named by kv_connector_module_path, defines this once. The build
// tag ties it to the compiler and to the version of these headers.
#define DORMOUSE_KV_CONNECTOR_STRINGIZE_(x) #x
#define DORMOUSE_KV_CONNECTOR_STRINGIZE(x) DORMOUSE_KV_CONNECTOR_STRINGIZE_(x)
#define DORMOUSE_KV_CONNECTOR_BUILD_TAG \
  "dormouse-kv-connector-1 gcc-abi-" DORMOUSE_KV_CONNECTOR_STRINGIZE(__GXX_ABI_VERSION)
#define DORMOUSE_KV_CONNECTOR_MODULE(make_class)                                  \
  extern "C" const char* dormouse_kv_connector_build_tag() {                      \
    return DORMOUSE_KV_CONNECTOR_BUILD_TAG;                                       \
  }                                                                               \
  extern "C" void dormouse_kv_connector_class(::dormouse::KvConnectorClass* to) { \
    *to = (make_class);                                                           \
  }

}  // namespace dormouse
