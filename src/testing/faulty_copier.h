// A copier that fails on demand and counts the bytes it was asked to copy.
#pragma once

#include "base/check.h"
#include "device/copier.h"
#include "testing/fault_plan.h"

namespace dormouse::testing {

class FaultyCopier final : public Copier {
 public:
  explicit FaultyCopier(Copier& inner, FaultPlan* faults = nullptr)
      : inner_(inner), faults_(faults) {}

  std::uint64_t bytes_out = 0;
  std::uint64_t bytes_in = 0;

  Status to_host(std::span<std::byte> host, const std::byte* device) override {
    if (faults_)
      DM_TRY(faults_->check("copy to host"));
    bytes_out += host.size();
    return inner_.to_host(host, device);
  }

  Status to_device(std::byte* device, std::span<const std::byte> host) override {
    if (faults_)
      DM_TRY(faults_->check("copy to device"));
    bytes_in += host.size();
    return inner_.to_device(device, host);
  }

 private:
  Copier& inner_;
  FaultPlan* faults_;
};

}  // namespace dormouse::testing
