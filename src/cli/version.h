// The version of this build.
#pragma once

#include <string_view>

#ifndef DORMOUSE_VERSION
#error "the build defines DORMOUSE_VERSION"
#endif

namespace dormouse::cli {

inline constexpr std::string_view kVersion = DORMOUSE_VERSION;

}  // namespace dormouse::cli
