#include "base/log.h"

#define SPDLOG_HEADER_ONLY
#define SPDLOG_FMT_EXTERNAL
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

namespace dormouse {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created = std::make_shared<spdlog::logger>(
        "dormouse", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    return created;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(to_spdlog(level));
}

bool log_enabled(LogLevel level) {
  return logger().should_log(to_spdlog(level));
}

// What a stranger sent may stand in a message: a line stays one line, and a terminal unharmed.
std::string printable(std::string_view message) {
  std::string text;
  text.reserve(message.size());
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      text += fmt::format("\\x{:02x}", byte);
    else
      text += c;
  }
  return text;
}

void log_line(LogLevel level, std::string_view folder, std::string_view message) {
  logger().log(to_spdlog(level), "{} {}", folder, printable(message));
}

}  // namespace dormouse
