// What transfers took, each from one rank, that ended well.
//
// The same as vLLM counts of its NIXL connector, in the same buckets.
#pragma once

#include <array>
#include <cstddef>

#include "kv_connector/pull/clock.h"
#include "protocol/connector_stats.h"

namespace dormouse::pull {

struct TransferSample {
  Clock::duration post{};      // until the peer granted it
  Clock::duration transfer{};  // from there to its confirmation
  std::size_t bytes = 0;
  std::size_t descriptors = 0;  // stretches of bytes
};

class TransferStats {
 public:
  void note(const TransferSample& sample);
  void append_to(KvConnectorStats& stats) const;
  double bytes() const { return bytes_.sum(); }

 private:
  static constexpr std::array kPostSeconds = {0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                              0.2,   0.3,   0.5,  0.75,  1.0,  5.0};
  static constexpr std::array kSeconds = {0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                          0.2,   0.3,  0.5,   0.75, 1.0,   5.0};
  static constexpr std::array kBytes = {0x1p11, 0x1p13, 0x1p15, 0x1p17, 0x1p19, 0x1p21,
                                        0x1p23, 0x1p25, 0x1p27, 0x1p29, 0x1p31, 0x1p33};
  static constexpr std::array kDescriptors = {10.0,   20.0,    30.0,    50.0,   75.0,
                                              100.0,  200.0,   400.0,   1000.0, 2000.0,
                                              4000.0, 10000.0, 20000.0, 50000.0};

  Histogram post_seconds_{kPostSeconds};
  Histogram seconds_{kSeconds};
  Histogram bytes_{kBytes};
  Histogram descriptors_{kDescriptors};
};

}  // namespace dormouse::pull
