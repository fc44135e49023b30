#include "format/gguf_writer.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>

#include "base/check.h"
#include "base/checked.h"

namespace dormouse::format {
namespace {

void append_bytes(std::vector<std::byte>& target, std::span<const std::byte> bytes) {
  target.insert(target.end(), bytes.begin(), bytes.end());
}

void pad(std::vector<std::byte>& target, std::uint64_t alignment) {
  const Checked padded = Checked(target.size()).align_up(alignment);
  DM_CHECK(padded.valid(), "the alignment must be a power of two");
  target.resize(*padded.value());
}

tl::unexpected<Error> cannot_write(const std::string& path) {
  return fail(ErrorCode::kInternal,
              fmt::format("cannot write {}: {}. Check the folder, its permissions "
                          "and the free space.",
                          path, std::strerror(errno)));
}

}  // namespace

void GgufWriter::append_string(std::vector<std::byte>& target, std::string_view text) {
  append(target, std::uint64_t{text.size()});
  append_bytes(target, std::as_bytes(std::span(text)));
}

void GgufWriter::begin_key(std::string_view key, ValueType type) {
  ++key_count_;
  append_string(metadata_, key);
  append(metadata_, type);
}

void GgufWriter::begin_array(std::string_view key, ValueType type, std::uint64_t count) {
  begin_key(key, ValueType::kArray);
  append(metadata_, type);
  append(metadata_, count);
}

void GgufWriter::add(std::string_view key, std::string_view value) {
  begin_key(key, ValueType::kString);
  append_string(metadata_, value);
}

void GgufWriter::add_array(std::string_view key, std::span<const std::string> values) {
  begin_array(key, ValueType::kString, values.size());
  for (const std::string& value : values)
    append_string(metadata_, value);
}

void GgufWriter::add_tensor(std::string_view name, GgmlType type,
                            std::span<const std::uint64_t> dims, std::span<const std::byte> data) {
  ++tensor_count_;
  append_string(tensor_infos_, name);
  append(tensor_infos_, static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t dim : dims)
    append(tensor_infos_, dim);
  append(tensor_infos_, type);
  append(tensor_infos_, std::uint64_t{data_.size()});
  append_bytes(data_, data);
  pad(data_, options_.alignment);
}

std::vector<std::byte> GgufWriter::bytes() const {
  std::vector<std::byte> file;
  append_bytes(file, std::as_bytes(std::span(std::string_view("GGUF"))));
  append(file, options_.version);
  append(file, tensor_count_);
  append(file, key_count_);
  append_bytes(file, metadata_);
  append_bytes(file, tensor_infos_);
  pad(file, options_.alignment);
  append_bytes(file, data_);
  return file;
}

Status GgufWriter::write(const std::string& path) const {
  const std::vector<std::byte> content = bytes();
  const std::string partial = path + ".partial";
  std::FILE* file = std::fopen(partial.c_str(), "wb");
  if (file == nullptr)
    return cannot_write(partial);
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  if ((std::fclose(file) != 0) || !written || std::rename(partial.c_str(), path.c_str()) != 0) {
    auto error = cannot_write(path);
    std::remove(partial.c_str());
    return error;
  }
  return {};
}

}  // namespace dormouse::format
