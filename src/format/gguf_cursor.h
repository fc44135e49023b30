// Reads the values of a GGUF file in order, and words the errors about them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/checked.h"
#include "dormouse/result.h"
#include "format/gguf.h"

namespace dormouse::format {

// `text` in quotes, cut to 80 bytes, with everything unprintable escaped: names come from the file.
std::string quoted(std::string_view text);

// An error about one place in a file, with what to do about it.
tl::unexpected<Error> damaged(const std::string& path, std::uint64_t offset,
                              std::string_view subject, std::string_view why);

// Bytes that one value takes; of a string its length field, the least it can take. 0: no such type.
std::uint64_t value_bytes(ValueType type);

// Reads little-endian values in order and never past the end.
class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, const std::string& path, std::uint64_t position = 0)
      : bytes_(bytes), path_(path), position_(position) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return bytes_.size() - position_; }
  // What errors are about: "key 'general.name'".
  void set_subject(std::string subject) { subject_ = std::move(subject); }
  tl::unexpected<Error> fail_here(std::string_view why) const {
    return damaged(path_, position_, subject_, why);
  }

  template <class T>
  Result<T> read(std::string_view what) {
    if (left() < sizeof(T))
      return fail_past_end(what, sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  // A length and that many bytes.
  Result<std::string_view> read_string(std::string_view what, std::uint64_t max_bytes);
  Status skip(Checked bytes, std::string_view what);

 private:
  tl::unexpected<Error> fail_past_end(std::string_view what, std::uint64_t wanted) const;

  std::span<const std::byte> bytes_;
  const std::string& path_;
  std::uint64_t position_;
  std::string subject_ = "header";
};

}  // namespace dormouse::format
