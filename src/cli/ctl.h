// dormouse ctl: an operator's hand on a running server.
#pragma once

namespace dormouse::cli {

int run_ctl(int argc, char** argv);

}  // namespace dormouse::cli
