#!/bin/bash
# Gathers a release build into dist/: the command and the unit tests, stripped, with what runs them. They
# need the C library alone, so that a bundle made on Debian 12 runs on any newer x86-64 Linux.
#   tools/bundle.sh BUILD_TREE
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "$1" && pwd)/bin
cd "$root"

version=$(sed -n 's/^project(dormouse VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=dormouse-$version-linux-x86_64
out=dist/$name
rm -rf "$out" "$out.tar.xz"
mkdir -p "$out/bin" "$out/tests"

install -s -m 755 "$bin/dormouse" "$out/bin/"
for program in "$bin"/*_test; do
  install -s -m 755 "$program" "$out/tests/"
done
mkdir "$out/golden"
install -m 644 tests/golden/* "$out/golden/"
install -m 755 tools/bundle/run_tests.sh "$out/"
install -m 644 LICENSE "$out/"
sed "s/@VERSION@/$version/" tools/bundle/README-BUNDLE >"$out/README-BUNDLE"

# Anything but the C library would be missing elsewhere.
allowed='linux-vdso|ld-linux-x86-64|libc\.so|libm\.so|libpthread\.so|libdl\.so|librt\.so'
status=0
for program in "$out"/bin/* "$out"/tests/*; do
  extra=$(ldd "$program" | grep -vE "$allowed" | grep -vE 'statically linked|not a dynamic' || true)
  if [ -n "$extra" ]; then
    echo "$program needs more than the C library: $extra" >&2
    status=1
  fi
done
[ "$status" = 0 ] || exit 1

needed=$(for program in "$out"/bin/* "$out"/tests/*; do objdump -T "$program"; done |
  grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
tar -C dist --owner=0 --group=0 --sort=name -cJf "$out.tar.xz" "$name"
echo "$out.tar.xz: $(du -h "$out.tar.xz" | cut -f1), needs $needed or newer, and nothing but the C library"
