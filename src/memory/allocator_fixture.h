// What the allocator's tests share: an allocator over a driver that counts, two tags, and a
// listener that counts.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "device/host/host_copier.h"
#include "device/host/host_vmm_driver.h"
#include "memory/tagged_allocator.h"
#include "testing/faulty_copier.h"
#include "testing/instrumented_vmm_driver.h"
#include "testing/vmm_driver_decorator.h"

namespace dormouse {

using testing::FaultPlan;
using testing::FaultyCopier;
using testing::InstrumentedVmmDriver;

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Registers the tag's memory as a transport would: it counts, and knows whether it may exist.
class CountingListener final : public MappingListener {
 public:
  CountingListener(std::string name, std::vector<std::string>& journal, FaultPlan* faults)
      : name_(std::move(name)), journal_(journal), faults_(faults) {}

  Status before_unmap(Unmapping& unmapping) override {
    journal_.push_back("before " + name_);
    if (faults_)
      DM_TRY(faults_->check("before_unmap"));
    if (refuse_release)
      return fail(ErrorCode::kInternal, "cannot release " + name_);
    registered = 0;
    if (keeps > 0)
      unmapping.kept.push_back({name_, keeps, "a tier"});
    return {};
  }
  Status after_map() override {
    journal_.push_back("after " + name_);
    if (faults_)
      DM_TRY(faults_->check("after_map"));
    if (refuse_restore)
      return fail(ErrorCode::kInternal, "cannot restore " + name_);
    registered = 1;
    return {};
  }

  std::uint64_t keeps = 0;
  bool refuse_release = false;
  bool refuse_restore = false;
  int registered = 1;

 private:
  std::string name_;
  std::vector<std::string>& journal_;
  FaultPlan* faults_;
};

// Takes blocks back only when it likes.
struct RefusingDriver final : testing::VmmDriverDecorator {
  using VmmDriverDecorator::VmmDriverDecorator;
  bool refuse = false;
  Status release(BlockHandle block) override {
    if (refuse)
      return fail(ErrorCode::kInternal, "busy");
    return inner.release(block);
  }
};

class TaggedAllocatorTest : public ::testing::Test {
 protected:
  static TaggedAllocator::Options options() {
    return {.block_bytes = 2 * kMiB, .available_host_memory = {}};
  }

  void SetUp() override {
    weights_ = std::move(*allocator_.allocate(kWeightsTag, 3 * kMiB + 100));
    cache_ = std::move(*allocator_.allocate(kKvCacheTag, 4 * kMiB));
    fill(weights_, 1);
    ASSERT_TRUE(allocator_.seal(kWeightsTag));
    fill(cache_, 2);
    driver_.poison = std::byte{0xA5};
  }

  void TearDown() override { driver_.before_unmap = nullptr; }

  static void fill(const TaggedMemory& memory, int seed) {
    for (std::size_t i = 0; i < memory.size(); i += 64)
      memory.data()[i] = static_cast<std::byte>(i / 64 * 7 + static_cast<std::size_t>(seed));
  }
  static bool holds(const TaggedMemory& memory, int seed) {
    for (std::size_t i = 0; i < memory.size(); i += 64)
      if (memory.data()[i] != static_cast<std::byte>(i / 64 * 7 + static_cast<std::size_t>(seed)))
        return false;
    return true;
  }

  HostVmmDriver host_;
  FaultPlan faults_;
  InstrumentedVmmDriver driver_{host_, &faults_};
  HostCopier plain_copier_{2};
  FaultyCopier copier_{plain_copier_, &faults_};
  TaggedAllocator allocator_{driver_, copier_, options()};
  TaggedMemory weights_;
  TaggedMemory cache_;
  std::vector<std::string> journal_;
};

}  // namespace dormouse
