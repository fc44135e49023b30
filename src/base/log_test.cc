#include "base/log.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace dormouse {
namespace {

TEST(Log, FormatsOnlyWhatIsEnabled) {
  set_log_level(LogLevel::kWarning);
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_TRUE(log_enabled(LogLevel::kError));
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "base", "bytes={} ratio={:.2f}", 7, 0.5);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("base bytes=7 ratio=0.50"),
            std::string::npos);
}

TEST(Log, ALineStaysOneLineWhateverStandsInIt) {
  testing::internal::CaptureStderr();
  log(LogLevel::kError, "base", "engine={}",
      "x\n2026-01-01 error engine forged\x1b[31m\x7f \xc3\xa9");
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("engine=x\\x0a2026-01-01 error engine forged\\x1b[31m\\x7f \xc3\xa9\n"),
            std::string::npos)
      << line;
}

TEST(Check, StopsTheProcessWithAMessage) {
  EXPECT_DEATH(DM_CHECK(1 + 1 == 3, "arithmetic"), "check failed: 1 \\+ 1 == 3: arithmetic");
}

Status fails() {
  return fail(ErrorCode::kNotFound, "gone");
}

Result<int> passes_on() {
  DM_TRY(fails());
  return 1;
}

TEST(Check, TryHandsTheErrorOn) {
  EXPECT_EQ(passes_on().error().code, ErrorCode::kNotFound);
  EXPECT_EQ(to_string(passes_on().error().code), "not_found");
}

}  // namespace
}  // namespace dormouse
