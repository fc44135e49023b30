// dormouse router: the prefill/decode router, until a signal ends it.
#pragma once

namespace dormouse::cli {

// Ends on SIGTERM or SIGINT: requests under way get the shutdown timeout, a second signal none.
int run_router(int argc, char** argv);

}  // namespace dormouse::cli
