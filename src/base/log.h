// One logger for each folder. Lines go to stderr: time, level, folder, and a message with
// key=value pairs. Control characters in it are written as \xNN.
//
// Threads: any. Cost: nothing is formatted below the level that is set.
#pragma once

#include <fmt/core.h>

#include <string_view>

namespace dormouse {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view folder, std::string_view message);

template <class... Args>
void log(LogLevel level, std::string_view folder, fmt::format_string<Args...> format,
         Args&&... args) {
  if (log_enabled(level))
    log_line(level, folder, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dormouse
