// The copier of the host device: memcpy by several threads.
#pragma once

#include <cstdint>

#include "device/copier.h"

namespace dormouse {

class HostCopier final : public Copier {
 public:
  explicit HostCopier(std::uint32_t threads) : threads_(threads == 0 ? 1 : threads) {}

  Status to_host(std::span<std::byte> host, const std::byte* device) override;
  Status to_device(std::byte* device, std::span<const std::byte> host) override;

 private:
  std::uint32_t threads_;
};

}  // namespace dormouse
