// DM_CHECK stops the process on a programmer error, in release builds too.
// DM_TRY / DM_TRY_ASSIGN hand an operating error to the caller.
#pragma once

#include "dormouse/result.h"

namespace dormouse::detail {
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& message);
}

#define DM_CHECK(condition, message)                                               \
  do {                                                                             \
    if (!(condition)) [[unlikely]]                                                 \
      ::dormouse::detail::check_failed(#condition, __FILE__, __LINE__, (message)); \
  } while (false)

#define DM_TRY(expression)                                      \
  do {                                                          \
    if (auto dm_status = (expression); !dm_status) [[unlikely]] \
      return tl::unexpected(std::move(dm_status).error());      \
  } while (false)

#define DM_CONCAT_(a, b) a##b
#define DM_CONCAT(a, b) DM_CONCAT_(a, b)
#define DM_TRY_ASSIGN_(temporary, target, expression)    \
  auto temporary = (expression);                         \
  if (!temporary) [[unlikely]]                           \
    return tl::unexpected(std::move(temporary).error()); \
  target = std::move(*temporary)
#define DM_TRY_ASSIGN(target, expression) \
  DM_TRY_ASSIGN_(DM_CONCAT(dm_result_, __LINE__), target, expression)
