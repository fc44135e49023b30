#include "cli/demo.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdio>

#include "base/check.h"
#include "base/log.h"
#include "cli/demo_phase.h"
#include "cli/demo_prompts.h"
#include "cli/options.h"

namespace dormouse::cli {
namespace {

class Narrator {
 public:
  explicit Narrator(bool silent) : silent_(silent) {}
  void say(const std::string& line) const {
    if (silent_)
      return;
    std::puts(line.c_str());
    std::fflush(stdout);
  }

 private:
  bool silent_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<DemoReport> demonstrate(const DemoOptions& options, const Narrator& narrator) {
  const auto begin = std::chrono::steady_clock::now();
  const auto engine = Engine::start(options.engine);
  DM_TRY(engine->wait_until_loaded());
  narrator.say(fmt::format("loaded {} in {:.1f} s, kernels {}", options.engine.model,
                           seconds_since(begin), engine->status().kernel));
  Questions questions{.tokens = options.tokens};
  DM_TRY_ASSIGN(questions.prompts,
                make_prompts(*engine->tokenizer(), *engine->chat_template(), options.prompts));
  DM_TRY_ASSIGN(questions.first, ask(*engine, questions.prompts, questions.tokens));
  narrator.say(fmt::format("{} prompts answered after {:.1f} s, {} tokens each\n",
                           questions.first.size(), seconds_since(begin), questions.tokens));

  DemoReport report{.prompts = questions.prompts.size()};
  narrator.say(table_head());
  for (const Phase& phase : all_phases()) {
    for (std::uint32_t cycle = 1; cycle <= options.cycles; ++cycle) {
      auto result = run_phase(*engine, phase, questions);
      if (!result)
        return fail(result.error().code,
                    fmt::format("{}, cycle {}: {}", phase.name, cycle, result.error().message));
      result->cycle = cycle;
      narrator.say(table_row(*result));
      report.phases.push_back(std::move(*result));
    }
  }
  engine->shutdown(std::chrono::milliseconds(0));
  narrator.say(fmt::format("\n{} answers compared, {} identical, {:.0f} s: {}", report.compared(),
                           report.identical(), seconds_since(begin),
                           report.good() ? "good" : "BAD"));
  return report;
}

}  // namespace

int run_demo(int argc, char** argv) {
  const auto parsed = parse_demo(argc, argv);
  if (const auto* code = std::get_if<ExitCode>(&parsed))
    return *code;
  const auto& options = std::get<DemoOptions>(parsed);
  set_log_level(LogLevel::kError);
  const auto report = demonstrate(options, Narrator(options.json));
  if (!report) {
    fmt::print(stderr, "dormouse demo: {}\n", report.error().message);
    return kExitFailed;
  }
  fmt::print("{}\n", to_json(*report));
  return report->good() ? kExitOk : kExitFailed;
}

}  // namespace dormouse::cli
