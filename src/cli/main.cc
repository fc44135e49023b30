#include <cstdio>
#include <string_view>

#include "cli/bench.h"
#include "cli/ctl.h"
#include "cli/demo.h"
#include "cli/options.h"
#include "cli/router.h"
#include "cli/serve.h"
#include "cli/units.h"
#include "cli/version.h"

namespace dormouse::cli {
namespace {

struct Subcommand {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

constexpr Subcommand kSubcommands[] = {
    {"serve", "serve a model over HTTP", run_serve},
    {"router", "stand in front of prefill and decode instances", run_router},
    {"ctl", "see and steer a running server: status, sleep, wake, reload, pause, resume, top",
     run_ctl},
    {"demo", "sleep and wake a model in every way, and compare every answer", run_demo},
    {"bench", "measure sleep and speed, with a limit or a peer beside each figure", run_bench},
};

void print_usage(std::FILE* out) {
  std::fprintf(out, "Dormouse %.*s: language models that give their memory back\n\n",
               static_cast<int>(kVersion.size()), kVersion.data());
  std::fprintf(out, "Usage: dormouse COMMAND [OPTIONS]\n\n");
  for (const Subcommand& command : kSubcommands)
    std::fprintf(out, "  %-8.*s %.*s\n", static_cast<int>(command.name.size()), command.name.data(),
                 static_cast<int>(command.summary.size()), command.summary.data());
  std::fprintf(out, "\n  dormouse COMMAND --help   its options\n  dormouse --version\n");
}

int run(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (word == "--version") {
    std::printf("dormouse %.*s\n", static_cast<int>(kVersion.size()), kVersion.data());
    return kExitOk;
  }
  if (word == "--help" || word == "-h" || word == "help") {
    print_usage(stdout);
    return kExitOk;
  }
  std::vector<std::string> names;
  for (const Subcommand& command : kSubcommands) {
    if (command.name == word)
      return command.run(argc - 1, argv + 1);
    names.emplace_back(command.name);
  }
  if (word.empty()) {
    print_usage(stderr);
    return kExitUsage;
  }
  const std::string near = nearest(word, names);
  std::fprintf(stderr, "dormouse: unknown command %.*s%s\n", static_cast<int>(word.size()),
               word.data(),
               near.empty() ? ". See dormouse --help" : (". Did you mean " + near + "?").c_str());
  return kExitUsage;
}

}  // namespace
}  // namespace dormouse::cli

int main(int argc, char** argv) {
  return dormouse::cli::run(argc, argv);
}
