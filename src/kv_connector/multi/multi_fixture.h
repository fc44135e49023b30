// A MultiConnector over children that do what the test says and write down what is asked of them.
#pragma once

#include <deque>
#include <map>

#include "kv_connector/connector_fixture.h"
#include "kv_connector/multi/multi_scheduler.h"
#include "kv_connector/multi/multi_worker.h"

namespace dormouse {

using Journal = std::vector<std::string>;

struct ChildScheduler final : SchedulerConnector {
  ChildScheduler(std::string its_name, Journal& its_journal)
      : name(std::move(its_name)), journal(its_journal) {}

  Status check_request(const Request& /*request*/) const override {
    journal.push_back(name + " check");
    return refuse ? fail(ErrorCode::kInvalidArgument, name, "kv_transfer_params") : Status();
  }
  std::optional<KvMatch> get_num_new_matched_tokens(const KvRequest& /*request*/,
                                                    std::uint32_t /*num_computed*/) override {
    return match;
  }
  void update_state_after_alloc(const KvRequest& /*request*/, std::span<const BlockId> /*blocks*/,
                                std::uint32_t num_external) override {
    journal.push_back(name + " loads " + std::to_string(num_external));
  }
  std::string build_connector_meta() override { return std::exchange(metadata, {}); }
  void update_connector_output(const KvConnectorOutput& output) override { heard = output; }
  KvRequestFinished request_finished(const KvRequest& /*request*/,
                                     std::span<const BlockId> /*blocks*/) override {
    journal.push_back(name + " finished");
    return at_finish;
  }
  void set_xfer_handshake_metadata(const std::vector<std::string>& by_rank) override {
    handshake = by_rank;
  }
  void set_model_hash(const std::string& model_hash) override {
    journal.push_back(name + " model " + model_hash);
  }
  bool reset_cache() override {
    journal.push_back(name + " reset");
    return !refuse;
  }
  KvConnectorStats get_kv_connector_stats() const override { return {{"same", 2}, {name, 1}}; }
  void shutdown() override { journal.push_back(name + " shutdown"); }

  const std::string name;
  Journal& journal;
  std::optional<KvMatch> match = KvMatch{};
  KvRequestFinished at_finish;
  std::string metadata;
  std::vector<std::string> handshake;
  KvConnectorOutput heard;
  bool refuse = false;
};

// Does not follow the mapping.
struct LegacyWorker : WorkerConnector {
  LegacyWorker(std::string its_name, Journal& its_journal)
      : name(std::move(its_name)), journal(its_journal) {}

  Status register_kv_caches(const KvCaches& /*caches*/) override { return {}; }
  void bind_connector_metadata(const std::string& bytes) override { metadata = bytes; }
  void start_load_kv() override { journal.push_back(name + " start"); }
  void wait_for_layer_load(std::uint32_t layer) override {
    journal.push_back(name + " load " + std::to_string(layer));
  }
  void save_kv_layer(std::uint32_t layer) override {
    journal.push_back(name + " save " + std::to_string(layer));
  }
  void wait_for_save() override { journal.push_back(name + " saved"); }
  void get_finished(const RequestIds& /*finished*/, KvConnectorOutput& output) override {
    output.finished_sending = std::exchange(next.finished_sending, {});
    output.finished_recving = std::exchange(next.finished_recving, {});
  }
  void get_block_ids_with_load_errors(KvConnectorOutput& output) override {
    output.invalid_block_ids = std::exchange(next.invalid_block_ids, {});
    output.failure = std::exchange(next.failure, {});
  }
  std::string build_connector_worker_meta() override { return std::exchange(next.worker_meta, {}); }
  std::string get_handshake_metadata() override { return handshake; }
  KvConnectorStats get_kv_connector_stats() const override { return {{"same", 2}}; }
  void shutdown() override { journal.push_back(name + " shutdown"); }

  const std::string name;
  Journal& journal;
  std::string metadata;
  std::string handshake;
  KvConnectorOutput next;
};

struct ChildWorker final : LegacyWorker, FollowsMapping {
  using LegacyWorker::LegacyWorker;
  Status release_kv_caches(Unmapping& /*unmapping*/) override {
    journal.push_back(name + " release");
    return refuse ? fail(ErrorCode::kInternal, name + " cannot release") : Status();
  }
  Status restore_kv_caches(const KvCaches& /*caches*/) override {
    journal.push_back(name + " restore");
    return refuse_restore ? fail(ErrorCode::kInternal, name + " cannot restore") : Status();
  }
  bool refuse = false;
  bool refuse_restore = false;
};

// Children a, b, c.
class MultiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MultiScheduler::Children schedulers;
    MultiWorker::Children workers;
    for (const char* name : {"a", "b", "c"}) {
      auto scheduler = std::make_unique<ChildScheduler>(name, journal_);
      auto worker = std::make_unique<ChildWorker>(name, journal_);
      scheduler_.push_back(scheduler.get());
      worker_.push_back(worker.get());
      schedulers.push_back(std::move(scheduler));
      workers.push_back(std::move(worker));
    }
    engine_ = std::make_unique<OneRankEngine>(
        context_of("{}"), std::make_unique<MultiScheduler>(std::move(schedulers)),
        std::make_unique<MultiWorker>(std::move(workers)));
    journal_.clear();
  }

  Journal journal_;
  std::vector<ChildScheduler*> scheduler_;
  std::vector<ChildWorker*> worker_;
  std::unique_ptr<OneRankEngine> engine_;
};

}  // namespace dormouse
