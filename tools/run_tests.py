#!/usr/bin/env python3
"""Runs every test of a build tree and ends with the line `N passed, N failed`.

The small real model is fetched first, since tests take its path from DORMOUSE_MODEL; a fetch that fails
counts as a failed test, so that tests skipped for want of the model cannot pass for success.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent


def fetch_model():
    """The model's path, or None after saying why not."""
    if os.environ.get("DORMOUSE_MODEL"):
        return os.environ["DORMOUSE_MODEL"]
    done = subprocess.run([ROOT / "tools/fetch_model.sh"], stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines and pathlib.Path(lines[-1]).exists():
        return lines[-1]
    print("fetch_model: FAILED; tests that need the real model will be skipped", flush=True)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="build tree")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--filter", help="regular expression over test names")
    args = parser.parse_args()

    model = fetch_model()
    environment = dict(os.environ)
    if model:
        environment["DORMOUSE_MODEL"] = str(pathlib.Path(model).resolve())
    report = args.build.resolve() / "ctest.xml"
    report.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", args.build, "--output-on-failure", "--no-tests=error",
               "--output-junit", report, "--parallel", str(args.jobs)]
    if args.filter:
        command += ["-R", args.filter]
    code = subprocess.run(command, env=environment).returncode

    if not report.exists():
        print("0 passed, 1 failed")
        return 1
    counts = ElementTree.parse(report).getroot()
    total, failed, skipped = (int(counts.get(k, 0)) for k in ("tests", "failures", "skipped"))
    disabled = int(counts.get("disabled", 0))
    passed = total - failed - skipped - disabled
    failed += model is None
    skipped += disabled
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return 1 if failed or code else 0


if __name__ == "__main__":
    sys.exit(main())
