// Writes small valid GGUF files into a folder, for the fuzzer to start from.
#include <cstdio>
#include <string>
#include <vector>

#include "format/gguf_writer.h"
#include "testing/tiny_model.h"

using dormouse::format::GgmlType;
using dormouse::format::GgufWriter;

namespace {

GgufWriter every_kind(std::uint32_t version) {
  GgufWriter writer({.version = version, .alignment = 8});
  writer.add("general.alignment", std::uint32_t{8});
  writer.add("a", std::int8_t{-1});
  writer.add("b", std::uint16_t{2});
  writer.add("c", std::int64_t{3});
  writer.add("d", 4.0);
  writer.add("e", true);
  writer.add("f", "text");
  const std::vector<std::string> texts = {"x", "", "yz"};
  writer.add_array("g", std::span(texts));
  const std::vector<float> floats = {1, 2};
  writer.add_array("h", std::span(floats));
  const std::vector<std::uint64_t> dims = {32, 2};
  writer.add_tensor("t", GgmlType::kQ4_1, dims, std::vector<std::byte>(40));
  writer.add_tensor("u", GgmlType::kF16, dims, std::vector<std::byte>(128));
  return writer;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fputs("usage: gguf_seeds FOLDER\n", stderr);
    return 2;
  }
  const std::string folder = arguments[1];
  const bool written =
      every_kind(2).write(folder + "/v2.gguf") && every_kind(3).write(folder + "/v3.gguf") &&
      dormouse::testing::write_tiny_model(
          folder + "/tiny.gguf",
          {.type = GgmlType::kQ4_0, .layers = 1, .embd = 32, .heads = 1, .kv_heads = 1, .ffn = 32});
  return written ? 0 : 1;
}
