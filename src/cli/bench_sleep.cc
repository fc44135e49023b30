#include "cli/bench_sleep.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "base/check.h"
#include "cli/bench_copy.h"
#include "cli/units.h"
#include "device/host/host_copier.h"
#include "device/host/host_vmm_driver.h"
#include "dormouse/engine.h"
#include "memory/host_backup.h"
#include "memory/tagged_allocator.h"

namespace dormouse::cli {
namespace {

using Clock = std::chrono::steady_clock;

// One sleep and the wake-up of the weights.
struct Round {
  std::uint64_t copied_out = 0;
  double sleep_ms = 0;
  double wake_ms = 0;
  MemoryReceipt woken;
};

struct Figures {
  std::string what;
  std::uint64_t bytes = 0;  // of weights
  std::uint32_t threads = 0;
  std::vector<std::uint64_t> copied_out;  // of each sleep, the first included
  // Of every round but the first, which makes the backup. Milliseconds.
  std::vector<double> sleep_ms, wake_ms, map_ms, copy_ms;
  std::vector<double> allocated_ms, mapped_ms, written_ms;  // bare copies
};

Status measure(const std::function<Result<Round>()>& run_round, std::uint32_t rounds,
               Figures& figures) {
  DM_TRY_ASSIGN(const auto source, HostBackup::create(figures.bytes));
  std::ranges::fill(source->bytes(), std::byte{7});
  for (std::uint32_t i = 0; i <= rounds; ++i) {
    DM_TRY_ASSIGN(const Round round, run_round());
    figures.copied_out.push_back(round.copied_out);
    if (i == 0)
      continue;
    figures.sleep_ms.push_back(round.sleep_ms);
    figures.wake_ms.push_back(round.wake_ms);
    figures.map_ms.push_back(phase_ms(round.woken, "map"));
    figures.copy_ms.push_back(phase_ms(round.woken, "copy"));
    for (const auto& [kind, times] : {std::pair{BareCopy::kAllocated, &figures.allocated_ms},
                                      std::pair{BareCopy::kMapped, &figures.mapped_ms},
                                      std::pair{BareCopy::kWritten, &figures.written_ms}}) {
      DM_TRY_ASSIGN(const double ms, time_bare_copy(kind, source->bytes(), figures.threads));
      times->push_back(ms);
    }
  }
  return {};
}

Result<Figures> measure_model(const BenchOptions& options, std::uint32_t threads) {
  const auto engine = Engine::start(options.engine);
  DM_TRY(engine->wait_until_loaded());
  Figures figures{.what = options.engine.model, .threads = threads};
  figures.bytes = engine->status().memory.at(kWeightsTag.name()).mapped;
  const auto run_round = [&]() -> Result<Round> {
    DM_TRY_ASSIGN(const TransitionReport slept, engine->sleep({.level = 1}));
    DM_TRY_ASSIGN(TransitionReport woken,
                  engine->wake_up(std::vector<std::string>{kWeightsTag.name()}));
    DM_TRY_ASSIGN([[maybe_unused]] const TransitionReport rest, engine->wake_up(std::nullopt));
    return Round{slept.memory.tags.at(kWeightsTag.name()).copied_out, slept.total_ms,
                 woken.total_ms, std::move(woken.memory)};
  };
  DM_TRY(measure(run_round, options.rounds, figures));
  return figures;
}

Result<Figures> measure_allocation(const BenchOptions& options, std::uint32_t threads) {
  HostVmmDriver driver;
  HostCopier copier(threads);
  TaggedAllocator allocator(driver, copier, {});
  DM_TRY_ASSIGN(const TaggedMemory memory, allocator.allocate(kWeightsTag, options.bytes));
  std::ranges::fill(memory.bytes(), std::byte{7});
  DM_TRY(allocator.seal(kWeightsTag));
  Figures figures{.what = "an allocation", .bytes = options.bytes, .threads = threads};
  const auto run_round = [&]() -> Result<Round> {
    Round round;
    auto start = Clock::now();
    DM_TRY_ASSIGN(MemoryReceipt slept, allocator.sleep({kWeightsTag}));
    round.sleep_ms = ms_since(start);
    round.copied_out = slept.tags.at(kWeightsTag.name()).copied_out;
    start = Clock::now();
    DM_TRY_ASSIGN(round.woken, allocator.wake_up(std::nullopt));
    round.wake_ms = ms_since(start);
    return round;
  };
  DM_TRY(measure(run_round, options.rounds, figures));
  return figures;
}

double ratio(const Figures& figures) {
  return median(figures.allocated_ms) / median(figures.wake_ms);
}

std::string row(std::string_view what, const std::vector<double>& times, std::uint64_t bytes) {
  return fmt::format("{:<44} {:>9.1f} {:>9.1f} {:>8.2f}\n", what, median(times), best(times),
                     gigabytes_per_second(bytes, median(times)));
}

std::string to_text(const Figures& figures) {
  std::string text = fmt::format(
      "{}: {} of weights, {} threads, {} rounds\n"
      "copied out by the first sleep: {} bytes; by all later ones: {} bytes\n\n",
      figures.what, format_bytes(static_cast<double>(figures.bytes)), figures.threads,
      figures.wake_ms.size(), figures.copied_out[0],
      *std::max_element(figures.copied_out.begin() + 1, figures.copied_out.end()));
  text += fmt::format("{:<44} {:>9} {:>9} {:>8}\n", "", "median ms", "best ms", "GB/s");
  text += row("sleep", figures.sleep_ms, figures.bytes);
  text += row("wake-up of the weights", figures.wake_ms, figures.bytes);
  text += row("  of which: create and map", figures.map_ms, figures.bytes);
  text += row("  of which: copy", figures.copy_ms, figures.bytes);
  text += row("bare copy: memfd, fallocate, mmap, memcpy", figures.allocated_ms, figures.bytes);
  text += row("bare copy: the same without fallocate", figures.mapped_ms, figures.bytes);
  text += row("bare copy: memfd, pwrite", figures.written_ms, figures.bytes);
  return text + fmt::format("\nthe wake-up reaches {:.2f} of the bare copy with fallocate",
                            ratio(figures));
}

Json to_json(const Figures& figures) {
  Json::Array copied_out;
  for (const std::uint64_t bytes : figures.copied_out)
    copied_out.emplace_back(bytes);
  return Json::Object{
      {"bench", "sleep"},
      {"what", figures.what},
      {"bytes", figures.bytes},
      {"threads", figures.threads},
      {"copied_out_bytes", std::move(copied_out)},
      {"sleep_ms", times_json(figures.sleep_ms)},
      {"wake_ms", times_json(figures.wake_ms)},
      {"wake_map_ms", times_json(figures.map_ms)},
      {"wake_copy_ms", times_json(figures.copy_ms)},
      {"wake_gb_per_s", gigabytes_per_second(figures.bytes, median(figures.wake_ms))},
      {"bare_copy_ms", times_json(figures.allocated_ms)},
      {"bare_copy_gb_per_s", gigabytes_per_second(figures.bytes, median(figures.allocated_ms))},
      {"bare_copy_without_fallocate_ms", times_json(figures.mapped_ms)},
      {"bare_write_ms", times_json(figures.written_ms)},
      {"ratio", ratio(figures)}};
}

}  // namespace

Result<BenchReport> bench_sleep(const BenchOptions& options) {
  const std::uint32_t threads = options.engine.threads > 0
                                    ? options.engine.threads
                                    : std::max(1U, std::thread::hardware_concurrency());
  DM_TRY_ASSIGN(const Figures figures, options.bytes > 0 ? measure_allocation(options, threads)
                                                         : measure_model(options, threads));
  return BenchReport{to_text(figures), to_json(figures)};
}

}  // namespace dormouse::cli
