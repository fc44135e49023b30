#include "kv_connector/offload/disk_tier.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <map>

#include "base/unique_fd.h"
#include "kv_connector/connector_fixture.h"
#include "kv_connector/offload/disk_block.h"
#include "testing/corrupt.h"

namespace dormouse {
namespace {

namespace fs = std::filesystem;
using testing::flip_bit;
using testing::truncate_file;

constexpr std::size_t kBlock = 256;

std::string key_of(int number) {
  std::string key(64, '0');
  const std::string digits = std::to_string(number);
  return key.replace(0, 2, "ab").replace(64 - digits.size(), digits.size(), digits);
}

std::vector<std::byte> bytes_of(int number, std::size_t size = kBlock) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(number) * 13);
  return bytes;
}

class DiskTierTest : public ::testing::Test {
 protected:
  std::unique_ptr<DiskTier> open(std::uint64_t limit = 0, std::uint32_t rank = 0) {
    return *DiskTier::create({.path = folder_.path(), .limit_bytes = limit, .rank = rank});
  }
  std::string file(int number, std::uint32_t rank = 0) const {
    return DiskTier::file_of(folder_.path(), key_of(number), rank);
  }
  // Reads what should be there; false: a miss.
  static bool has(DiskTier& tier, int number, std::size_t size = kBlock) {
    std::vector<std::byte> bytes(size);
    if (!tier.read(key_of(number), bytes))
      return false;
    EXPECT_EQ(bytes, bytes_of(number, size));
    return true;
  }
  static std::uint64_t faults(const DiskTier& tier) {
    std::uint64_t sum = 0;
    for (std::size_t kind = 0; kind < kDiskFaults; ++kind)
      sum += tier.faults(static_cast<DiskFault>(kind));
    return sum;
  }
  // A wrong file: a miss of this kind, and no file any more.
  void expect_refused(DiskTier& tier, int number, DiskFault kind, const std::string& what) {
    const std::uint64_t before = tier.faults(kind);
    const std::uint64_t all = faults(tier);
    EXPECT_FALSE(has(tier, number)) << what;
    EXPECT_EQ(tier.faults(kind), before + 1) << what;
    EXPECT_EQ(faults(tier), all + 1) << what;
    EXPECT_FALSE(tier.exists(key_of(number))) << what;
  }

  ScratchFolder folder_;
};

TEST_F(DiskTierTest, ReadsWhatWasWritten) {
  auto tier = open();
  EXPECT_FALSE(has(*tier, 1));
  EXPECT_EQ(tier->faults(DiskFault::kVanished), 1U);
  tier->write(key_of(1), bytes_of(1));
  EXPECT_TRUE(has(*tier, 1));
  EXPECT_TRUE(has(*open(), 1)) << "after a restart";
  EXPECT_EQ(file(1), folder_.path() + "/ab/" + key_of(1) + ".r0.kv");
  EXPECT_EQ(fs::file_size(file(1)), kBlockHeaderBytes + kBlock);
}

TEST_F(DiskTierTest, RefusesEveryTruncation) {
  auto tier = open();
  for (std::size_t size = 0; size < kBlockHeaderBytes + kBlock; ++size) {
    tier->write(key_of(1), bytes_of(1));
    truncate_file(file(1), size);
    expect_refused(*tier, 1, DiskFault::kTorn, std::to_string(size));
  }
}

TEST_F(DiskTierTest, RefusesEveryFlippedBit) {
  auto tier = open();
  for (std::size_t offset = 0; offset < kBlockHeaderBytes + kBlock; ++offset) {
    for (const unsigned bit : {0U, 7U}) {
      tier->write(key_of(1), bytes_of(1));
      flip_bit(file(1), offset, bit);
      EXPECT_FALSE(has(*tier, 1)) << offset;
      EXPECT_FALSE(tier->exists(key_of(1))) << offset;
    }
  }
  EXPECT_EQ(tier->faults(DiskFault::kChecksum), 2 * (kBlock + 16));
  EXPECT_EQ(tier->faults(DiskFault::kForeign), 2 * (kBlockHeaderBytes - 16));
}

