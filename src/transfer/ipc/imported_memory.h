// Blocks of another process, side by side in one range of addresses, read-only.
//
// Owns: the range and its mappings; nothing of the peer's memory is held after it.
#pragma once

#include <span>

#include "device/vmm_driver.h"
#include "transfer/transfer_agent.h"

namespace dormouse {

class ImportedMemory final : public RemoteMemory {
 public:
  // `bytes`: how many of the blocks' are of use.
  static Result<std::unique_ptr<ImportedMemory>> map(VmmDriver& driver,
                                                     std::vector<UniqueFd> descriptors,
                                                     std::span<const std::size_t> sizes,
                                                     std::size_t bytes);
  ~ImportedMemory() override;
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;

  std::size_t size() const override { return bytes_; }
  const std::byte* data() const { return address_; }

 private:
  ImportedMemory(VmmDriver& driver, std::byte* address, std::size_t reserved, std::size_t bytes)
      : driver_(driver), address_(address), reserved_(reserved), bytes_(bytes) {}
  Status append(UniqueFd descriptor, std::size_t size);

  VmmDriver& driver_;
  std::byte* address_;
  std::size_t reserved_;
  std::size_t bytes_;
  std::size_t mapped_ = 0;           // bytes from the start
  std::vector<std::size_t> pieces_;  // that are mapped, in order
};

}  // namespace dormouse
