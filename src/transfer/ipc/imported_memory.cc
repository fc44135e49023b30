#include "transfer/ipc/imported_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/log.h"

namespace dormouse {
namespace {

constexpr std::size_t kStretch = std::size_t{32} << 20;

void report(const Status& done, const char* what) {
  if (!done)
    log(LogLevel::kError, "transfer", "leaked what={} error={}", what, done.error().message);
}

// Enters the pages into this process's tables now, so that no read meets a fault for each. Only a
// matter of speed. A call covers a stretch, since it keeps other threads from mapping.
void enter_pages(std::byte* address, std::size_t size) {
  for (std::size_t at = 0; at < size; at += kStretch)
    (void)::madvise(address + at, std::min(kStretch, size - at), MADV_POPULATE_READ);
}

}  // namespace

Result<std::unique_ptr<ImportedMemory>> ImportedMemory::map(VmmDriver& driver,
                                                            std::vector<UniqueFd> descriptors,
                                                            std::span<const std::size_t> sizes,
                                                            std::size_t bytes) {
  DM_CHECK(descriptors.size() == sizes.size(), "one size for each descriptor");
  const std::size_t total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  DM_TRY_ASSIGN(std::byte * address, driver.reserve(total));
  std::unique_ptr<ImportedMemory> memory(new ImportedMemory(driver, address, total, bytes));
  for (std::size_t i = 0; i < sizes.size(); ++i)
    DM_TRY(memory->append(std::move(descriptors[i]), sizes[i]));
  return memory;
}

// The mapping holds the memory from then on: the handle and its descriptor are given back at once.
Status ImportedMemory::append(UniqueFd descriptor, std::size_t size) {
  std::byte* const at = address_ + mapped_;
  DM_TRY_ASSIGN(const BlockHandle block, driver_.import_block(std::move(descriptor), size));
  Status done = driver_.map(at, size, block);
  if (done) {
    pieces_.push_back(size);
    mapped_ += size;
    done = driver_.set_access(at, size, Access::kRead);
  }
  keep_first(done, driver_.release(block));
  if (done)
    enter_pages(at, size);
  return done;
}

ImportedMemory::~ImportedMemory() {
  for (; !pieces_.empty(); pieces_.pop_back()) {
    mapped_ -= pieces_.back();
    report(driver_.unmap(address_ + mapped_, pieces_.back()), "mapping");
  }
  report(driver_.free_reservation(address_, reserved_), "addresses");
}

}  // namespace dormouse
