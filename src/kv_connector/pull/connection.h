// A consumer's connection to one rank of another engine: calls, and the mapping of its cache.
//
// The connection is the registration. When the owner revokes or is gone, or this side ends it, the
// mapping goes as soon as nobody uses it, at once if nobody does; then the owner is told so and the
// connection ends. One that has ended stays so: shake hands again.
//
// Owns:    the channel, a thread that receives, the imported memory.
// Threads: any.
// Errors:  kUnavailable (ended, revoked, refused), kDeadlineExceeded, kCancelled, kDataLoss.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kv_connector/pull/clock.h"
#include "kv_connector/pull/messages.h"
#include "net/server.h"
#include "transfer/transfer_agent.h"

namespace dormouse::pull {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Options {
    std::string path;
    std::string token;
    std::string engine_id;  // ours
  };
  static Result<std::shared_ptr<Connection>> open(Options options, TransferAgent& agent,
                                                  Time deadline);
  ~Connection();

  struct Wait {
    Time deadline;
    const std::atomic<bool>* cancelled = nullptr;
  };

  struct Answer {
    Json message;
    std::vector<UniqueFd> descriptors;
  };
  // Sends and awaits the answer.
  template <class Request>
  Result<Answer> call(const Request& request, Wait wait) {
    return exchange([&](MessageId id) { return encode_message(request, id); }, wait);
  }
  // Sends what nobody answers.
  template <class Notice>
  Status post(const Notice& notice, Time deadline) {
    return send(encode_message(notice), deadline);
  }

  // Keeps the memory mapped while it lives.
  class Use {
   public:
    Use(Use&& other) noexcept = default;
    Use& operator=(Use&&) = delete;
    ~Use();
    const RemoteMemory& memory() const { return *memory_; }
    // Whose memory it is, as its owner said when it was imported.
    std::uint64_t generation() const { return generation_; }
    const std::string& incarnation() const { return incarnation_; }

   private:
    friend class Connection;
    explicit Use(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
    std::shared_ptr<Connection> connection_;
    const RemoteMemory* memory_ = nullptr;
    std::uint64_t generation_ = 0;
    std::string incarnation_;
  };
  // Imports first if need be.
  Result<Use> use(Wait wait);

  bool alive() const;
  bool holds_memory() const;
  // Ends calls with kUnavailable; what is mapped goes with its last use.
  void end();
  // Nothing is mapped, and nothing will be.
  bool has_let_go() const;

 private:
  Connection(Options options, TransferAgent& agent, net::Channel channel);

  Result<Answer> exchange(const std::function<std::string(MessageId)>& encode, Wait wait);
  Status send(std::string bytes, Time deadline);
  void receive();
  Status dispatch(net::Message message);
  void revoked(const Revoke& notice);
  Status import(Wait wait);
  void unuse();
  void drop_if_unused(std::unique_lock<std::mutex>& lock);

  const Options options_;
  TransferAgent& agent_;
  net::Channel channel_;
  std::mutex send_mutex_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  MessageId last_id_ = 0;
  std::map<MessageId, std::optional<Answer>> waiting_;  // calls, by number
  bool ended_ = false;
  std::optional<std::uint64_t> revoking_;  // the generation that must go
  std::size_t uses_ = 0;
  bool importing_ = false;
  bool telling_ = false;  // that the memory is gone; then the channel is shut down
  std::unique_ptr<RemoteMemory> memory_;
  std::uint64_t generation_ = 0;
  std::string incarnation_;
  std::thread receiver_;
};

}  // namespace dormouse::pull
