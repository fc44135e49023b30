// How the waits of a release are made.
#pragma once

#include <thread>

#include "base/check.h"
#include "dormouse/memory.h"

namespace dormouse::pull {

// Until `done()`; else what `may_wait` says. `done` is asked about every millisecond, and last.
template <class Done>
Status await(const Unmapping& unmapping, Done&& done) {
  while (!done()) {
    DM_TRY(unmapping.may_wait());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

}  // namespace dormouse::pull
