// Feeds arbitrary bytes to the GGUF reader and reads all that it accepts.
#include <cstddef>
#include <cstdint>
#include <span>

#include "format/gguf.h"
#include "testing/memory_file.h"
#include "testing/read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dormouse::testing::MemoryFile memory(std::as_bytes(std::span(data, size)));
  if (const auto file = dormouse::format::GgufFile::open(memory.path()))
    dormouse::testing::read_everything(*file);
  return 0;
}
