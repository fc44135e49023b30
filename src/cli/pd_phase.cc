#include "cli/pd_phase.h"

#include <fmt/core.h>

#include <chrono>

#include "base/check.h"
#include "cli/units.h"
#include "device/host/block_census.h"
#include "device/host/host_memory.h"

namespace dormouse::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kTransferred = "dormouse:kv_transferred_tokens_total";
constexpr const char* kRecomputed = "dormouse:kv_recomputed_tokens_total";
constexpr const char* kStaleRefused = "dormouse:kv_stale_references_refused_total";

std::uint64_t number_at(const Json& object, std::string_view name) {
  const Json* value = object.find(name);
  return value == nullptr ? 0 : value->as_unsigned();
}

std::size_t prompt_tokens(const Questions& questions) {
  std::size_t sum = 0;
  for (const auto& prompt : questions.prompts)
    sum += prompt.size();
  return sum;
}

void compare(const std::vector<Answer>& answers, const Questions& questions, PhaseResult& result) {
  result.compared += questions.first.size();
  result.identical += count_identical(answers, questions.first);
}

// --- asleep and awake ---

struct Sleeper {
  Instance* instance = nullptr;
  BlockCensus before;
};

Result<Json> put_to_sleep(const Instance& instance, int level) {
  return instance.post(level == 0 ? "/release_kv_cache_memory"
                                  : fmt::format("/sleep?level={}", level));
}

Status wake(const Instance& instance, int level) {
  DM_TRY_ASSIGN([[maybe_unused]] const Json woken, instance.post("/wake_up"));
  if (level == 2) {
    DM_TRY_ASSIGN([[maybe_unused]] const Json loaded, instance.post("/reload_weights"));
  }
  return {};
}

void check_gone(const Sleeper& sleeper, std::uint64_t expected, PhaseResult& result) {
  const auto left = blocks_of_process(sleeper.instance->pid());
  if (!left) {
    result.problems.push_back(left.error().message);
    return;
  }
  const BlockCensus gone = gone_since(sleeper.before, *left);
  if (bytes_of(gone) != expected)
    result.problems.push_back(fmt::format("{}: blocks of {} bytes are gone, it gave back {} bytes",
                                          sleeper.instance->name(), bytes_of(gone), expected));
  for (const BlockHolder& holder : holders_of(gone))
    result.problems.push_back(fmt::format("{}: a block that was given back is still held: {}",
                                          sleeper.instance->name(), holder.through));
  result.asleep_bytes += bytes_of(*left);
}

// All of them fall asleep; what came back is measured over all together.
Status sleep_measured(std::vector<Sleeper>& sleepers, int level, PhaseResult& result) {
  for (Sleeper& sleeper : sleepers) {
    DM_TRY_ASSIGN(sleeper.before, blocks_of_process(sleeper.instance->pid()));
  }
  DM_TRY_ASSIGN(const std::uint64_t before, shared_memory_in_use());
  const auto start = Clock::now();
  std::vector<std::uint64_t> expected;
  for (const Sleeper& sleeper : sleepers) {
    DM_TRY_ASSIGN(const Json reply, put_to_sleep(*sleeper.instance, level));
    const Json* receipt = reply.find("receipt");
    expected.push_back(receipt == nullptr ? 0 : number_at(*receipt, "expected_freed"));
    result.expected_freed += expected.back();
  }
  result.sleep_ms += ms_since(start);
  DM_TRY_ASSIGN(const std::uint64_t after, shared_memory_in_use());
  result.freed += static_cast<std::int64_t>(before) - static_cast<std::int64_t>(after);
  for (std::size_t i = 0; i < sleepers.size(); ++i)
    check_gone(sleepers[i], expected[i], result);
  return {};
}

