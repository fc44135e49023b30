// A transfer agent around a transfer agent that keeps count, fails on demand and blocks on demand.
//
// Counts registrations and remote memory that live now: what must be zero at the moment an unmap
// begins. Owns nothing of the inner agent, which outlives it; it outlives what it made.
//
// Threads: any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "base/check.h"
#include "testing/fault_plan.h"
#include "transfer/transfer_agent.h"

namespace dormouse::testing {

// A place where calls wait while it is shut.
class Barrier {
 public:
  void shut() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
  }
  // Returns once so many calls wait.
  void await(std::size_t calls) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= calls; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  std::size_t waiting_ = 0;
};

class CountingAgent final : public TransferAgent {
 public:
  explicit CountingAgent(TransferAgent& inner, FaultPlan* faults = nullptr)
      : inner_(inner), faults_(faults) {}

  // Where imports, reads and exports wait before they begin.
  Barrier imports, reads, exports;
  // Set: every such call fails with it, after it passed its barrier.
  std::atomic<bool> fail_imports = false, fail_reads = false, fail_exports = false;

  std::int64_t registrations() const { return registrations_; }  // that live
  std::int64_t pins() const { return pins_; }                    // remote memory that lives
  std::int64_t reads_made() const { return reads_made_; }        // that succeeded
  std::int64_t imports_made() const { return imports_made_; }

  AgentCapabilities capabilities() const override { return inner_.capabilities(); }

  Result<std::unique_ptr<MemoryRegistration>> register_memory(const KvCaches& caches) override {
    DM_TRY(check("register", false));
    DM_TRY_ASSIGN(auto registration, inner_.register_memory(caches));
    return std::make_unique<Registration>(*this, std::move(registration));
  }

  Result<std::unique_ptr<RemoteMemory>> import_memory(ExportedMemory exported) override {
    imports.pass();
    DM_TRY(check("import", fail_imports));
    DM_TRY_ASSIGN(auto memory, inner_.import_memory(std::move(exported)));
    ++imports_made_;
    return std::make_unique<Pin>(*this, std::move(memory));
  }

  Status read(const RemoteMemory& remote, std::span<const ReadSpan> spans,
              const ReadControl& control) override {
    reads.pass();
    DM_TRY(check("read", fail_reads));
    DM_TRY(inner_.read(*dynamic_cast<const Pin&>(remote).memory, spans, control));
    ++reads_made_;
    return {};
  }

  Result<std::uint64_t> bytes_held_by(const KvCaches& caches, pid_t process) const override {
    return inner_.bytes_held_by(caches, process);
  }

 private:
  // Counts for as long as it lives.
  struct Count {
    explicit Count(std::atomic<std::int64_t>& to) : counter(to) { ++counter; }
    ~Count() { --counter; }
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;
    std::atomic<std::int64_t>& counter;
  };

  // The counts fall after the memory is gone: members are destroyed in reverse.
  struct Registration final : MemoryRegistration {
    Registration(CountingAgent& to, std::unique_ptr<MemoryRegistration> inner)
        : agent(to), count(to.registrations_), registration(std::move(inner)) {}
    Result<ExportedMemory> export_memory() override {
      agent.exports.pass();
      DM_TRY(agent.check("export", agent.fail_exports));
      return registration->export_memory();
    }
    CountingAgent& agent;
    Count count;
    std::unique_ptr<MemoryRegistration> registration;
  };

  struct Pin final : RemoteMemory {
    Pin(CountingAgent& to, std::unique_ptr<RemoteMemory> inner)
        : count(to.pins_), memory(std::move(inner)) {}
    std::size_t size() const override { return memory->size(); }
    Count count;
    std::unique_ptr<RemoteMemory> memory;
  };

  Status check(std::string_view call, bool failing) {
    if (failing)
      return fail(ErrorCode::kTransferFailed, "made to fail: " + std::string(call));
    return faults_ ? faults_->check(call) : Status{};
  }

  TransferAgent& inner_;
  FaultPlan* faults_;
  std::atomic<std::int64_t> registrations_ = 0;
  std::atomic<std::int64_t> pins_ = 0;
  std::atomic<std::int64_t> reads_made_ = 0;
  std::atomic<std::int64_t> imports_made_ = 0;
};

}  // namespace dormouse::testing
