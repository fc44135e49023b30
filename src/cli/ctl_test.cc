#include "cli/ctl.h"

#include <gtest/gtest.h>

#include "cli/options.h"
#include "cli/serve.h"
#include "cli/units.h"

namespace dormouse::cli {
namespace {

struct Outcome {
  int code = 0;
  std::string out;
  std::string error;
};

Outcome run(int (*command)(int, char**), std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome result{.code = command(static_cast<int>(words.size()), argv.data())};
  result.out = testing::internal::GetCapturedStdout();
  result.error = testing::internal::GetCapturedStderr();
  return result;
}

std::variant<ServeOptions, ExitCode> serve_options(std::vector<std::string> words) {
  words.insert(words.begin(), "serve");
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  return parse_serve(static_cast<int>(words.size()), argv.data());
}

TEST(Units, ReadsSizesAsPeopleWriteThem) {
  EXPECT_EQ(parse_bytes("4096", "--x").value(), 4096U);
  EXPECT_EQ(parse_bytes("512M", "--x").value(), 512U << 20);
  EXPECT_EQ(parse_bytes("2GiB", "--x").value(), 2ULL << 30);
  EXPECT_EQ(parse_bytes("1.5g", "--x").value(), 3ULL << 29);
  EXPECT_EQ(parse_bytes("10kB", "--x").value(), 10240U);
  for (const char* bad : {"", "-1", "M", "1X", "1MM", "1e3", "nan", "99999999T", "1 G"})
    EXPECT_FALSE(parse_bytes(bad, "--x")) << bad;
}

TEST(Units, WritesQuantities) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1.5 * (1 << 30)), "1.5 GiB");
  EXPECT_EQ(format_bytes(-1024), "-1.0 KiB");
  EXPECT_EQ(format_bytes(1024.0 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(format_duration(0.0125), "12.5 ms");
  EXPECT_EQ(format_duration(3.2), "3.20 s");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(123), "123");
  EXPECT_EQ(format_bar(0.5), "[###############---------------]  50 %");
}

TEST(Serve, ReadsEveryOption) {
  const auto parsed = serve_options({"--host",
                                     "0.0.0.0",
                                     "--port",
                                     "0",
                                     "--device",
                                     "host",
                                     "--no-enable-sleep-mode",
                                     "--max-model-len",
                                     "2048",
                                     "--max-num-seqs",
                                     "4",
                                     "--max-num-batched-tokens",
                                     "256",
                                     "--block-size",
                                     "32",
                                     "--kv-cache-memory-bytes",
                                     "512M",
                                     "--host-memory-limit",
                                     "2GiB",
                                     "--weight-backup",
                                     "file",
                                     "--served-model-name",
                                     "m",
                                     "--threads",
                                     "3",
                                     "--api-key",
                                     "k",
                                     "--shutdown-timeout",
                                     "1.5",
                                     "--log-level",
                                     "debug",
                                     "x.gguf"});
  ASSERT_TRUE(std::holds_alternative<ServeOptions>(parsed));
  const auto& options = std::get<ServeOptions>(parsed);
  EXPECT_EQ(options.engine.model, "x.gguf");
  EXPECT_EQ(options.engine.served_model_name, "m");
  EXPECT_FALSE(options.engine.enable_sleep_mode);
  EXPECT_EQ(options.engine.weight_backup, WeightBackup::kFile);
  EXPECT_EQ(options.engine.max_model_len, 2048U);
  EXPECT_EQ(options.engine.max_num_seqs, 4U);
  EXPECT_EQ(options.engine.max_num_batched_tokens, 256U);
  EXPECT_EQ(options.engine.block_size, 32U);
  EXPECT_EQ(options.engine.kv_cache_memory_bytes, 512U << 20);
  EXPECT_EQ(options.engine.host_memory_limit, 2ULL << 30);
  EXPECT_EQ(options.engine.threads, 3U);
  EXPECT_EQ(options.api.http.host, "0.0.0.0");
  EXPECT_EQ(options.api.http.port, 0U);
  EXPECT_EQ(options.api.api_key, "k");
  EXPECT_EQ(options.shutdown_timeout.count(), 1500);
  EXPECT_EQ(options.log_level, LogLevel::kDebug);
}

TEST(Serve, DefaultsAreLoopbackAndSleepModeOn) {
  const auto parsed = serve_options({"x.gguf"});
  ASSERT_TRUE(std::holds_alternative<ServeOptions>(parsed));
  const auto& options = std::get<ServeOptions>(parsed);
  EXPECT_EQ(options.api.http.host, "127.0.0.1");
  EXPECT_EQ(options.api.http.port, 8000U);
  EXPECT_TRUE(options.engine.enable_sleep_mode);
}