// Measured twice where it does not agree: other programs use shared memory, too.
Status sleep_checked(std::vector<Sleeper>& sleepers, int level, PhaseResult& result) {
  DM_TRY(sleep_measured(sleepers, level, result));
  if (!agrees(result.freed, result.expected_freed)) {
    for (const Sleeper& sleeper : sleepers)
      DM_TRY(wake(*sleeper.instance, level));
    result.freed = 0;
    result.expected_freed = result.asleep_bytes = 0;
    DM_TRY(sleep_measured(sleepers, level, result));
  }
  if (!agrees(result.freed, result.expected_freed))
    result.problems.push_back(fmt::format("shared memory fell by {} bytes, expected {}",
                                          result.freed, result.expected_freed));
  return {};
}

Status wake_all(const std::vector<Sleeper>& sleepers, int level, PhaseResult& result) {
  const auto start = Clock::now();
  for (const Sleeper& sleeper : sleepers)
    DM_TRY(wake(*sleeper.instance, level));
  result.wake_ms += ms_since(start);
  return {};
}

// --- asking ---

// Everything awake, nothing cached at the decode side: the prompts must come through the connector.
Status ask_transferred(PdCluster& cluster, const Questions& questions, PhaseResult& result) {
  DM_TRY(cluster.wait_until_routed());
  DM_TRY_ASSIGN([[maybe_unused]] const Json reset, cluster.decode().post("/reset_prefix_cache"));
  DM_TRY_ASSIGN(const double transferred, cluster.decode().metric(kTransferred));
  DM_TRY_ASSIGN(const double recomputed, cluster.decode().metric(kRecomputed));
  DM_TRY_ASSIGN(const std::vector<Answer> answers,
                ask(cluster.router(), questions.prompts, questions.tokens));
  compare(answers, questions, result);
  DM_TRY_ASSIGN(const double transferred_after, cluster.decode().metric(kTransferred));
  DM_TRY_ASSIGN(const double recomputed_after, cluster.decode().metric(kRecomputed));
  const auto moved = static_cast<std::uint64_t>(transferred_after - transferred);
  const auto again = static_cast<std::uint64_t>(recomputed_after - recomputed);
  result.transferred_tokens += moved;
  result.recomputed_tokens += again;
  const auto asked = static_cast<double>(prompt_tokens(questions));
  if (static_cast<double>(moved) < kLeastTransferred * asked || again > 0)
    result.problems.push_back(
        fmt::format("of {} prompt tokens {} were transferred, and {} computed after a failed load",
                    asked, moved, again));
  return {};
}

Status check_refused(const Instance& router, const Questions& questions, PhaseResult& result) {
  DM_TRY_ASSIGN(
      const server::HttpResponse response,
      router.call("POST", "/v1/completions", completion_body(questions.prompts.front(), 1)));
  if (response.status != 503)
    result.problems.push_back(fmt::format(
        "a request was answered {} while the decode instance was asleep", response.status));
  return {};
}

Result<Json> prefill_leg(const Instance& prefill, const std::vector<TokenId>& prompt) {
  const Json wanted = Json().add("do_remote_decode", true).add("do_remote_prefill", false);
  DM_TRY_ASSIGN(const Json reply,
                prefill.post("/v1/completions", completion_body(prompt, 1, wanted)));
  const Json* params = reply.find("kv_transfer_params");
  return params == nullptr ? Json() : *params;
}

// A stale reference must fail where the policy says so, whatever the decode side knows.
Status check_stale_fails(PdCluster& cluster, const std::vector<TokenId>& prompt, const Json& params,
                         PhaseResult& result) {
  DM_TRY_ASSIGN([[maybe_unused]] const Json reset, cluster.decode().post("/reset_prefix_cache"));
  DM_TRY_ASSIGN(
      const server::HttpResponse response,
      cluster.decode().call("POST", "/v1/completions", completion_body(prompt, 1, params)));
  if (response.status != 502)
    result.problems.push_back(
        fmt::format("a stale reference was answered {} instead of 502", response.status));
  return {};
}

