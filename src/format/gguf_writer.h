// Builds a GGUF file in memory: metadata and tensors in the order they are added.
//
// It writes what it is told, duplicate keys and odd sizes included; GgufFile::open is the judge.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dormouse/result.h"
#include "format/ggml_type.h"
#include "format/gguf.h"

namespace dormouse::format {

class GgufWriter {
 public:
  struct Options {
    std::uint32_t version = 3;
    // Another value also needs the key general.alignment.
    std::uint64_t alignment = kDefaultAlignment;
  };
  GgufWriter() = default;
  explicit GgufWriter(Options options) : options_(options) {}

  // T is an integer of 8 to 64 bits, bool, float or double.
  template <class T>
  void add(std::string_view key, T value) requires std::is_arithmetic_v<T> {
    begin_key(key, value_type<T>());
    append(metadata_, value);
  }
  void add(std::string_view key, std::string_view value);

  template <class T>
  void add_array(std::string_view key, std::span<const T> values) requires std::is_arithmetic_v<T> {
    begin_array(key, value_type<T>(), values.size());
    for (const T value : values)
      append(metadata_, value);
  }
  void add_array(std::string_view key, std::span<const std::string> values);

  // `dims[0]` is the length of a row. `data` is in the layout of `type`.
  void add_tensor(std::string_view name, GgmlType type, std::span<const std::uint64_t> dims,
                  std::span<const std::byte> data);

  std::vector<std::byte> bytes() const;
  // Replaces `path` in one step. kInternal if it cannot be written.
  Status write(const std::string& path) const;

 private:
  template <class T>
  static constexpr ValueType value_type() {
    if constexpr (std::is_same_v<T, bool>)
      return ValueType::kBool;
    else if constexpr (std::is_floating_point_v<T>)
      return sizeof(T) == 4 ? ValueType::kF32 : ValueType::kF64;
    else if constexpr (std::is_signed_v<T>)
      return sizeof(T) == 1   ? ValueType::kI8
             : sizeof(T) == 2 ? ValueType::kI16
             : sizeof(T) == 4 ? ValueType::kI32
                              : ValueType::kI64;
    else
      return sizeof(T) == 1   ? ValueType::kU8
             : sizeof(T) == 2 ? ValueType::kU16
             : sizeof(T) == 4 ? ValueType::kU32
                              : ValueType::kU64;
  }
  template <class T>
  static void append(std::vector<std::byte>& target, T value) {
    const std::size_t end = target.size();
    target.resize(end + sizeof(T));
    std::memcpy(target.data() + end, &value, sizeof(T));
  }
  static void append_string(std::vector<std::byte>& target, std::string_view text);
  void begin_key(std::string_view key, ValueType type);
  void begin_array(std::string_view key, ValueType type, std::uint64_t count);

  Options options_;
  std::vector<std::byte> metadata_;
  std::vector<std::byte> tensor_infos_;
  std::vector<std::byte> data_;
  std::uint64_t key_count_ = 0;
  std::uint64_t tensor_count_ = 0;
};

}  // namespace dormouse::format
