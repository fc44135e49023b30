#include <bit>

#include "base/json.h"

namespace dormouse {
namespace {

class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  void operator()(std::monostate) { byte(0xC0); }
  void operator()(bool value) { byte(value ? 0xC3 : 0xC2); }
  void operator()(double value) { fixed(0xCB, std::bit_cast<std::uint64_t>(value), 8); }
  void operator()(std::uint64_t value) {
    if (value < 0x80)
      byte(static_cast<unsigned>(value));
    else
      fixed(0xCF, value, 8);
  }
  void operator()(std::int64_t value) {
    if (value >= 0)
      (*this)(static_cast<std::uint64_t>(value));
    else
      fixed(0xD3, static_cast<std::uint64_t>(value), 8);
  }
  void operator()(const std::string& value) {
    fixed(0xDB, value.size(), 4);
    out_ += value;
  }
  void operator()(const Json::Array& values) {
    fixed(0xDD, values.size(), 4);
    for (const Json& value : values)
      value.visit(*this);
  }
  void operator()(const Json::Object& members) {
    fixed(0xDF, members.size(), 4);
    for (const auto& [name, value] : members) {
      (*this)(name);
      value.visit(*this);
    }
  }

 private:
  void byte(unsigned value) { out_ += static_cast<char>(value); }
  void fixed(unsigned type, std::uint64_t value, int bytes) {
    byte(type);
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
      byte(static_cast<unsigned>(value >> shift & 0xFF));
  }

  std::string& out_;
};

}  // namespace

std::string to_msgpack(const Json& value) {
  std::string out;
  value.visit(Writer(out));
  return out;
}

}  // namespace dormouse
