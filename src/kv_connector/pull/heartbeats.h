// Keeps leases alive at their owners for as long as a request here may want the blocks.
//
// Owns:    one thread.
// Threads: any.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "kv_connector/pull/orders.h"
#include "kv_connector/pull/peer.h"

namespace dormouse::pull {

class Heartbeats {
 public:
  // `heads`: this rank's. `peers` outlives this object. `interval`: where a lease does not need
  // more, since its owner gives it less time.
  Heartbeats(PeerTable& peers, HeadRange heads, Clock::duration interval);
  ~Heartbeats();

  void start(ReferenceOrder order);
  void stop(RequestId request);
  // Ends all and says which they were.
  std::vector<ReferenceOrder> stop_all();

 private:
  using Leases = std::vector<LeaseName>;
  struct Beat {
    RemoteReference reference;
    Clock::duration interval{};
  };
  void beat();
  Clock::duration shortest_interval() const;
  std::map<std::uint32_t, Leases> by_port() const;
  void send(std::uint32_t port, const Leases& leases);

  PeerTable& peers_;
  const HeadRange heads_;
  const Clock::duration interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Beat> beats_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dormouse::pull