// The prefill instance sleeps after its leg. Half of the requests meet it asleep, the others awake
// again with another generation; both halves are computed by the decode side.
Status run_legs(PdCluster& cluster, const PdPhase& phase, const Questions& questions,
                PhaseResult& result) {
  std::vector<Json> params;
  for (const auto& prompt : questions.prompts) {
    DM_TRY_ASSIGN(Json leg, prefill_leg(cluster.prefill(), prompt));
    params.push_back(std::move(leg));
  }
  const bool has_references = !params.front().is_null();
  DM_TRY_ASSIGN([[maybe_unused]] const Json reset,
                cluster.recomputing().post("/reset_prefix_cache"));
  DM_TRY_ASSIGN(const double recomputed, cluster.recomputing().metric(kRecomputed));
  DM_TRY_ASSIGN(const double refused, cluster.prefill().metric(kStaleRefused));
  std::vector<Sleeper> sleepers{{&cluster.prefill(), {}}};
  DM_TRY(sleep_checked(sleepers, phase.level, result));

  std::vector<Answer> answers;
  for (std::size_t i = 0; i < questions.prompts.size(); ++i) {
    if (i == questions.prompts.size() / 2)
      DM_TRY(wake_all(sleepers, phase.level, result));
    DM_TRY_ASSIGN(const server::HttpResponse response,
                  cluster.recomputing().call(
                      "POST", "/v1/completions",
                      completion_body(questions.prompts[i], questions.tokens, params[i])));
    DM_TRY_ASSIGN(Answer answer, read_answer(response));
    answers.push_back(std::move(answer));
  }
  compare(answers, questions, result);
  if (has_references)
    DM_TRY(check_stale_fails(cluster, questions.prompts.back(), params.back(), result));

  DM_TRY_ASSIGN(const double recomputed_after, cluster.recomputing().metric(kRecomputed));
  DM_TRY_ASSIGN(const double refused_after, cluster.prefill().metric(kStaleRefused));
  result.recomputed_tokens += static_cast<std::uint64_t>(recomputed_after - recomputed);
  result.stale_refused += static_cast<std::uint64_t>(refused_after - refused);
  if (has_references && (result.recomputed_tokens == 0 || result.stale_refused == 0))
    result.problems.push_back(
        fmt::format("{} tokens were computed again and {} stale references refused; there should "
                    "be some of each",
                    result.recomputed_tokens, result.stale_refused));
  return {};
}

Status run_asleep(PdCluster& cluster, const PdPhase& phase, const Questions& questions,
                  PhaseResult& result) {
  std::vector<Sleeper> sleepers;
  if (phase.who != PdSleepers::kDecode)
    sleepers.push_back({&cluster.prefill(), {}});
  if (phase.who != PdSleepers::kPrefill)
    sleepers.push_back({&cluster.decode(), {}});
  DM_TRY(sleep_checked(sleepers, phase.level, result));
  if (phase.who == PdSleepers::kPrefill) {
    DM_TRY_ASSIGN(const std::vector<Answer> local,
                  ask(cluster.router(), questions.prompts, questions.tokens));
    compare(local, questions, result);
  } else {
    DM_TRY(check_refused(cluster.router(), questions, result));
  }
  return wake_all(sleepers, phase.level, result);
}

}  // namespace

std::string_view name_of(PdSleepers who) {
  switch (who) {
    case PdSleepers::kPrefill:
      return "prefill";
    case PdSleepers::kDecode:
      return "decode";
    case PdSleepers::kBoth:
      return "both";
    case PdSleepers::kLegs:
      return "legs";
  }
  return "legs";
}

Result<PhaseResult> run_pd_phase(PdCluster& cluster, const PdPhase& phase,
                                 const Questions& questions, const std::string& connector) {
  PhaseResult result{.name = std::string(name_of(phase.who)),
                     .connector = connector,
                     .level = phase.level,
                     .prompt_tokens = prompt_tokens(questions)};
  if (phase.who == PdSleepers::kLegs)
    DM_TRY(run_legs(cluster, phase, questions, result));
  else
    DM_TRY(run_asleep(cluster, phase, questions, result));
  DM_TRY(ask_transferred(cluster, questions, result));
  return result;
}

}  // namespace dormouse::cli
