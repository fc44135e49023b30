#include "device/host/host_vmm_driver.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "device/host/host_copier.h"
#include "device/host/host_memory.h"

namespace dormouse {
namespace {

constexpr std::size_t kSize = std::size_t{4} << 20;

class HostVmm : public ::testing::Test {
 protected:
  BlockHandle map_new_block() {
    const BlockHandle block = *driver.create(kSize);
    EXPECT_TRUE(driver.map(address, kSize, block));
    EXPECT_TRUE(driver.set_access(address, kSize, Access::kReadWrite));
    return block;
  }
  void drop(BlockHandle block) {
    EXPECT_TRUE(driver.unmap(address, kSize));
    EXPECT_TRUE(driver.release(block));
  }

  HostVmmDriver driver;
  std::byte* address = *driver.reserve(kSize);
};

TEST_F(HostVmm, ANewBlockAtTheSameAddressIsZeroAndTheOldOneKeepsItsBytesForWhoMappedItTwice) {
  BlockHandle block = map_new_block();
  std::memset(address, 7, kSize);
  const UniqueFd fd = *driver.export_block(block);
  auto* second = static_cast<char*>(::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd.get(), 0));
  drop(block);
  block = map_new_block();
  EXPECT_EQ(address[0], std::byte{0});
  std::memset(address, 9, kSize);
  EXPECT_EQ(second[0], 7) << "a stale registration must go on showing the old page";
  ::munmap(second, kSize);
  drop(block);
}

TEST_F(HostVmm, ReleasingReallyFreesThePages) {
  const auto before = *block_references();
  const auto shared_before = *shared_memory_in_use();
  const BlockHandle block = map_new_block();
  std::memset(address, 1, kSize);
  EXPECT_EQ(block_references()->descriptors, before.descriptors + 1);
  EXPECT_EQ(block_references()->mappings, before.mappings + 1);
  EXPECT_GE(*shared_memory_in_use() + (1 << 20), shared_before + kSize);
  drop(block);
  EXPECT_EQ(block_references()->descriptors, before.descriptors);
  EXPECT_EQ(block_references()->mappings, before.mappings);
}

TEST_F(HostVmm, AnUnmappedAddressFaults) {
  drop(map_new_block());
  EXPECT_DEATH(address[0] = std::byte{1}, "");
}

TEST_F(HostVmm, ReadOnlyMemoryRefusesAWrite) {
  const BlockHandle block = map_new_block();
  ASSERT_TRUE(driver.set_access(address, kSize, Access::kRead));
  EXPECT_DEATH(address[0] = std::byte{1}, "");
  EXPECT_EQ(address[0], std::byte{0});
  drop(block);
}

TEST_F(HostVmm, LackOfMemoryIsAnError) {
  HostVmmDriver small(kSize);
  const BlockHandle block = *small.create(kSize);
  EXPECT_EQ(small.create(kSize).error().code, ErrorCode::kResourceExhausted);
  ASSERT_TRUE(small.release(block));
  const BlockHandle again = *small.create(kSize);
  ASSERT_TRUE(small.release(again));
  EXPECT_EQ(driver.create(std::size_t{1} << 63).error().code, ErrorCode::kResourceExhausted);
}

TEST_F(HostVmm, TheCopierCopiesEveryByteWithAnyNumberOfThreads) {
  const BlockHandle block = map_new_block();
  std::vector<std::byte> host(kSize - 12345), back(host.size());
  for (std::size_t i = 0; i < host.size(); ++i)
    host[i] = static_cast<std::byte>(i * 131 >> 3);
  for (std::uint32_t threads : {1U, 2U, 3U, 7U}) {
    HostCopier copier(threads);
    std::memset(address, 0, kSize);
    ASSERT_TRUE(copier.to_device(address, host));
    ASSERT_TRUE(copier.to_host(back, address));
    EXPECT_EQ(back, host) << threads;
    EXPECT_EQ(address[host.size()], std::byte{0});
  }
  drop(block);
}

}  // namespace
}  // namespace dormouse
