#include "cli/demo.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/check.h"
#include "base/log.h"
#include "cli/demo_phase.h"
#include "cli/demo_prompts.h"
#include "cli/options.h"
#include "cli/pd_phase.h"

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

constexpr const char* kConnectors[] = {"IpcConnector", "OffloadingConnector", "MultiConnector"};
constexpr std::size_t kPdPrompts = 6;
constexpr std::size_t kShortestPdPrompt = 180;  // tokens
constexpr std::uint32_t kPdTokens = 16;

struct Demonstration {
  const DemoOptions& options;
  const Narrator& narrator;
  Questions questions;
  Questions pd_questions;
  DemoReport report = {};

  Status ask_first(Engine& engine);
  Status run_single(Engine& engine);
  Status run_pd();
  Status run_pd(PdCluster& cluster, const std::string& connector);
  void add(PhaseResult result, std::uint32_t cycle) {
    result.cycle = cycle;
    narrator.say(table_row(result));
    report.phases.push_back(std::move(result));
  }
};

// What every later answer is compared with: a single engine without a connector.
Status Demonstration::ask_first(Engine& engine) {
  questions.tokens = options.tokens;
  DM_TRY_ASSIGN(questions.prompts,
                make_prompts(*engine.tokenizer(), *engine.chat_template(), options.prompts));
  DM_TRY_ASSIGN(questions.first, ask(engine, questions.prompts, questions.tokens));

  pd_questions.tokens = kPdTokens;
  DM_TRY_ASSIGN(auto prompts, make_prompts(*engine.tokenizer(), *engine.chat_template(), 30));
  std::erase_if(prompts, [](const auto& prompt) { return prompt.size() < kShortestPdPrompt; });
  prompts.resize(std::min(prompts.size(), kPdPrompts));
  pd_questions.prompts = std::move(prompts);
  DM_TRY_ASSIGN(pd_questions.first, ask(engine, pd_questions.prompts, kPdTokens));
  report.prompts = questions.prompts.size();
  return {};
}

Status Demonstration::run_single(Engine& engine) {
  for (const Phase& phase : all_phases()) {
    for (std::uint32_t cycle = 1; cycle <= options.cycles; ++cycle) {
      auto result = run_phase(engine, phase, questions);
      if (!result)
        return fail(result.error().code,
                    fmt::format("{}, cycle {}: {}", phase.name, cycle, result.error().message));
      add(std::move(*result), cycle);
    }
  }
  return {};
}

Status Demonstration::run_pd() {
  ClusterOptions cluster{.model = options.engine.model, .threads = options.engine.threads};
  cluster.program = std::filesystem::read_symlink("/proc/self/exe");
  for (const char* connector : kConnectors) {
    cluster.connector = connector;
    DM_TRY_ASSIGN(const auto started, PdCluster::start(cluster));
    DM_TRY(run_pd(*started, connector));
  }
  return {};
}

Status Demonstration::run_pd(PdCluster& cluster, const std::string& connector) {
  const std::vector<int> levels = options.full ? std::vector{1, 2, 0} : std::vector{1};
  for (const int level : levels)
    for (const PdSleepers who :
         {PdSleepers::kPrefill, PdSleepers::kDecode, PdSleepers::kBoth, PdSleepers::kLegs})
      for (std::uint32_t cycle = 1; cycle <= (options.full ? 2U : 1U); ++cycle) {
        auto result = run_pd_phase(cluster, {who, level}, pd_questions, connector);
        if (!result)
          return fail(result.error().code,
                      fmt::format("{}, {}, level {}: {}", connector, name_of(who), level,
                                  result.error().message));
        add(std::move(*result), cycle);
      }
  return {};
}

Result<DemoReport> demonstrate(const DemoOptions& options, const Narrator& narrator) {
  const auto begin = std::chrono::steady_clock::now();
  auto engine = Engine::start(options.engine);
  DM_TRY(engine->wait_until_loaded());
  narrator.say(fmt::format("loaded {} in {:.1f} s, kernels {}", options.engine.model,
                           seconds_since(begin), engine->status().kernel));
  Demonstration demonstration{options, narrator, {}, {}};
  DM_TRY(demonstration.ask_first(*engine));
  narrator.say(fmt::format("{} prompts answered after {:.1f} s, {} tokens each\n", options.prompts,
                           seconds_since(begin), options.tokens));
  narrator.say(table_head());
  DM_TRY(demonstration.run_single(*engine));
  engine->shutdown(std::chrono::milliseconds(0));
  engine.reset();
  DM_TRY(demonstration.run_pd());

  const DemoReport& report = demonstration.report;
  narrator.say(fmt::format("\n{} answers compared, {} identical, {:.0f} s: {}", report.compared(),
                           report.identical(), seconds_since(begin),
                           report.good() ? "good" : "BAD"));
  return std::move(demonstration.report);
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
