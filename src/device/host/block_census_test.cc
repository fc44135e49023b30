#include "device/host/block_census.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/host/host_vmm_driver.h"

namespace dormouse {
namespace {

constexpr std::size_t kSize = std::size_t{4} << 20;

class Census : public ::testing::Test {
 protected:
  // Blocks that were there before do not concern the test.
  BlockCensus new_blocks() { return gone_since(*own_blocks(), earlier); }

  HostVmmDriver driver;
  BlockCensus earlier = *own_blocks();
};

TEST_F(Census, CountsTheBytesOfEveryBlockOnce) {
  const BlockHandle first = *driver.create(kSize);
  const BlockHandle second = *driver.create(2 * kSize);
  const UniqueFd again = *driver.export_block(first);
  EXPECT_EQ(new_blocks().size(), 2U);
  EXPECT_EQ(bytes_of(new_blocks()), 3 * kSize);
  ASSERT_TRUE(driver.release(second));
  EXPECT_EQ(bytes_of(new_blocks()), kSize);
  ASSERT_TRUE(driver.release(first));
  EXPECT_EQ(bytes_of(new_blocks()), kSize) << "the exported descriptor still holds the block";
}

TEST_F(Census, FindsDescriptorsAndMappingsThatAreLeft) {
  const BlockHandle block = *driver.create(kSize);
  const BlockCensus blocks = new_blocks();
  EXPECT_EQ(holders_of(blocks).size(), 1U);
  std::byte* address = *driver.reserve(kSize);
  ASSERT_TRUE(driver.map(address, kSize, block));
  ASSERT_TRUE(driver.release(block));
  const auto holders = holders_of(blocks);
  ASSERT_EQ(holders.size(), 1U);
  EXPECT_EQ(holders[0].pid, ::getpid());
  EXPECT_EQ(holders[0].through, "/proc/" + std::to_string(::getpid()) + "/maps");
  ASSERT_TRUE(driver.unmap(address, kSize));
  EXPECT_TRUE(holders_of(blocks).empty());
  ASSERT_TRUE(driver.free_reservation(address, kSize));
}

TEST_F(Census, FindsAnotherProcessThatHoldsABlock) {
  const BlockHandle block = *driver.create(kSize);
  const BlockCensus blocks = new_blocks();
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(pipe_ends[1]);
    (void)!::read(pipe_ends[0], &byte, 1);
    ::_exit(0);
  }
  ASSERT_TRUE(driver.release(block));
  const auto holders = holders_of(blocks);
  ASSERT_EQ(holders.size(), 1U);
  EXPECT_EQ(holders[0].pid, child);
  ::close(pipe_ends[1]);
  ::waitpid(child, nullptr, 0);
  ::close(pipe_ends[0]);
  EXPECT_TRUE(holders_of(blocks).empty());
}

TEST_F(Census, SaysWhatAProcessHoldsOnlyOfThoseThatItCanSee) {
  const BlockHandle block = *driver.create(kSize);
  const BlockCensus blocks = new_blocks();
  EXPECT_EQ(bytes_held_by(::getpid(), blocks), 0U) << "for reading";
  const auto foreign = bytes_held_by(0, blocks);
  ASSERT_FALSE(foreign) << "as a peer of another PID namespace is named";
  EXPECT_EQ(foreign.error().code, ErrorCode::kUnavailable);
  ASSERT_TRUE(driver.release(block));
}

}  // namespace
}  // namespace dormouse
