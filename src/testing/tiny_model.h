// Makes complete llama models of a few hundred KiB: random weights, a byte-level vocabulary, and
// ChatML.
//
// The same options give the same bytes on every machine. Tokens 0 to 2 are <|endoftext|>,
// <|im_start|> (BOS) and <|im_end|> (EOS), then come the 256 bytes, then one token for each merge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dormouse/result.h"
#include "format/ggml_type.h"

namespace dormouse::testing {

extern const std::string_view kChatMlTemplate;

struct TinyModelOptions {
  // Of all matrices: F32, F16, BF16, Q8_0, Q4_0 or Q4_1. Quantised rows must be multiples of 32.
  format::GgmlType type = format::GgmlType::kF32;
  std::uint32_t layers = 2;
  std::uint32_t embd = 64;
  std::uint32_t heads = 2;
  std::uint32_t kv_heads = 1;
  std::uint32_t ffn = 128;
  std::uint32_t context = 512;
  float rope_base = 10000;
  bool tied = false;  // the output matrix is the embedding
  std::uint64_t seed = 1;
  // Control tokens and unprintable bytes get small logits: greedy text is readable and runs on.
  bool printable = true;
  std::string chat_template{kChatMlTemplate};  // empty: the key is left out

  // Damage: integer keys with another value, and keys or tensors left out, each by its name.
  std::map<std::string, std::uint32_t> replaced = {};
  std::set<std::string> omitted = {};
};

std::vector<std::byte> tiny_model(const TinyModelOptions& options);
Status write_tiny_model(const std::string& path, const TinyModelOptions& options = {});

// The strings of the vocabulary and of the merges, as they stand in the file.
std::vector<std::string> tiny_vocabulary();
std::vector<std::string> tiny_merges();

}  // namespace dormouse::testing
