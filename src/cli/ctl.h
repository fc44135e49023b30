// dormouse ctl: an operator's hand on a running server.
#pragma once

#include <string>

#include "base/json.h"

namespace dormouse::cli {

int run_ctl(int argc, char** argv);

// The tables that ctl prints, of the server's /status and of its answer to /sleep or /wake_up.
std::string status_table(const Json& status);
std::string transition_table(const Json& reply);

}  // namespace dormouse::cli
