// `dormouse bench sleep` and `dormouse bench serve`.
#pragma once

namespace dormouse::cli {

// argv[0] is the command's name. Returns the exit code.
int run_bench(int argc, char** argv);

}  // namespace dormouse::cli
