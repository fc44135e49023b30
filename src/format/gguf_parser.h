// Walks a GGUF file from front to back and fills a GgufFile, checking each number before its use.
//
// Errors: kDataLoss for a file that contradicts itself or breaks a limit of gguf.h, kUnsupported
//         for a version or tensor type that is not read.
#pragma once

#include <cstdint>

#include "dormouse/result.h"
#include "format/gguf.h"
#include "format/gguf_cursor.h"

namespace dormouse::format {

class GgufParser {
 public:
  static Status parse(GgufFile& file);

 private:
  explicit GgufParser(GgufFile& file)
      : file_(file), cursor_(file.file_.bytes(), file.file_.path()) {}

  Status read_header();
  Status read_keys();
  Status read_key(std::uint64_t index);
  Result<GgufValue> read_value();
  Status read_array(GgufValue& value);
  Status read_alignment();
  Status read_tensors();
  Status read_tensor(std::uint64_t index);
  Status read_dims(TensorInfo& info);
  Status read_type(TensorInfo& info);
  Status place_tensors();

  GgufFile& file_;
  GgufCursor cursor_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t key_count_ = 0;
};

}  // namespace dormouse::format
