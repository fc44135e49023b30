#include "model/llama_config.h"

#include <fmt/core.h>

#include <string>

#include "base/check.h"

namespace dormouse {
namespace {

constexpr std::uint32_t kMaxSize = 1U << 20;  // of a hidden or inner vector
constexpr std::uint32_t kMaxLayers = 1024;
constexpr std::uint32_t kMultiple = 32;  // what the kernels work on at once

class Reader {
 public:
  explicit Reader(const format::GgufFile& file) : file_(file) {}

  Result<std::uint32_t> count(const std::string& key, std::uint32_t largest) const {
    DM_TRY_ASSIGN(const std::uint32_t value, file_.get_u32(key));
    if (value == 0 || value > largest)
      return bad(key, fmt::format("{} is not in 1 to {}", value, largest));
    return value;
  }

  Result<std::uint32_t> size(const std::string& key) const {
    DM_TRY_ASSIGN(const std::uint32_t value, count(key, kMaxSize));
    if (value % kMultiple != 0)
      return fail(ErrorCode::kUnsupported, fmt::format("{}: {} is {}, which is no multiple of {}",
                                                       file_.path(), key, value, kMultiple));
    return value;
  }

  Result<float> positive(const std::string& key, float missing) const {
    DM_TRY_ASSIGN(const float value, file_.get_f32_or(key, missing));
    if (!(value > 0))
      return bad(key, fmt::format("{} is not greater than 0", value));
    return value;
  }

  tl::unexpected<Error> bad(const std::string& key, const std::string& why) const {
    return fail(ErrorCode::kDataLoss, fmt::format("{}: {}: {}", file_.path(), key, why));
  }

 private:
  const format::GgufFile& file_;
};

// Features that change the arithmetic and that we do not have.
Status refuse_variants(const format::GgufFile& file, const LlamaConfig& config) {
  const auto refuse = [&](std::string what) {
    return fail(ErrorCode::kUnsupported, fmt::format("{}: {}", file.path(), what));
  };
  DM_TRY_ASSIGN(const std::string_view scaling,
                file.get_string_or("llama.rope.scaling.type", "none"));
  if (scaling != "none")
    return refuse(fmt::format("llama.rope.scaling.type '{}' is not supported", scaling));
  DM_TRY_ASSIGN(const std::uint32_t experts, file.get_u32_or("llama.expert_count", 0));
  if (experts != 0)
    return refuse("mixtures of experts are not supported");
  DM_TRY_ASSIGN(const std::uint32_t value_length,
                file.get_u32_or("llama.attention.value_length", config.head_dim));
  if (value_length != config.head_dim)
    return refuse("keys and values of different lengths are not supported");
  DM_TRY_ASSIGN(const std::uint32_t rope_dims,
                file.get_u32_or("llama.rope.dimension_count", config.head_dim));
  if (rope_dims != config.head_dim)
    return refuse(fmt::format("llama.rope.dimension_count {} differs from the head's {}", rope_dims,
                              config.head_dim));
  return {};
}

Status read_heads(const format::GgufFile& file, const Reader& reader, LlamaConfig& config) {
  DM_TRY_ASSIGN(config.num_heads, reader.count("llama.attention.head_count", kMaxSize));
  const std::string kv_key = "llama.attention.head_count_kv";
  if (file.is_array(kv_key))
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: {} differs between layers", file.path(), kv_key));
  config.num_kv_heads = config.num_heads;
  if (file.has(kv_key)) {
    DM_TRY_ASSIGN(config.num_kv_heads, reader.count(kv_key, config.num_heads));
  }
  if (config.num_heads % config.num_kv_heads != 0)
    return reader.bad(kv_key, fmt::format("{} heads do not share {} kv heads evenly",
                                          config.num_heads, config.num_kv_heads));
  const std::string head_key = "llama.attention.key_length";
  config.head_dim = config.hidden_size / config.num_heads;
  if (file.has(head_key)) {
    DM_TRY_ASSIGN(config.head_dim, reader.size(head_key));
  }
  if (config.head_dim == 0 || config.head_dim % kMultiple != 0)
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: heads of {} values are not supported, only multiples of {}",
                            file.path(), config.head_dim, kMultiple));
  if (std::uint64_t{config.num_heads} * config.head_dim > kMaxSize)
    return reader.bad("llama.attention.head_count", "the heads together are too large");
  return {};
}

}  // namespace

Result<LlamaConfig> LlamaConfig::read(const format::GgufFile& file) {
  DM_TRY_ASSIGN(const std::string_view architecture, file.get_string("general.architecture"));
  if (architecture != "llama")
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: architecture '{}' is not supported, only 'llama'", file.path(),
                            architecture));
  const Reader reader(file);
  LlamaConfig config;
  DM_TRY_ASSIGN(config.num_layers, reader.count("llama.block_count", kMaxLayers));
  DM_TRY_ASSIGN(config.hidden_size, reader.size("llama.embedding_length"));
  DM_TRY_ASSIGN(config.ffn_size, reader.size("llama.feed_forward_length"));
  DM_TRY_ASSIGN(config.context_length, reader.count("llama.context_length", 1U << 30));
  DM_TRY(read_heads(file, reader, config));
  DM_TRY(refuse_variants(file, config));
  DM_TRY_ASSIGN(const float epsilon, file.get_f32("llama.attention.layer_norm_rms_epsilon"));
  if (!(epsilon >= 0 && epsilon < 1))
    return reader.bad("llama.attention.layer_norm_rms_epsilon",
                      fmt::format("{} is not in 0 to 1", epsilon));
  config.rms_epsilon = epsilon;
  DM_TRY_ASSIGN(config.rope_base, reader.positive("llama.rope.freq_base", 10000.0F));

  const format::TensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr)
    return fail(ErrorCode::kDataLoss,
                fmt::format("{}: tensor token_embd.weight is missing", file.path()));
  if (embedding->rows() > (1U << 28))
    return reader.bad("token_embd.weight", "the vocabulary is too large");
  config.vocab_size = static_cast<std::uint32_t>(embedding->rows());
  DM_TRY_ASSIGN(const std::uint32_t stated, file.get_u32_or("llama.vocab_size", config.vocab_size));
  if (stated != config.vocab_size)
    return reader.bad("llama.vocab_size", fmt::format("is {}, but token_embd.weight has {} rows",
                                                      stated, config.vocab_size));
  config.tied_output = file.find_tensor("output.weight") == nullptr;
  config.has_rope_factors = file.find_tensor("rope_freqs.weight") != nullptr;
  return config;
}

std::string LlamaConfig::text() const {
  const auto& [layers, hidden, ffn, heads, kv_heads, head, vocab, context, epsilon, base, tied,
               factors] = *this;
  return fmt::format("{} {} {} {} {} {} {} {} {:a} {:a} {} {}", layers, hidden, ffn, heads,
                     kv_heads, head, vocab, context, epsilon, base, tied, factors);
}

}  // namespace dormouse
