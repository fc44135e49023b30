#!/bin/sh
# Runs every unit test program of this bundle and ends with the line `N passed, N failed`, which counts
# programs. DORMOUSE_MODEL=FILE.gguf also runs what needs a real model.
cd "$(dirname "$0")" || exit 1
export DORMOUSE_GOLDEN_DIR="$PWD/golden"
passed=0
failed=0
for program in tests/*_test; do
  if output=$("$program" 2>&1); then
    passed=$((passed + 1))
    echo "$program: $(printf '%s\n' "$output" | grep -o '\[  PASSED  \].*')"
  else
    failed=$((failed + 1))
    printf '%s\n' "$output"
    echo "$program: FAILED"
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