TEST_F(DiskTierTest, RefusesWhatIsNotTheBlockOfThatName) {
  auto tier = open();
  tier->write(key_of(1), bytes_of(1));
  fs::copy(file(1), file(2));
  expect_refused(*tier, 2, DiskFault::kForeign, "the file of another key");

  open(0, 1)->write(key_of(3), bytes_of(3));
  fs::copy(file(3, 1), file(3));
  expect_refused(*tier, 3, DiskFault::kForeign, "the file of another rank");

  tier->write(key_of(4), bytes_of(4, 2 * kBlock));
  expect_refused(*tier, 4, DiskFault::kForeign, "a longer block");

  std::ofstream(file(5)) << "something else, and long enough to be a block: "
                         << std::string(kBlock + kBlockHeaderBytes, 'x');
  expect_refused(*tier, 5, DiskFault::kForeign, "no block at all");

  fs::create_symlink(file(1), file(6));
  expect_refused(*tier, 6, DiskFault::kForeign, "a link");
  ASSERT_EQ(::mkfifo(file(7).c_str(), 0600), 0);
  expect_refused(*tier, 7, DiskFault::kForeign, "a pipe");
  EXPECT_TRUE(has(*tier, 1));
}

// The name appears by a rename and in no other way: nobody ever sees a file that is not finished.
TEST_F(DiskTierTest, PublishesWholeFiles) {
  auto tier = open();
  tier->write(key_of(1), bytes_of(1));
  const UniqueFd events(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  const std::string folder = folder_.path() + "/ab";
  ASSERT_GE(::inotify_add_watch(events.get(), folder.c_str(), IN_ALL_EVENTS), 0);
  tier->write(key_of(2), bytes_of(2));
  alignas(inotify_event) char buffer[4096];
  const ssize_t size = ::read(events.get(), buffer, sizeof buffer);
  ASSERT_GT(size, 0);
  std::uint32_t seen = 0;
  for (ssize_t at = 0; at < size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
    if (event->len > 0 && folder + "/" + event->name == file(2))
      seen |= event->mask;
    at += static_cast<ssize_t>(sizeof *event + event->len);
  }
  EXPECT_TRUE(seen & IN_MOVED_TO);
  EXPECT_FALSE(seen & (IN_CREATE | IN_OPEN | IN_MODIFY));
}

TEST_F(DiskTierTest, StaysBelowItsLimitAndKeepsWhatWasUsedLast) {
  const std::uint64_t one = kBlockHeaderBytes + kBlock;
  auto tier = open(4 * one);
  const auto age = [this](int number, int minutes) {
    fs::last_write_time(file(number),
                        fs::file_time_type::clock::now() - std::chrono::minutes(minutes));
  };
  for (int i = 1; i <= 4; ++i) {
    tier->write(key_of(i), bytes_of(i));
    age(i, 10 - i);
  }
  EXPECT_EQ(tier->evictions(), 0U);
  EXPECT_TRUE(has(*tier, 1)) << "used again";
  tier->write(key_of(3), bytes_of(3));
  tier->write(key_of(5), bytes_of(5));
  tier->write(key_of(6), bytes_of(6));
  EXPECT_EQ(tier->evictions(), 2U);
  for (const auto& [number, there] :
       std::map<int, bool>{{1, true}, {2, false}, {3, true}, {4, false}, {5, true}, {6, true}})
    EXPECT_EQ(has(*tier, number), there) << number;
  tier->write(key_of(7), bytes_of(7, 8 * one));
  EXPECT_EQ(tier->faults(DiskFault::kNoSpace), 1U) << "more than the limit alone";
  EXPECT_TRUE(has(*tier, 6)) << "and nothing went for it";
}

TEST_F(DiskTierTest, SharesTheLimitWithOtherInstances) {
  const std::uint64_t one = kBlockHeaderBytes + kBlock;
  auto first = open(8 * one);
  auto second = open(8 * one);
  for (int i = 0; i < 40; ++i)
    (i % 2 == 0 ? first : second)->write(key_of(i), bytes_of(i));
  std::uint64_t total = 0;
  for (const auto& each : fs::recursive_directory_iterator(folder_.path()))
    total += each.is_regular_file() ? each.file_size() : 0;
  EXPECT_LE(total, 9 * one);
  EXPECT_GE(total, 6 * one);
  EXPECT_TRUE(has(*first, 39)) << "each reads what the other wrote";
  EXPECT_TRUE(has(*second, 38));
}

TEST_F(DiskTierTest, LeavesAloneWhatIsNotItsOwn) {
  const std::uint64_t one = kBlockHeaderBytes + kBlock;
  auto tier = open(2 * one);
  tier->write(key_of(1), bytes_of(1));
  const std::string notes = folder_.path() + "/ab/notes.txt";
  const std::string unfinished = file(8) + ".1.2.kv.tmp";
  const std::string abandoned = file(9) + ".1.2.kv.tmp";
  std::vector<std::string> others = {notes};
  for (const char* name : {"x.kv", "foo.r0.kv", "notes.kv.tmp"})
    others.push_back(folder_.path() + "/ab/" + name);
  fs::create_directory(folder_.path() + "/cd");
  others.push_back(folder_.path() + "/cd/" + fs::path(file(3)).filename().string());
  for (const std::string& each : others)
    std::ofstream(each) << std::string(kBlock, 'x');
  for (const std::string& each : {unfinished, abandoned})
    std::ofstream(each) << std::string(kBlock, 'x');
  others.push_back(abandoned);
  for (const std::string& each : others)
    fs::last_write_time(each, fs::file_time_type::clock::now() - std::chrono::hours(1));
  for (int i = 2; i < 9; ++i)
    tier->write(key_of(i), bytes_of(i));
  others.pop_back();
  for (const std::string& each : others)
    EXPECT_TRUE(fs::exists(each)) << each;
  EXPECT_TRUE(fs::exists(unfinished)) << "somebody writes it";
  EXPECT_FALSE(fs::exists(abandoned));
}

// Of one file, for this process; beyond it the kernel says EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : signals_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, signals_);
  }

 private:
  void (*signals_)(int);
  rlimit before_{};
};

