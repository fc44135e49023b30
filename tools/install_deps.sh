#!/bin/sh
# Installs the Debian packages that building and testing need, those that are missing only.
set -eu

packages="g++ cmake ninja-build make git ca-certificates python3 python3-venv python3-pip
  libexpected-dev libboost1.81-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev
  libutf8proc-dev libxxhash-dev libssl-dev libgtest-dev libgmock-dev clang-format patch
  binutils xz-utils"

if ! command -v dpkg-query >/dev/null; then
  echo "Not a Debian system. Needed under other names:" $packages >&2
  exit 0
fi

missing=""
for package in $packages; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
  echo "Packages are missing. Run once as root:" >&2
  echo "  apt-get update && apt-get install -y --no-install-recommends$missing" >&2
  exit 1
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends $missing
