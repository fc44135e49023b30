#include "transfer/ipc/ipc_agent.h"

#include <fmt/core.h>

#include "base/check.h"
#include "base/json.h"
#include "transfer/ipc/imported_memory.h"
#include "transfer/ipc/span_copier.h"

namespace dormouse {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 46;  // half of what a process can address
constexpr std::size_t kMostBlocks = 1 << 16;

std::vector<BlockHandle> blocks_of(const KvCaches& caches) {
  std::vector<BlockHandle> blocks;
  for (const std::uint64_t id : caches.device_blocks)
    blocks.push_back({id});
  return blocks;
}

tl::unexpected<Error> no_metadata(const char* why) {
  return fail(ErrorCode::kDataLoss, fmt::format("not the metadata of a registration: {}", why));
}

// What a peer states about its memory, checked as far as this side can.
struct Metadata {
  std::vector<std::size_t> block_sizes;
  std::size_t bytes = 0;  // of use; the rest of the last block is not
};

std::string encode(const Metadata& metadata) {
  Json sizes{Json::Array{}};
  for (const std::size_t size : metadata.block_sizes)
    sizes.push(size);
  Json message;
  message.add("block_sizes", std::move(sizes));
  message.add("bytes", metadata.bytes);
  return to_msgpack(message);
}

Result<Metadata> decode(const std::string& bytes, std::size_t granularity) {
  DM_TRY_ASSIGN(const Json message, parse_msgpack(bytes, {.depth = 4, .values = 2 * kMostBlocks}));
  const Json* sizes = message.find("block_sizes");
  if (!sizes || !sizes->array() || sizes->array()->size() > kMostBlocks)
    return no_metadata("it has no list of sizes");
  Metadata metadata;
  std::size_t total = 0;
  for (const Json& entry : *sizes->array()) {
    const std::size_t size = entry.as_unsigned();
    if (size == 0 || size % granularity != 0 || size > kMostBytes - total)
      return no_metadata("no block has such a size");
    metadata.block_sizes.push_back(size);
    total += size;
  }
  const Json* used = message.find("bytes");
  metadata.bytes = used ? used->as_unsigned() : 0;
  if (metadata.bytes == 0 || metadata.bytes > total)
    return no_metadata("the blocks do not hold so many bytes");
  return metadata;
}

class IpcRegistration final : public MemoryRegistration {
 public:
  IpcRegistration(VmmDriver& driver, std::vector<BlockHandle> blocks, Metadata metadata)
      : driver_(driver), blocks_(std::move(blocks)), metadata_(std::move(metadata)) {}

  Result<ExportedMemory> export_memory() override {
    ExportedMemory exported{encode(metadata_)};
    for (const BlockHandle block : blocks_) {
      DM_TRY_ASSIGN(UniqueFd descriptor, driver_.export_block(block));
      exported.descriptors.push_back(std::move(descriptor));
    }
    return exported;
  }

 private:
  VmmDriver& driver_;
  std::vector<BlockHandle> blocks_;
  Metadata metadata_;
};

class IpcAgent final : public TransferAgent {
 public:
  IpcAgent(VmmDriver& driver, unsigned threads) : driver_(driver), copier_(threads) {}

  Result<std::unique_ptr<MemoryRegistration>> register_memory(const KvCaches& caches) override {
    DM_CHECK(caches.driver != nullptr, "the cache is no driver's memory");
    Metadata metadata{.block_sizes = {}, .bytes = caches.bytes.size()};
    for (const BlockHandle block : blocks_of(caches)) {
      DM_TRY_ASSIGN(const std::size_t size, caches.driver->block_size(block));
      metadata.block_sizes.push_back(size);
    }
    return std::make_unique<IpcRegistration>(*caches.driver, blocks_of(caches),
                                             std::move(metadata));
  }

  Result<std::unique_ptr<RemoteMemory>> import_memory(ExportedMemory exported) override {
    DM_TRY_ASSIGN(const Metadata metadata, decode(exported.metadata, driver_.granularity()));
    if (exported.descriptors.size() != metadata.block_sizes.size())
      return no_metadata("there is not one descriptor for each block");
    return ImportedMemory::map(driver_, std::move(exported.descriptors), metadata.block_sizes,
                               metadata.bytes);
  }

  Status read(const RemoteMemory& remote, std::span<const ReadSpan> spans,
              const ReadControl& control) override {
    const auto* memory = dynamic_cast<const ImportedMemory*>(&remote);
    DM_CHECK(memory != nullptr, "the memory was imported by another agent");
    for (const ReadSpan& span : spans)
      if (span.remote_offset > memory->size() || span.bytes > memory->size() - span.remote_offset)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} bytes at {} are outside the peer's {} bytes", span.bytes,
                                span.remote_offset, memory->size()));
    return copier_.copy(memory->data(), spans, control);
  }

  Result<BytesHeldBy> holding(const KvCaches& caches) const override {
    DM_CHECK(caches.driver != nullptr, "the cache is no driver's memory");
    return caches.driver->holding(blocks_of(caches));
  }

 private:
  VmmDriver& driver_;
  SpanCopier copier_;
};

}  // namespace

std::unique_ptr<TransferAgent> make_ipc_agent(VmmDriver& driver, unsigned threads) {
  return std::make_unique<IpcAgent>(driver, threads);
}

}  // namespace dormouse