TEST_F(DiskTierTest, AFailedWriteLeavesNothingAndIsCounted) {
  auto tier = open();
  {
    const FileSizeLimit limit(kBlockHeaderBytes + kBlock / 2);
    tier->write(key_of(1), bytes_of(1));
  }
  EXPECT_EQ(tier->faults(DiskFault::kIo), 1U);
  EXPECT_TRUE(fs::is_empty(folder_.path() + "/ab"));
  tier->write(key_of(1), bytes_of(1));
  EXPECT_TRUE(has(*tier, 1));
}

// A filesystem of one megabyte; needs the right to mount.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=1m") == 0;
  }
  ~SmallDisk() {
    if (mounted_)
      ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  bool make_read_only() const {
    return ::mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m") == 0;
  }

 private:
  std::string path_;
  bool mounted_;
};

TEST_F(DiskTierTest, MakesRoomOnceOnAFullFilesystemAndThenPassesItBy) {
  const SmallDisk disk(folder_.path());
  if (!disk.mounted())
    GTEST_SKIP() << "needs the right to mount: " << std::strerror(errno);
  auto tier = open();
  constexpr std::size_t kBig = 200'000;
  for (int i = 0; i < 12; ++i) {
    tier->write(key_of(i), bytes_of(i, kBig));
    EXPECT_TRUE(has(*tier, i, kBig)) << i;
  }
  EXPECT_GE(tier->evictions(), 7U);
  EXPECT_EQ(tier->faults(DiskFault::kNoSpace), 0U);

  tier->write(key_of(20), bytes_of(20, 2'000'000));
  EXPECT_EQ(tier->faults(DiskFault::kNoSpace), 1U);
  EXPECT_FALSE(tier->exists(key_of(20)));
  for (const auto& each : fs::recursive_directory_iterator(folder_.path()))
    EXPECT_FALSE(each.is_regular_file() && each.path().extension() == ".tmp") << each.path();
  tier->write(key_of(21), bytes_of(21, kBig));
  EXPECT_TRUE(has(*tier, 21, kBig));
}

TEST_F(DiskTierTest, SomebodyElsesFullFilesystemIsPassedBy) {
  const SmallDisk disk(folder_.path());
  if (!disk.mounted())
    GTEST_SKIP() << "needs the right to mount: " << std::strerror(errno);
  auto tier = open(std::uint64_t{1} << 30);
  std::ofstream(folder_.path() + "/theirs") << std::string(2'000'000, 'x');
  tier->write(key_of(1), bytes_of(1));
  EXPECT_EQ(tier->faults(DiskFault::kNoSpace), 1U);
  EXPECT_FALSE(has(*tier, 1));
}

TEST_F(DiskTierTest, ReadsFromAReadOnlyFilesystemAndCountsWhatItCannotWrite) {
  const SmallDisk disk(folder_.path());
  if (!disk.mounted())
    GTEST_SKIP() << "needs the right to mount: " << std::strerror(errno);
  auto tier = open();
  tier->write(key_of(1), bytes_of(1));
  tier->write(key_of(2), bytes_of(2));
  flip_bit(file(2), kBlockHeaderBytes);
  ASSERT_TRUE(disk.make_read_only()) << std::strerror(errno);
  tier->write(key_of(3), bytes_of(3));
  EXPECT_EQ(tier->faults(DiskFault::kIo), 1U);
  EXPECT_TRUE(has(*tier, 1));
  EXPECT_FALSE(has(*tier, 2));
  EXPECT_TRUE(tier->exists(key_of(2))) << "it cannot be deleted, and still is not served";
}

}  // namespace
}  // namespace dormouse
