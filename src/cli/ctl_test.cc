#include "cli/ctl.h"

#include <gtest/gtest.h>

#include "cli/ctl_tables.h"
#include "cli/options.h"
#include "cli/serve.h"
#include "cli/units.h"
#include "server/fake_server.h"
#include "server/http_server.h"

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
  EXPECT_EQ(serve({"x.gguf", "--verify-kv"}).error,
            "dormouse: --kv-transfer-config: --verify-kv needs one that names a connector; without "
            "it nothing is transferred\n");
  EXPECT_EQ(serve({"x.gguf", "--weight-backup", "nap"}).error,
            "dormouse: --weight-backup: nap is not one of retain|release|file\n");
  EXPECT_EQ(serve({}).code, kExitUsage);
  EXPECT_EQ(serve({"x.gguf", "--port", "70000"}).code, kExitUsage);
  const Outcome help = serve({"--help"});
  EXPECT_EQ(help.code, kExitOk);
  EXPECT_NE(help.out.find("--kv-cache-memory-bytes"), std::string::npos);
  EXPECT_NE(help.out.find("Exit codes:"), std::string::npos);
  EXPECT_NE(help.out.find("--weight-backup retain|release|file"), std::string::npos);
  EXPECT_EQ(help.out.find("->"), std::string::npos) << "it shows how choices are stored";
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

TEST(Ctl, ShowsWhatASleepKeepsAndWhy) {
  const auto reply = parse_json(
      R"({"state":"asleep","sleep_level":1,"changed":true,"freed_bytes":2048,"seconds":1,)"
      R"("receipt":{"tags":{"weights":{"backup_kept":1024}},)"
      R"("kept":[{"what":"importer d","bytes":4096,"why":"it did not let go"}]}})");
  EXPECT_EQ(transition_table(*reply),
            "asleep at level 1 after 1.00 s; 2.0 KiB given back; "
            "4.0 KiB kept (importer d: it did not let go); 1.0 KiB kept (weights backup)\n");
  const auto named =
      parse_json(R"({"state":"asleep","sleep_level":1,"changed":true,"seconds":1,)"
                 R"("receipt":{"tags":{"weights":{"backup_kept":1024}},)"
                 R"("kept":[{"what":"weights backup","bytes":1024,"why":"to wake from"}]}})");
  EXPECT_EQ(transition_table(*named),
            "asleep at level 1 after 1.00 s; 1.0 KiB kept (weights backup: to wake from)\n");
}

TEST(Ctl, NamesTheRemedyOfWhatDoesNotServe) {
  const auto reply =
      parse_json(R"({"state":"paused","changed":true,"seconds":1,"next":"POST /reload_weights",)"
                 R"("cause":"the weights were discarded"})");
  EXPECT_EQ(transition_table(*reply),
            "paused after 1.00 s\nthe weights were discarded: dormouse ctl reload\n");
  const auto status = parse_json(R"({"model":"m","state":"paused","next":"POST /resume"})");
  EXPECT_NE(status_table(*status).find("next       dormouse ctl resume\n"), std::string::npos);
}

TEST(Ctl, ShowsHowKvIsTransferred) {
  const auto status = parse_json(
      R"({"kv_transfer":{"connector":"C","role":"kv_both","address":"h:1","peers":["h:2","h:3"],)"
      R"("loads":1,"sends":2}})");
  EXPECT_NE(status_table(*status).find("transfer   C, kv_both at h:1; peers h:2, h:3; "
                                       "1 loads and 2 sends under way\n"),
            std::string::npos);
}

TEST(Ctl, SpeaksOfItsOwnCommandsAndOptions) {
  EXPECT_EQ(in_ctl_words("Use force=true, or POST /wake_up?tags=weights, POST /reload_weights."),
            "Use --force, or dormouse ctl wake --tags weights, dormouse ctl reload.");
}

using CtlTest = server::ApiServerTest;

TEST_F(CtlTest, MakesEveryCall) {
  const std::string url = "http://127.0.0.1:" + std::to_string(server_->port());
  const auto ctl = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"ctl", "--url", url});
    const Outcome outcome = run(run_ctl, words);
    EXPECT_EQ(outcome.code, kExitOk) << outcome.error;
    return outcome.out;
  };
  ctl({"pause", "--mode", "keep"});
  ctl({"release-kv"});
  ctl({"release-kv-cache-memory"});
  EXPECT_NE(ctl({"wake"}).find("running after"), std::string::npos);
  EXPECT_NE(ctl({"sleep", "--level", "2", "--timeout-ms", "5", "--force"}).find("given back"),
            std::string::npos);
  EXPECT_NE(ctl({"status"}).find("next       dormouse ctl wake\n"), std::string::npos);
  engine_.change_status([](EngineStatus& status) { status.weights_valid = false; });
  EXPECT_NE(ctl({"wake"}).find(": dormouse ctl reload\n"), std::string::npos);
  ctl({"reload"});
  ctl({"resume"});
  EXPECT_EQ(engine_.calls(),
            (std::vector<std::string>{"pause mode=keep clear_cache=true", "release_kv_cache_memory",
                                      "release_kv_cache_memory", "wake_up all",
                                      "sleep level=2 mode=abort deadline=5 force", "wake_up all",
                                      "reload_weights", "resume"}));
}

TEST(Ctl, KnowsARouter) {
  const auto router = server::HttpServer::start({}, [](const auto& request, const auto& writer) {
    if (request.path != "/status")
      return writer->reply({.status = 404, .body = R"({"error":{"message":"Not Found"}})"});
    writer->reply({.body = R"({"instances":[{"url":"http://h:1","role":"prefill","state":"asleep",)"
                           R"("cause":"at level 1","in_flight":0,"requests":12,"failures":3}],)"
                           R"("totals":{"requests":9,"prefill_legs":8,"local_computations":1,)"
                           R"("retries":0}})"});
  });
  ASSERT_TRUE(router);
  const std::string url = "http://127.0.0.1:" + std::to_string((*router)->port());
  EXPECT_EQ(run(run_ctl, {"ctl", "status", "--url", url}).out,
            "router     9 requests, 8 prefill legs, 1 computed locally, 0 retries\n"
            "\n"
            "  instance   role     state    in flight  requests  failures\n"
            "  http://h:1 prefill  asleep           0        12         3  at level 1\n");
  for (const char* call : {"sleep", "wake", "reload"}) {
    const Outcome refused = run(run_ctl, {"ctl", call, "--url", url});
    EXPECT_EQ(refused.code, kExitRefused);
    EXPECT_EQ(refused.error, "dormouse: this is a router; name an instance: --url http://h:1\n");
  }
}

}  // namespace
}  // namespace dormouse::cli
