// What an engine is built from. Plain values; the defaults serve a small model on one host.
#pragma once

#include <cstdint>
#include <string>

#include "dormouse/result.h"

namespace dormouse {

// What becomes of the host copy of weights that a level-1 sleep makes.
enum class WeightBackup {
  kRetain,   // kept after the wake-up: the next sleep of unmodified weights copies nothing
  kRelease,  // freed after the wake-up
  kFile,     // none is made; the wake-up reads the model file again and checks its hash
};

enum class KvRole { kProducer, kConsumer, kBoth };

// What becomes of a request whose KV could not be loaded.
enum class KvLoadFailurePolicy {
  kRecompute,  // what is missing is computed here
  kFail,       // it ends with an error, 502
};

// --kv-transfer-config; keys and names are vLLM's.
struct KvTransferConfig {
  std::string kv_connector;  // empty: none
  KvRole kv_role = KvRole::kBoth;
  std::string engine_id;                 // empty: a random one
  std::string kv_connector_module_path;  // of a shared library; empty: one of the built-in classes
  std::string kv_ip = "127.0.0.1";       // where peers reach this engine's side channel
  std::uint16_t kv_port = 14579;
  KvLoadFailurePolicy kv_load_failure_policy = KvLoadFailurePolicy::kRecompute;
  bool verify_kv = false;  // --verify-kv: a checksum for every block transferred
  std::string kv_connector_extra_config = "{}";  // JSON object, the connector's own
};

struct EngineConfig {
  std::string model;              // path of a .gguf file
  std::string served_model_name;  // default: the file's name without its ending
  bool enable_sleep_mode = true;
  WeightBackup weight_backup = WeightBackup::kRetain;

  std::uint32_t max_model_len = 0;             // tokens; 0: what the model was trained for
  std::uint32_t max_num_seqs = 16;             // sequences that run at the same time
  std::uint32_t max_num_batched_tokens = 512;  // tokens computed in one step
  std::uint32_t block_size = 16;               // tokens in one KV block
  std::uint64_t kv_cache_memory_bytes = 0;  // 0: room for max_num_seqs sequences, 256 MiB at most
  std::uint64_t host_memory_limit = 0;      // bytes for backups; 0: what the machine has available
  std::uint32_t threads = 0;                // 0: one for each core
  bool enable_prefix_caching = true;
  KvTransferConfig kv_transfer;
  std::string incarnation;  // of this start, for peers; empty: the engine draws one
};

}  // namespace dormouse
