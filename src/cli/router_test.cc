#include "cli/router.h"

#include <gtest/gtest.h>

#include <csignal>

#include "cli/options.h"

namespace dormouse::cli {
namespace {

template <class Command>
auto with(Command command, std::vector<std::string> words) {
  words.insert(words.begin(), "router");
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  return command(static_cast<int>(words.size()), argv.data());
}

TEST(Router, ReadsEveryOption) {
  const auto parsed = with(parse_router, {"--prefill", "a:1",
                                          "b:2",       "--decode",
                                          "c:3",       "--decode",
                                          "d:4",       "--host",
                                          "::1",       "--port",
                                          "0",         "--api-key",
                                          "k",         "--backend-api-key",
                                          "b",         "--prefill-timeout",
                                          "1.5",       "--decode-timeout",
                                          "2",         "--shutdown-timeout",
                                          "3",         "--log-level",
                                          "error"});
  ASSERT_TRUE(std::holds_alternative<RouterOptions>(parsed));
  const auto& options = std::get<RouterOptions>(parsed);
  EXPECT_EQ(options.router.prefill, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(options.router.decode, (std::vector<std::string>{"c:3", "d:4"}));
  EXPECT_EQ(options.router.http.host, "::1");
  EXPECT_EQ(options.router.http.port, 0U);
  EXPECT_EQ(options.router.api_key, "k");
  EXPECT_EQ(options.router.backend_api_key, "b");
  EXPECT_EQ(options.router.prefill_timeout.count(), 1500);
  EXPECT_EQ(options.router.decode_timeout.count(), 2000);
  EXPECT_EQ(options.shutdown_timeout.count(), 3000);
  EXPECT_EQ(options.log_level, LogLevel::kError);
}

TEST(Router, AWrongCommandLineSaysWhatToDo) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(with(run_router, {"--prefill", "a:1"}), kExitUsage);
  EXPECT_EQ(with(run_router, {"--prefill", "a/b", "--decode", "c:3"}), kExitUsage);
  EXPECT_EQ(with(run_router, {"--prefill", "a:1", "--decode", "c:3", "--prot", "1"}), kExitUsage);
  EXPECT_EQ(with(run_router, {"--prefill", "a:1", "--decode", "--port", "19122"}), kExitUsage);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("--decode is required"), std::string::npos) << said;
  EXPECT_NE(said.find("\"a/b\" is not a URL"), std::string::npos) << said;
  EXPECT_NE(said.find("Did you mean --port?"), std::string::npos) << said;
  EXPECT_NE(said.find("--decode: \"--port\" is not a URL"), std::string::npos) << said;
}

TEST(Router, SaysWhereItListensAndEndsOnSigterm) {
  sigset_t set, before;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP})
    sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, &before);
  raise(SIGTERM);  // waits until the router asks
  testing::internal::CaptureStdout();
  const int code = with(run_router, {"--prefill", "127.0.0.1:1", "--decode", "127.0.0.1:2",
                                     "--port", "0", "--log-level", "off"});
  const std::string banner = testing::internal::GetCapturedStdout();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(code, kExitOk);
  EXPECT_NE(banner.find("  decode     127.0.0.1:2\n"), std::string::npos) << banner;
  EXPECT_NE(banner.find("  API        http://127.0.0.1:"), std::string::npos) << banner;
  EXPECT_EQ(banner.find("127.0.0.1:0/"), std::string::npos) << banner;
}

}  // namespace
}  // namespace dormouse::cli
