// Reads a GGUF model file, version 2 or 3: metadata by key, and tensors as views into the file.
//
// The file is a stranger's. `open` checks every count, size and offset before it uses it, so that
// every span handed out lies within the file. What the numbers mean (layers, heads, shapes) is
// checked by whoever builds a model of them.
//
// Owns:    a read-only private mapping of the file; spans and string views die with the GgufFile
//          and survive its move.
// Threads: const methods from any thread.
// Errors:  kDataLoss, kUnsupported or kNotFound; a message names the file, the byte offset and the
//          key or tensor. A file that another process cuts short while it is read raises SIGBUS at
//          the access: ask `verify_unchanged` before and after a bulk copy, under a handler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dormouse/result.h"
#include "format/ggml_type.h"
#include "format/mapped_file.h"

namespace dormouse::format {

struct TensorInfo {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<std::uint64_t> dims;  // 1 to 4; dims[0] is contiguous: the length of a row
  std::uint64_t offset = 0;         // of the first byte, from the start of the file
  std::uint64_t bytes = 0;

  std::uint64_t elements() const;
  std::uint64_t row_length() const { return dims[0]; }
  std::uint64_t rows() const { return elements() / dims[0]; }
};

// Value types of the file, with their ids.
enum class ValueType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view type_name(ValueType type);  // "u32"

// Where a metadata value lies: `count` elements of `type`, the first at byte `offset` of the file.
// A string that stands alone is its characters; strings in an array each follow their u64 length.
struct GgufValue {
  ValueType type = ValueType::kU8;
  bool array = false;
  std::uint64_t count = 1;
  std::uint64_t offset = 0;
};

// The limits of a file that `open` accepts.
inline constexpr std::uint64_t kMaxTensors = 65536;
inline constexpr std::uint64_t kMaxKeys = 65536;
inline constexpr std::uint64_t kMaxKeyBytes = 65535;
inline constexpr std::uint64_t kMaxStringBytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMaxTensorNameBytes = 63;
inline constexpr std::uint64_t kMaxTensorElements = (std::uint64_t{1} << 48) - 1;
inline constexpr std::uint64_t kDefaultAlignment = 32;

class GgufFile {
 public:
  static Result<GgufFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::uint64_t file_bytes() const { return file_.bytes().size(); }
  std::uint32_t version() const { return version_; }
  std::uint64_t alignment() const { return alignment_; }

  // kDataLoss if the file's size or time of change is not what it was at `open`.
  Status verify_unchanged() const { return file_.verify_unchanged(); }

  // --- metadata ---
  // A missing key is kNotFound, a value of another type or out of range is kDataLoss. Integers of
  // any width and sign convert if the value fits; floats may be f32 or f64 and must be finite.
  bool has(std::string_view key) const { return values_.contains(key); }
  Result<std::uint64_t> get_u64(std::string_view key) const;
  Result<std::uint32_t> get_u32(std::string_view key) const;
  Result<float> get_f32(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<std::int32_t>> get_i32s(std::string_view key) const;
  Result<std::vector<std::uint64_t>> get_u64s(std::string_view key) const;
  Result<std::vector<float>> get_f32s(std::string_view key) const;

  // The same with a default for a missing key; a wrong type is an error all the same.
  Result<std::uint64_t> get_u64_or(std::string_view key, std::uint64_t missing) const;
  Result<std::uint32_t> get_u32_or(std::string_view key, std::uint32_t missing) const;
  Result<float> get_f32_or(std::string_view key, float missing) const;
  Result<bool> get_bool_or(std::string_view key, bool missing) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view missing) const;

  bool is_array(std::string_view key) const;
  std::vector<std::string_view> keys() const;  // sorted

  // --- tensors, in file order ---
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find_tensor(std::string_view name) const;
  // `info` is one of tensors(). Aligned as the file says, at least to 8 bytes.
  std::span<const std::byte> tensor_bytes(const TensorInfo& info) const;
  // The same bytes by a copy that a file cut short meanwhile makes an error of, and no SIGBUS.
  // `target` has info.bytes bytes.
  Status read_tensor(const TensorInfo& info, std::span<std::byte> target) const {
    return file_.read(info.offset, target);
  }

 private:
  friend class GgufParser;

  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}
  Result<const GgufValue*> find(std::string_view key, bool array) const;
  template <class T>
  Result<T> get_integer(std::string_view key) const;
  template <class T>
  Result<std::vector<T>> get_integers(std::string_view key) const;
  template <class T>
  Result<T> integer_element(std::string_view key, const GgufValue& value,
                            std::uint64_t index) const;
  Result<float> float_element(std::string_view key, const GgufValue& value,
                              std::uint64_t index) const;
  tl::unexpected<Error> wrong_type(std::string_view key, const GgufValue& value,
                                   std::string_view wanted) const;

  MappedFile file_;
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = kDefaultAlignment;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> tensor_index_;
};

}  // namespace dormouse::format
