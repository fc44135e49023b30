#include "testing/tiny_model.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <random>

#include "format/gguf_writer.h"
#include "testing/quantize.h"

namespace dormouse::testing {

const std::string_view kChatMlTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}"
    "{% endif %}";

namespace {

using format::GgmlType;

constexpr std::size_t kControlTokens = 3;
constexpr std::array<std::array<std::string_view, 2>, 18> kMerges = {{{"Ġ", "t"},
                                                                      {"h", "e"},
                                                                      {"Ġ", "a"},
                                                                      {"i", "n"},
                                                                      {"Ġt", "he"},
                                                                      {"e", "r"},
                                                                      {"o", "n"},
                                                                      {"r", "e"},
                                                                      {"Ġ", "s"},
                                                                      {"o", "u"},
                                                                      {"n", "d"},
                                                                      {"Ġa", "nd"},
                                                                      {"l", "l"},
                                                                      {"e", "ll"},
                                                                      {"ell", "o"},
                                                                      {"in", "g"},
                                                                      {"Ġ", "w"},
                                                                      {"Ġ", "Ġ"}}};

bool is_printable(std::size_t byte) {
  return byte >= 0x20 && byte < 0x7f;
}

// The character that stands for a byte in a byte-level vocabulary, in UTF-8.
std::string character_of(std::size_t byte) {
  const auto stands_for_itself = [](std::size_t b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  std::size_t code = byte;
  if (!stands_for_itself(byte)) {
    code = 256;
    for (std::size_t before = 0; before < byte; ++before)
      code += stands_for_itself(before) ? 0 : 1;
  }
  if (code < 0x80)
    return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

class Builder {
 public:
  explicit Builder(const TinyModelOptions& options) : options_(options), random_(options.seed) {}

  format::GgufWriter build() {
    add_architecture();
    add_tokenizer();
    const std::uint64_t vocabulary = tiny_vocabulary().size();
    add_matrix("token_embd.weight", options_.embd, vocabulary, 1.0F);
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer)
      add_layer(fmt::format("blk.{}.", layer));
    add_norm("output_norm.weight");
    if (!options_.tied)
      add_matrix("output.weight", options_.embd, vocabulary, 3.0F / root(options_.embd));
    return std::move(writer_);
  }

 private:
  static float root(std::uint32_t value) { return std::sqrt(static_cast<float>(value)); }

  template <class T>
  void add(const std::string& key, const T& value) {
    if (!options_.omitted.contains(key))
      writer_.add(key, value);
  }
  void add_u32(const std::string& key, std::uint32_t value) {
    const auto replaced = options_.replaced.find(key);
    add(key, replaced == options_.replaced.end() ? value : replaced->second);
  }
  template <class T>
  void add_array(const std::string& key, const std::vector<T>& values) {
    if (!options_.omitted.contains(key))
      writer_.add_array(key, std::span(values));
  }

  void add_architecture() {
    add("general.architecture", std::string_view("llama"));
    add("general.name", std::string_view("Tiny"));
    add_u32("general.quantization_version", 2);
    add_u32("llama.block_count", options_.layers);
    add_u32("llama.context_length", options_.context);
    add_u32("llama.embedding_length", options_.embd);
    add_u32("llama.feed_forward_length", options_.ffn);
    add_u32("llama.attention.head_count", options_.heads);
    add_u32("llama.attention.head_count_kv", options_.kv_heads);
    add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    add("llama.rope.freq_base", options_.rope_base);
    add_u32("llama.rope.dimension_count", options_.embd / options_.heads);
    add_u32("llama.vocab_size", static_cast<std::uint32_t>(tiny_vocabulary().size()));
  }

  void add_tokenizer() {
    const std::vector<std::string> tokens = tiny_vocabulary();
    std::vector<std::int32_t> types(tokens.size(), 1);
    std::fill_n(types.begin(), kControlTokens, 3);
    add("tokenizer.ggml.model", std::string_view("gpt2"));
    add("tokenizer.ggml.pre", std::string_view("smollm"));
    add_array("tokenizer.ggml.tokens", tokens);
    add_array("tokenizer.ggml.token_type", types);
    add_array("tokenizer.ggml.merges", tiny_merges());
    add_u32("tokenizer.ggml.bos_token_id", 1);
    add_u32("tokenizer.ggml.eos_token_id", 2);
    add_u32("tokenizer.ggml.unknown_token_id", 0);
    add_u32("tokenizer.ggml.padding_token_id", 2);
    add("tokenizer.ggml.add_bos_token", false);
    add("tokenizer.ggml.add_space_prefix", false);
    if (!options_.chat_template.empty())
      add("tokenizer.chat_template", std::string_view(options_.chat_template));
  }

  // The residual branches are loud, so that what comes next depends on the context and not only on
  // the last token.
  void add_layer(const std::string& prefix) {
    const std::uint32_t kv = options_.embd / options_.heads * options_.kv_heads;
    add_norm(prefix + "attn_norm.weight");
    add_matrix(prefix + "attn_q.weight", options_.embd, options_.embd, 2.0F / root(options_.embd));
    add_matrix(prefix + "attn_k.weight", options_.embd, kv, 2.0F / root(options_.embd));
    add_matrix(prefix + "attn_v.weight", options_.embd, kv, 2.0F / root(options_.embd));
    add_matrix(prefix + "attn_output.weight", options_.embd, options_.embd,
               2.0F / root(options_.embd));
    add_norm(prefix + "ffn_norm.weight");
    add_matrix(prefix + "ffn_gate.weight", options_.embd, options_.ffn, 2.0F / root(options_.embd));
    add_matrix(prefix + "ffn_up.weight", options_.embd, options_.ffn, 2.0F / root(options_.embd));
    add_matrix(prefix + "ffn_down.weight", options_.ffn, options_.embd, 2.0F / root(options_.ffn));
  }

  // Evenly distributed with mean 0 and the given deviation; the library's normal distribution is
  // not the same everywhere.
  float draw(float deviation) {
    const float unit = static_cast<float>(random_() >> 40) * 0x1p-24F;
    return (2 * unit - 1) * 1.7320508F * deviation;
  }

  void add_norm(const std::string& name) {
    std::vector<float> values(options_.embd);
    for (float& value : values)
      value = 1 + draw(0.1F);
    add_tensor(name, GgmlType::kF32, {options_.embd}, values);
  }

  void add_matrix(const std::string& name, std::uint64_t columns, std::uint64_t rows,
                  float deviation) {
    std::vector<float> values(rows * columns);
    for (float& value : values)
      value = draw(deviation);
    if (options_.printable && is_output(name))
      quieten(values, columns);
    add_tensor(name, options_.type, {columns, rows}, values);
  }

  bool is_output(std::string_view name) const {
    return name == (options_.tied ? "token_embd.weight" : "output.weight");
  }

  static void quieten(std::vector<float>& values, std::uint64_t columns) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t token = i / columns;
      const bool is_byte = token >= kControlTokens && token < kControlTokens + 256;
      if (token < kControlTokens || (is_byte && !is_printable(token - kControlTokens)))
        values[i] *= 0.125F;
    }
  }

  void add_tensor(const std::string& name, GgmlType type, const std::vector<std::uint64_t>& dims,
                  const std::vector<float>& values) {
    if (!options_.omitted.contains(name))
      writer_.add_tensor(name, type, dims, quantize(type, values));
  }

  const TinyModelOptions& options_;
  std::mt19937_64 random_;
  format::GgufWriter writer_;
};

}  // namespace

std::vector<std::string> tiny_vocabulary() {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (std::size_t byte = 0; byte < 256; ++byte)
    tokens.push_back(character_of(byte));
  for (const auto& [left, right] : kMerges)
    tokens.push_back(fmt::format("{}{}", left, right));
  return tokens;
}

std::vector<std::string> tiny_merges() {
  std::vector<std::string> merges;
  for (const auto& [left, right] : kMerges)
    merges.push_back(fmt::format("{} {}", left, right));
  return merges;
}

std::vector<std::byte> tiny_model(const TinyModelOptions& options) {
  return Builder(options).build().bytes();
}

Status write_tiny_model(const std::string& path, const TinyModelOptions& options) {
  return Builder(options).build().write(path);
}

}  // namespace dormouse::testing
