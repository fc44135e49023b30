#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cstring>

#include "device/host/block_census.h"
#include "device/host/host_memory.h"
#include "device/host/host_vmm_driver.h"

namespace dormouse {
namespace {

constexpr std::size_t kSize = std::size_t{2} << 20;

// The owner's driver, and one that stands for a peer's.
struct SharedBlock : ::testing::Test {
  SharedBlock() {
    EXPECT_TRUE(owner.map(own, kSize, block));
    EXPECT_TRUE(owner.set_access(own, kSize, Access::kReadWrite));
    std::memset(own, 1, kSize);
  }
  ~SharedBlock() override {
    EXPECT_TRUE(owner.unmap(own, kSize));
    EXPECT_TRUE(owner.release(block));
  }
  BlockHandle map_import() {
    const BlockHandle imported = *peer.import_block(*owner.export_block(block), kSize);
    EXPECT_TRUE(peer.map(theirs, kSize, imported));
    EXPECT_TRUE(peer.set_access(theirs, kSize, Access::kRead));
    return imported;
  }

  HostVmmDriver owner, peer;
  std::byte* own = *owner.reserve(kSize);
  std::byte* theirs = *peer.reserve(kSize);
  BlockHandle block = *owner.create(kSize);
};

TEST_F(SharedBlock, AnImportShowsWhatTheOwnerWritesAndCanNotBeMadeWritable) {
  const BlockHandle imported = map_import();
  EXPECT_EQ(theirs[kSize - 1], std::byte{1});
  std::memset(own, 2, kSize);
  EXPECT_EQ(theirs[kSize - 1], std::byte{2});
  EXPECT_FALSE(peer.set_access(theirs, kSize, Access::kReadWrite));
  EXPECT_DEATH(theirs[0] = std::byte{3}, "");
  EXPECT_TRUE(peer.unmap(theirs, kSize));
  EXPECT_TRUE(peer.release(imported));
}

TEST_F(SharedBlock, AReceiverCanNeitherWriteNorResizeNorPunchHoles) {
  const UniqueFd received = *owner.export_block(block);
  EXPECT_EQ(::fcntl(received.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
  const std::string path = "/proc/self/fd/" + std::to_string(received.get());
  const UniqueFd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(again) << "the seals must hold even against who owns the file";
  EXPECT_EQ(::pwrite(again.get(), "x", 1, 0), -1);
  EXPECT_EQ(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0), MAP_FAILED);
  void* hidden = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, again.get(), 0);
  EXPECT_EQ(::mprotect(hidden, kSize, PROT_READ | PROT_WRITE), -1);
  ::munmap(hidden, kSize);
  EXPECT_EQ(::ftruncate(again.get(), 0), -1);
  EXPECT_EQ(::ftruncate(again.get(), 2 * kSize), -1);
  EXPECT_EQ(::fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kSize), -1);
  EXPECT_EQ(own[0], std::byte{1});
}

TEST_F(SharedBlock, TheOwnerWritesOnAfterAnExportAndExportsAgain) {
  const UniqueFd first = *owner.export_block(block);
  ASSERT_TRUE(owner.set_access(own, kSize, Access::kRead));
  ASSERT_TRUE(owner.set_access(own, kSize, Access::kReadWrite));
  own[0] = std::byte{7};
  const UniqueFd second = *owner.export_block(block);
  char seen = 0;
  ASSERT_EQ(::pread(second.get(), &seen, 1, 0), 1);
  EXPECT_EQ(seen, 7);
}

TEST_F(SharedBlock, OnlyASealedBlockOfTheStatedSizeIsImported) {
  const auto refusal = [&](UniqueFd fd, std::size_t size) {
    return peer.import_block(std::move(fd), size).error().code;
  };
  EXPECT_EQ(refusal(*owner.export_block(block), 2 * kSize), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(*owner.export_block(block), kSize / 2), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(*owner.export_block(block), 0), ErrorCode::kDataLoss);
  UniqueFd could_shrink(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(could_shrink.get(), kSize), 0);
  EXPECT_EQ(refusal(std::move(could_shrink), kSize), ErrorCode::kDataLoss);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd other_end(ends[1]);
  EXPECT_EQ(refusal(UniqueFd(ends[0]), kSize), ErrorCode::kDataLoss);
  EXPECT_FALSE(peer.import_block(UniqueFd(), kSize));
}

TEST_F(SharedBlock, AnImportTakesNoRoomOfTheImporter) {
  HostVmmDriver small(kSize);
  const BlockHandle imported = *small.import_block(*owner.export_block(block), kSize);
  const auto created = small.create(kSize);
  ASSERT_TRUE(created);
  ASSERT_TRUE(small.release(imported));
  EXPECT_EQ(small.create(kSize).error().code, ErrorCode::kResourceExhausted);
  ASSERT_TRUE(small.release(*created));
}

TEST_F(SharedBlock, TheMemoryIsFreeOnceBothHaveReleasedIt) {
  const BlockHandle extra = *owner.create(kSize);
  const BlockCensus before = *own_blocks();
  const BlockHandle imported = *peer.import_block(*owner.export_block(extra), kSize);
  ASSERT_TRUE(owner.release(extra));
  EXPECT_TRUE(gone_since(before, *own_blocks()).empty()) << "the importer still holds it";
  ASSERT_TRUE(peer.release(imported));
  const BlockCensus gone = gone_since(before, *own_blocks());
  EXPECT_EQ(bytes_of(gone), kSize);
  EXPECT_TRUE(holders_of(gone).empty());
}

TEST_F(SharedBlock, OfThisProcessOnlyImportsAreHeld) {
  const std::vector<BlockHandle> blocks{block};
  EXPECT_EQ((*owner.holding(blocks))(::getpid()), 0U);
  {
    const UniqueFd exported = *owner.export_block(block);
    EXPECT_EQ((*owner.holding(blocks))(::getpid()), kSize);
  }
  EXPECT_EQ((*owner.holding(blocks))(::getpid()), 0U);
  const BlockHandle imported = map_import();
  EXPECT_EQ((*owner.holding(blocks))(::getpid()), kSize) << "by two, and counted once";
  ASSERT_TRUE(peer.release(imported));
  EXPECT_EQ((*owner.holding(blocks))(::getpid()), kSize) << "the mapping is left";
  ASSERT_TRUE(peer.unmap(theirs, kSize));
  EXPECT_EQ((*owner.holding(blocks))(::getpid()), 0U);
}

TEST_F(SharedBlock, AnotherProcessHoldsABlockUntilItDies) {
  const std::vector<BlockHandle> blocks{block};
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_EQ((*owner.holding(blocks))(child), kSize);
  const BlockHandle later = *owner.create(kSize);
  EXPECT_EQ((*owner.holding(std::vector{later}))(child), 0U);
  ASSERT_TRUE(owner.release(later));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  siginfo_t died{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &died, WEXITED | WNOWAIT), 0);
  EXPECT_EQ((*owner.holding(blocks))(child), 0U) << "it is dead, though nobody collected it";
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ((*owner.holding(blocks))(child), 0U);
}

}  // namespace
}  // namespace dormouse
