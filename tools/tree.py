"""What the checks share: the files of the tree, their text without comments, and how findings are told."""

import argparse
import os
import pathlib
import re
import subprocess
import sys

OUTSIDE = {".git", "build", "dist", "models", ".cache", "__pycache__"}


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--root", type=pathlib.Path, help="tree to check",
                        default=pathlib.Path(__file__).resolve().parent.parent)
    return parser


def files(root, *suffixes):
    """Paths relative to the root, sorted: what git tracks, or everything where there is no git."""
    listed = subprocess.run(["git", "-c", f"safe.directory={root}", "-C", root, "ls-files", "-z"],
                            capture_output=True, text=True) if (root / ".git").exists() else None
    if listed and listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
    else:
        names = [os.path.relpath(os.path.join(folder, name), root)
                 for folder, folders, inside in os.walk(root)
                 if not folders.sort() and not any(folders.remove(f) for f in OUTSIDE & {*folders})
                 for name in inside]
    return sorted(name for name in names
                  if (root / name).is_file() and (not suffixes or name.endswith(suffixes)))


def sources(root):
    return files(root, ".h", ".cc", ".inc", ".cu", ".cuh")


def read(root, name):
    """The text, or None for a binary file."""
    data = (root / name).read_bytes()
    return None if b"\0" in data else data.decode("utf-8", errors="replace")


_OPAQUE = re.compile(r'R"([^()\s\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
                     r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*.*?\*/", re.DOTALL)


def without_comments(text):
    """The code with comments and literals blanked out, line by line in the same place."""
    return _OPAQUE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def report(name, findings, remedy):
    """Prints `file:line: what` for each finding, then what to do; returns the exit status."""
    for finding in findings:
        print(finding)
    if findings:
        print(f"{name}: {len(findings)} found. {remedy}")
        return 1
    print(f"{name}: clean")
    return 0


def main(check):
    sys.exit(check())
