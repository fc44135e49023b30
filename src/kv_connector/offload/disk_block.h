// One file of the disk tier: a header that says what it holds, and the bytes.
//
// Errors: a BlockFileError says which kind, and errno where there is one.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kv_connector/offload/disk_tier.h"

namespace dormouse {

struct BlockName {
  const std::string& key;
  std::uint32_t rank = 0;
};

struct BlockFileError {
  DiskFault kind = DiskFault::kIo;
  int error = 0;  // errno; 0: none
};

using BlockFileResult = tl::expected<void, BlockFileError>;

inline constexpr std::size_t kBlockHeaderBytes = 120;

// Fills `block` only with bytes whose checksum is right; otherwise what it holds is undefined.
BlockFileResult read_block_file(const std::string& file, const BlockName& name,
                                std::span<std::byte> block);

// The file is there, whole and on the disk, or it is not there. `temporary` is in the same folder,
// which is made.
BlockFileResult write_block_file(const std::string& file, const std::string& temporary,
                                 const BlockName& name, std::span<const std::byte> block);

}  // namespace dormouse