TEST(Serve, AWrongCommandLineSaysWhatToDo) {
  const auto serve = [](std::vector<std::string> words) {
    words.insert(words.begin(), "serve");
    return run(run_serve, std::move(words));
  };
  const Outcome unknown = serve({"x.gguf", "--max-model-length", "5"});
  EXPECT_EQ(unknown.code, kExitUsage);
  EXPECT_EQ(unknown.error,
            "dormouse: unknown argument --max-model-length. Did you mean --max-model-len?\n");
  EXPECT_EQ(serve({"--prot", "8000", "x.gguf"}).error,
            "dormouse: unknown argument --prot. Did you mean --port?\n");
  EXPECT_EQ(serve({"x.gguf", "--zzzzzzzz"}).error,
            "dormouse: unknown argument --zzzzzzzz. See --help\n");
  EXPECT_EQ(serve({"x.gguf", "--device", "cuda"}).error,
            "dormouse: --device cuda: this build runs on the host's CPU only; use --device host\n");
  EXPECT_EQ(serve({"x.gguf", "--kv-cache-memory-bytes", "lots"}).error,
            "dormouse: --kv-cache-memory-bytes: \"lots\" is not a size like 512M, 2GiB or "
            "1073741824\n");
  for (const char* seconds : {"nan", "-nan", "inf", "-1", "86401", "x", ""})
    EXPECT_EQ(serve({"x.gguf", "--shutdown-timeout", seconds}).code, kExitUsage) << seconds;
  EXPECT_EQ(serve({}).code, kExitUsage);
  EXPECT_EQ(serve({"x.gguf", "--port", "70000"}).code, kExitUsage);
  const Outcome help = serve({"--help"});
  EXPECT_EQ(help.code, kExitOk);
  EXPECT_NE(help.out.find("--kv-cache-memory-bytes"), std::string::npos);
  EXPECT_NE(help.out.find("Exit codes:"), std::string::npos);
}

TEST(Ctl, AWrongCommandLineOrNoServerHasItsOwnExitCode) {
  EXPECT_EQ(run(run_ctl, {"ctl"}).code, kExitUsage);
  EXPECT_EQ(run(run_ctl, {"ctl", "sleeep"}).code, kExitUsage);
  EXPECT_EQ(run(run_ctl, {"ctl", "sleep", "--level", "3"}).code, kExitUsage);
  EXPECT_EQ(run(run_ctl, {"ctl", "status", "--url", "a/b"}).code, kExitUsage);
  const Outcome nobody = run(run_ctl, {"ctl", "status", "--url", "http://127.0.0.1:1"});
  EXPECT_EQ(nobody.code, kExitUnreachable);
  EXPECT_NE(nobody.error.find("Is the server running?"), std::string::npos);
}

TEST(Ctl, ShowsStatusAsATable) {
  const auto status = parse_json(
      R"({"state":"asleep","cause":"","model":"tiny","sleep_level":1,"is_sleeping":true,)"
      R"("accepts_requests":false,"requests_running":0,"requests_waiting":2,"blocks_total":64,)"
      R"("blocks_used":0,"block_size":16,"transition_phase":"","memory":{"weights":)"
      R"({"mapped":0,"asleep":104857600,"backed_up":104857600,"leaked":0}}})");
  EXPECT_EQ(status_table(*status),
            "tiny       asleep, level 1\n"
            "requests   0 running, 2 waiting; none accepted now\n"
            "KV cache   0 of 64 blocks of 16 tokens\n"
            "\n"
            "  memory             mapped       asleep    backed up       leaked\n"
            "  weights                 -    100.0 MiB    100.0 MiB            -\n");
}

TEST(Ctl, ShowsWhatASleepDid) {
  const auto reply = parse_json(
      R"({"state":"asleep","sleep_level":1,"changed":true,"freed_bytes":125829120,)"
      R"("seconds":0.0125,"tags":{"kv_cache":"asleep"},"receipt":{"phases_ms":{"unmap":12.5}}})");
  EXPECT_EQ(transition_table(*reply),
            "asleep at level 1 after 12.5 ms; 120.0 MiB given back\n"
            "  kv_cache     asleep\n"
            "  unmap        12.5 ms\n");
}

TEST(Ctl, ShowsWhatAWakeUpMapped) {
  const auto reply = parse_json(R"({"state":"running","changed":true,"freed_bytes":0,"seconds":2,)"
                                R"("receipt":{"tags":{"a":{"mapped":1024},"b":{"mapped":1024}}}})");
  EXPECT_EQ(transition_table(*reply), "running after 2.00 s; 2.0 KiB mapped\n");
  const auto idle = parse_json(R"({"state":"running","changed":false})");
  EXPECT_EQ(transition_table(*idle), "running already; nothing changed\n");
}

}  // namespace
}  // namespace dormouse::cli
