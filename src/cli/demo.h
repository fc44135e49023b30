// `dormouse demo`: one engine on the real model sleeps and wakes in every way, and every answer is
// compared with the first.
#pragma once

namespace dormouse::cli {

// argv[0] is the command's name. Returns the exit code: 0 only if every answer was identical and
// every sleep gave back what it said; 2 for wrong arguments.
int run_demo(int argc, char** argv);

}  // namespace dormouse::cli
