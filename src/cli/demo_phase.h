// One way to sleep and wake, carried out on a running engine and checked from the outside.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/demo_answers.h"
#include "cli/demo_report.h"

namespace dormouse::cli {

struct Phase {
  std::string name;
  bool gives_back_everything = true;  // no block is left while asleep
  std::function<Result<TransitionReport>(Engine&)> sleep;
  // In order; requests must be refused before each, and accepted after the last.
  std::vector<std::function<Result<TransitionReport>(Engine&)>> wake;
};

// Level 1, level 2 with the weights loaded again, the KV cache alone, and a wake-up in two parts.
std::vector<Phase> all_phases();

struct Questions {
  std::vector<std::vector<TokenId>> prompts;
  std::uint32_t tokens = 0;
  std::vector<Answer> first;  // what each answer is compared with
};

// Sleeps, checks what the operating system says, wakes, asks again. A difference is a problem of
// the result; an error means that the engine cannot go on.
Result<PhaseResult> run_phase(Engine& engine, const Phase& phase, const Questions& questions);

}  // namespace dormouse::cli
