#include "transfer/ipc/ipc_agent.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "base/json.h"
#include "device/host/host_vmm_driver.h"
#include "testing/instrumented_vmm_driver.h"

namespace dormouse {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;
constexpr std::size_t kPieces = 3;
constexpr std::size_t kSize = kPiece * kPieces - 4096;  // the last block is not used up

std::byte byte_at(std::size_t at) {
  return static_cast<std::byte>(at * 2654435761U >> 13);
}

ReadControl unhurried() {
  return {std::chrono::steady_clock::now() + std::chrono::seconds(20)};
}

// A cache as a rank has it: several blocks behind one range of addresses.
struct Cache {
  Cache() {
    for (std::size_t i = 0; i < kPieces; ++i) {
      const BlockHandle block = *driver.create(kPiece);
      EXPECT_TRUE(driver.map(address + i * kPiece, kPiece, block));
      caches.device_blocks.push_back(block.id);
    }
    EXPECT_TRUE(driver.set_access(address, kPieces * kPiece, Access::kReadWrite));
    caches.bytes = {address, kSize};
    caches.driver = &driver;
    for (std::size_t at = 0; at < kSize; ++at)
      address[at] = byte_at(at);
  }
  ~Cache() {
    EXPECT_TRUE(driver.unmap(address, kPieces * kPiece));
    for (const std::uint64_t id : caches.device_blocks)
      EXPECT_TRUE(driver.release({id}));
  }

  HostVmmDriver driver;
  std::byte* address = *driver.reserve(kPieces * kPiece);
  KvCaches caches;
};

struct IpcAgent : ::testing::Test {
  ExportedMemory exported() { return *registration->export_memory(); }
  ErrorCode refusal(ExportedMemory memory) {
    const auto imported = importer->import_memory(std::move(memory));
    EXPECT_FALSE(imported);
    return imported ? ErrorCode::kInternal : imported.error().code;
  }
  std::uint64_t held() { return *(*owner->holding(cache.caches))(::getpid()); }

