#!/usr/bin/env python3
"""Every C++ source is as clang-format writes it."""

import shutil
import subprocess

import tree


def check():
    parser = tree.arguments(__doc__)
    parser.add_argument("--fix", action="store_true", help="rewrite the files")
    args = parser.parse_args()
    if not shutil.which("clang-format"):
        print("clang-format is not installed")
        return 1
    names = tree.sources(args.root)
    if args.fix:
        return subprocess.run(["clang-format", "-i", *names], cwd=args.root).returncode
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *names], cwd=args.root,
                          capture_output=True, text=True)
    findings = [line for line in done.stderr.splitlines() if ": error:" in line]
    if done.returncode and not findings:
        findings = [done.stderr.strip() or "clang-format failed"]
    return tree.report("format", findings, "Run `make format`.")


if __name__ == "__main__":
    tree.main(check)
