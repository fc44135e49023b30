// make_tiny_model PATH [OPTION=NUMBER...]: a random model that the end-to-end tests serve.
#include <charconv>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "testing/tiny_model.h"

namespace {

bool set(dormouse::testing::TinyModelOptions& options, std::string_view argument) {
  const std::map<std::string_view, std::uint32_t*> fields = {
      {"layers", &options.layers},     {"embd", &options.embd}, {"heads", &options.heads},
      {"kv_heads", &options.kv_heads}, {"ffn", &options.ffn},   {"context", &options.context},
  };
  const std::size_t equals = argument.find('=');
  const auto field = fields.find(argument.substr(0, equals));
  if (field == fields.end() || equals == std::string_view::npos)
    return false;
  const char* const end = argument.data() + argument.size();
  const auto [stop, error] = std::from_chars(argument.data() + equals + 1, end, *field->second);
  return error == std::errc{} && stop == end;
}

}  // namespace

int main(int argc, char** argv) {
  dormouse::testing::TinyModelOptions options;
  for (int i = 2; i < argc; ++i)
    if (!set(options, argv[i])) {
      std::fprintf(stderr, "make_tiny_model: not OPTION=NUMBER: %s\n", argv[i]);
      return 2;
    }
  if (argc < 2) {
    std::fprintf(stderr, "usage: make_tiny_model PATH [OPTION=NUMBER...]\n");
    return 2;
  }
  const dormouse::Status status = dormouse::testing::write_tiny_model(argv[1], options);
  if (!status)
    std::fprintf(stderr, "make_tiny_model: %s\n", status.error().message.c_str());
  return status ? 0 : 1;
}