  Cache cache;
  HostVmmDriver host;
  testing::FaultPlan faults;
  testing::InstrumentedVmmDriver driver{host, &faults};
  std::unique_ptr<TransferAgent> owner = make_ipc_agent(cache.driver, 1);
  std::unique_ptr<TransferAgent> importer = make_ipc_agent(driver, 3);
  std::unique_ptr<MemoryRegistration> registration = *owner->register_memory(cache.caches);
};

TEST_F(IpcAgent, ReadsTheBytesOfSpansOfAnySizeAcrossBlocks) {
  const auto remote = *importer->import_memory(exported());
  EXPECT_EQ(remote->size(), kSize);
  std::vector<std::byte> local(kSize + 1);
  std::vector<ReadSpan> spans;
  for (std::size_t at = 0, size = 1; at < kSize; size = size * 3 + 1) {
    const std::size_t part = std::min(size, kSize - at);
    spans.push_back({at, local.data() + at, part});
    spans.push_back({kSize, local.data(), 0});
    at += part;
  }
  ASSERT_TRUE(importer->read(*remote, spans, unhurried()));
  for (std::size_t at = 0; at < kSize; ++at)
    ASSERT_EQ(local[at], byte_at(at)) << at;
  EXPECT_EQ(local[kSize], std::byte{0});
}

TEST_F(IpcAgent, SeveralReadsAtATimeAllSucceed) {
  const auto remote = *importer->import_memory(exported());
  std::vector<std::vector<std::byte>> local(4, std::vector<std::byte>(kSize));
  {
    std::vector<std::jthread> readers;
    for (auto& to : local)
      readers.emplace_back([&] {
        const std::vector<ReadSpan> spans{{0, to.data(), kSize}};
        EXPECT_TRUE(importer->read(*remote, spans, unhurried()));
      });
  }
  for (const auto& read : local)
    EXPECT_EQ(std::memcmp(read.data(), cache.address, kSize), 0);
}

TEST_F(IpcAgent, SpansOutsideTheMemoryAreRefusedBeforeAnythingIsWritten) {
  const auto remote = *importer->import_memory(exported());
  std::vector<std::byte> local(100, std::byte{9});
  const std::uint64_t top = std::numeric_limits<std::uint64_t>::max();
  for (const ReadSpan bad :
       {ReadSpan{kSize - 9, local.data(), 10}, ReadSpan{kSize, local.data(), 1},
        ReadSpan{top, local.data(), 2}, ReadSpan{2, local.data(), top}}) {
    const std::vector<ReadSpan> spans{{0, local.data(), 100}, bad};
    EXPECT_EQ(importer->read(*remote, spans, unhurried()).error().code,
              ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(local, std::vector(100, std::byte{9}));
}

TEST_F(IpcAgent, MetadataThatIsNoneIsDataLossAndHoldsNothing) {
  const auto with = [&](Json sizes, Json bytes) {
    Json message;
    message.add("block_sizes", std::move(sizes));
    message.add("bytes", std::move(bytes));
    ExportedMemory memory = exported();
    memory.metadata = to_msgpack(message);
    return memory;
  };
  const auto sizes = [](std::size_t a, std::size_t b, std::size_t c) {
    return Json(Json::Array{a, b, c});
  };
  const std::size_t huge = std::numeric_limits<std::size_t>::max() / kPiece * kPiece;
  EXPECT_EQ(refusal({"garbage"}), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal({to_msgpack(Json(7))}), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(with(Json::Array{}, 1)), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(with("sizes", 1)), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(with(Json::Array{kPiece, kPiece}, 1)), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(with(sizes(kPiece, kPiece, 0), 1)), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(with(sizes(kPiece, kPiece, 4096), 1)), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(with(sizes(huge, huge, huge), 1)), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(with(sizes(kPiece, kPiece, 2 * kPiece), 1)), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(with(sizes(kPiece, kPiece, kPiece), 0)), ErrorCode::kDataLoss);
  EXPECT_EQ(refusal(with(sizes(kPiece, kPiece, kPiece), 3 * kPiece + 1)), ErrorCode::kDataLoss);
  EXPECT_TRUE(importer->import_memory(with(sizes(kPiece, kPiece, kPiece), kSize)));
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(driver.mapped_bytes() + driver.reserved_bytes() + driver.imported_bytes(), 0U);
}

TEST_F(IpcAgent, AnImportThatFailsAnywhereHoldsNothing) {
  std::int64_t steps = 0;
  for (;; ++steps) {
    faults.fail_at(steps);
    const auto remote = importer->import_memory(exported());
    const bool fired = faults.fired();
    faults.fail_at(-1);
    if (!fired)
      break;
    ASSERT_FALSE(remote);
    ASSERT_EQ(driver.mapped_bytes() + driver.reserved_bytes(), 0U) << steps;
  }
  EXPECT_EQ(steps, 1 + 4 * std::int64_t{kPieces});
}

TEST_F(IpcAgent, DroppedMemoryHoldsNothing) {
  {
    const ExportedMemory unused = exported();
    EXPECT_EQ(held(), kPieces * kPiece);
  }
  EXPECT_EQ(held(), 0U) << "the registration kept a descriptor";
  auto remote = *importer->import_memory(exported());
  EXPECT_EQ(held(), kPieces * kPiece);
  EXPECT_EQ(driver.imported_bytes(), 0U) << "the mappings alone hold the memory";
  EXPECT_EQ(driver.tracked_bytes(), 0U) << "a peer's memory is not this driver's own";
  remote.reset();
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(driver.mapped_bytes() + driver.reserved_bytes(), 0U);
}

TEST_F(IpcAgent, AReadStopsWhenCancelledOrLate) {
  const auto remote = *importer->import_memory(exported());
  std::vector<std::byte> local(kSize);
  const std::vector<ReadSpan> spans{{0, local.data(), kSize}};
  const std::atomic<bool> cancelled = true;
  ReadControl control = unhurried();
  control.cancelled = &cancelled;
  EXPECT_EQ(importer->read(*remote, spans, control).error().code, ErrorCode::kCancelled);
  EXPECT_EQ(importer->read(*remote, spans, {std::chrono::steady_clock::now()}).error().code,
            ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(std::accumulate(local.begin(), local.end(), 0U,
                            [](unsigned sum, std::byte b) { return sum + unsigned(b); }),
            0U);
}

TEST_F(IpcAgent, AReadUnderWayStopsWhenCancelled) {
  const auto remote = *importer->import_memory(exported());
  std::vector<std::byte> local(kSize);
  // Hours of copying the same bytes over and over.
  const std::vector<ReadSpan> spans(1 << 16, {0, local.data(), kSize});
  std::atomic<bool> cancelled = false;
  ReadControl control{std::chrono::steady_clock::now() + std::chrono::hours(1), &cancelled};
  std::jthread canceller([&] {
    while (*static_cast<volatile std::byte*>(local.data() + 100) == std::byte{0})
      std::this_thread::yield();
    cancelled = true;
  });
  EXPECT_EQ(make_ipc_agent(driver, 1)->read(*remote, spans, control).error().code,
            ErrorCode::kCancelled);
}

TEST_F(IpcAgent, OutlivesItsOwnersRelease) {
  std::unique_ptr<RemoteMemory> remote;
  {
    const Cache other;
    const auto registered = *owner->register_memory(other.caches);
    remote = *importer->import_memory(*registered->export_memory());
  }
  std::vector<std::byte> local(1000);
  const std::vector<ReadSpan> spans{{kPiece - 500, local.data(), local.size()}};
  ASSERT_TRUE(importer->read(*remote, spans, unhurried()));
  for (std::size_t i = 0; i < local.size(); ++i)
    ASSERT_EQ(local[i], byte_at(kPiece - 500 + i)) << "pinned pages keep their bytes";
}

// Lines between two processes.
struct Lines {
  void say(const std::string& text) const {
    EXPECT_EQ(::write(socket.get(), (text + "\n").data(), text.size() + 1),
              static_cast<ssize_t>(text.size() + 1));
  }
  std::string hear() const {
    std::string text;
    for (char c = 0; ::read(socket.get(), &c, 1) == 1 && c != '\n';)
      text += c;
    return text;
  }
  UniqueFd socket;
};

// In a process of its own: takes the blocks from `owner`, reads, and lets go when told to.
[[noreturn]] void consume(pid_t owner, const Lines& lines) {
  ExportedMemory exported{lines.hear()};
  for (std::string number = lines.hear(); !number.empty(); number = lines.hear())
    exported.descriptors.emplace_back(
        ::open(fmt::format("/proc/{}/fd/{}", owner, number).c_str(), O_RDONLY | O_CLOEXEC));
  HostVmmDriver driver;
  const auto agent = make_ipc_agent(driver, 2);
  auto remote = agent->import_memory(std::move(exported));
  std::vector<std::byte> local(kSize);
  const std::vector<ReadSpan> spans{{0, local.data(), kSize}};
  bool right = remote && agent->read(**remote, spans, unhurried());
  for (std::size_t at = 0; right && at < kSize; ++at)
    right = local[at] == byte_at(at);
  lines.say(right ? "right" : "wrong");
  (void)lines.hear();
  if (remote)
    remote->reset();
  lines.say("dropped");
  (void)lines.hear();
  ::_exit(0);
}

TEST(IpcAgentOfTwoProcesses, ReadsTheBytesAndIsSeenUntilItLetsGo) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    consume(parent, {UniqueFd(ends[1])});
  }
  ::close(ends[1]);
  {
    const Lines lines{UniqueFd(ends[0])};
    const Cache cache;
    const auto agent = make_ipc_agent(*cache.caches.driver, 1);
    const auto registration = *agent->register_memory(cache.caches);
    EXPECT_EQ((*agent->holding(cache.caches))(child), 0U);
    {
      const ExportedMemory exported = *registration->export_memory();
      lines.say(exported.metadata);
      for (const UniqueFd& descriptor : exported.descriptors)
        lines.say(std::to_string(descriptor.get()));
      lines.say("");
      EXPECT_EQ(lines.hear(), "right");
    }
    EXPECT_EQ((*agent->holding(cache.caches))(child), kPieces * kPiece);
    EXPECT_EQ((*agent->holding(cache.caches))(parent), 0U);
    lines.say("let go");
    EXPECT_EQ(lines.hear(), "dropped");
    EXPECT_EQ((*agent->holding(cache.caches))(child), 0U);
  }
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace dormouse
