// The configured instances: what state each is in, and which one takes the next call.
//
// Threads: any.
// Owns:    what is known of the instances; a call holds its instance by a Turn.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dormouse/result.h"
#include "server/http_client.h"

namespace dormouse::router {

enum class Role { kPrefill, kDecode };
enum class InstanceState {
  kReady,
  kAsleep,   // it answers, and takes no requests now
  kLoading,  // it is about to, or was not asked yet
  kLocked,   // it refuses the router's key
  kGone,     // it does not answer, or is going away
};
inline constexpr const char* kLockedCause =
    "the instance refused the router's key: pass --backend-api-key";

std::string_view to_string(Role role);
std::string_view to_string(InstanceState state);

// Which instances may be chosen.
enum class Choice {
  kReadyOnly,
  kAnyIfNoneIsReady,
  kPullersFirst,  // the same, but of those that are ready the ones that take params first
};

struct Instance {
  std::string url;
  server::Address address;
  Role role = Role::kPrefill;
  InstanceState state = InstanceState::kLoading;
  std::string cause = "not asked yet";  // of a state that is not ready
  std::uint32_t in_flight = 0;
  std::uint64_t requests = 0;  // legs sent to it
  std::uint64_t failures = 0;  // legs that it did not serve
  std::string warning = {};    // what is wrong with its configuration; empty: nothing known
  std::optional<bool> has_connector = {};  // nothing: not asked yet, or it does not say
  std::uint64_t refused_params = 0;        // legs whose kv_transfer_params it refused
  std::optional<std::chrono::steady_clock::time_point> refused_at = {};  // the last of them

  // Whether its legs may have kv_transfer_params: it has a connector, as far as is known, and has
  // refused none for a while.
  bool takes_params() const;
};

class InstancePool {
 public:
  // One call to one instance; it counts as in flight meanwhile.
  class Turn {
   public:
    Turn() = default;
    Turn(Turn&& other) noexcept;
    Turn& operator=(Turn&& other) noexcept;
    ~Turn();

    explicit operator bool() const { return pool_ != nullptr; }
    std::size_t index() const { return index_; }
    const server::Address& address() const;
    bool takes_params() const;
    // The instance did not serve this call. What state that shows, if any, keeps others from it
    // until its next sign of health.
    void failed(std::optional<InstanceState> state, std::string cause);
    // The instance refused the kv_transfer_params of a leg, in these words.
    void refused_params(const std::string& words);

   private:
    friend class InstancePool;
    Turn(InstancePool& pool, std::size_t index) : pool_(&pool), index_(index) {}
    InstancePool* pool_ = nullptr;
    std::size_t index_ = 0;
  };

  // kInvalidArgument for a URL that is none, or a role without any.
  static Result<std::vector<Instance>> parse(const std::vector<std::string>& prefill,
                                             const std::vector<std::string>& decode);
  explicit InstancePool(std::vector<Instance> instances);

  // The instance of this role with the fewest calls under way, in turns; none of `tried`. An
  // empty Turn if there is none. A prefill instance only if what it keeps can be fetched: it takes
  // params, and so does a ready decode instance at another address.
  Turn take(Role role, Choice choice, const std::vector<std::size_t>& tried);

  void set_state(std::size_t index, InstanceState state, std::string cause);
  // Whether it has a KV connector. Forgotten, like every warning, when it is gone: it may start
  // anew.
  bool knows_connector(std::size_t index) const;
  void set_connector(std::size_t index, bool has_one);
  bool any_ready(Role role) const;
  // The decode instances at this address: they cannot fetch what they keep themselves.
  std::vector<std::size_t> decoders_at(const server::Address& address) const;
  std::vector<Instance> snapshot() const;
  std::size_t size() const { return instances_.size(); }
  const server::Address& address(std::size_t index) const { return instances_[index].address; }
  Role role(std::size_t index) const { return instances_[index].role; }

 private:
  bool has_puller_locked(const server::Address& prefill) const;
  void set_state_locked(std::size_t index, InstanceState state, std::string cause);
  void set_warning_locked(std::size_t index, std::string warning);

  mutable std::mutex mutex_;
  std::vector<Instance> instances_;
  std::array<std::size_t, 2> next_{};  // of each role, where the next choice begins
};

}  // namespace dormouse::router
