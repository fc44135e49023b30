// Copies between host memory and device addresses, as fast as the machine allows.
//
// Threads: one call at a time. Order: synchronous: the bytes are there when a call returns.
#pragma once

#include <cstddef>
#include <span>

#include "dormouse/result.h"

namespace dormouse {

class Copier {
 public:
  virtual ~Copier() = default;
  virtual Status to_host(std::span<std::byte> host, const std::byte* device) = 0;
  virtual Status to_device(std::byte* device, std::span<const std::byte> host) = 0;
};

}  // namespace dormouse
