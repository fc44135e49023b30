#!/usr/bin/env python3
"""Removes each guarantee once and sees the test that guards it fail.

A control is tests/controls/NAME.patch: above the diff stand two lines,

    Guards: what is lost without it, in one sentence
    Test: EXECUTABLE GTEST_FILTER       a test program, for instance: memory_test Allocator.KeepsItsWord
    Test: NAME                          or a test of ctest, for instance: style.layers

Each named test passes on the unchanged tree, and fails with the patch applied; a patch that does not
apply or does not compile proves nothing and counts as an error. All of it happens in one scratch copy of
the tree, so that only what a patch touches is compiled again.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import tree

ROOT = pathlib.Path(__file__).resolve().parent.parent
CAUGHT, UNNOTICED, ERROR = "caught", "UNNOTICED", "ERROR"


@dataclasses.dataclass
class Control:
    name: str
    patch: pathlib.Path
    guards: str
    test: str
    filter: str  # empty: a test of ctest

    @staticmethod
    def read(path):
        header = path.read_text().split("\n--- ", 1)[0]
        fields = dict(re.findall(r"^(Guards|Test): (.+)$", header, re.MULTILINE))
        if fields.keys() != {"Guards", "Test"}:
            sys.exit(f"{path}: needs a line `Guards: ...` and a line `Test: ...` above the diff")
        test, _, test_filter = fields["Test"].strip().partition(" ")
        return Control(path.stem, path, fields["Guards"].strip(), test, test_filter.strip())


class Scratch:
    """A copy of the tree with a build of its own."""

    def __init__(self, folder, jobs, timeout):
        self.source = folder / "tree"
        self.build = folder / "build"
        self.jobs = str(jobs)
        self.timeout = timeout

    def copy(self):
        """Brings the copy up to date; files that are as they were keep their time, so nothing is rebuilt."""
        names = set(tree.files(ROOT))
        for path in [p for p in self.source.rglob("*") if p.is_file()]:
            if str(path.relative_to(self.source)) not in names:
                path.unlink()
        for name in names:
            target = self.source / name
            if not target.exists() or target.read_bytes() != (ROOT / name).read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)

    def configure(self):
        subprocess.run(["cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", "--log-level=WARNING",
                        "-DCMAKE_BUILD_TYPE=Quick", "-DCMAKE_CXX_FLAGS_QUICK=-O1",
                        "-DDORMOUSE_WERROR=OFF", "-DDORMOUSE_BUILD_TESTS=ON",
                        f"-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={self.build}/bin"],
                       check=True, stdout=subprocess.DEVNULL)

    def compile(self, *targets):
        """None, or the end of the compiler's output."""
        if not targets:
            return None
        done = subprocess.run(["ninja", "-C", self.build, "-j", self.jobs, *targets],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return None if done.returncode == 0 else done.stdout[-3000:]

    def patch(self, control, *options):
        done = subprocess.run(["patch", "-p1", "--batch", "--fuzz=0", "--no-backup-if-mismatch",
                               "--reject-file=-", *options, "-i", control.patch],
                              cwd=self.source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return None if done.returncode == 0 else done.stdout

    def targets(self, control):
        """What its test needs built; a check of the sources needs nothing."""
        if control.filter:
            return [control.test]
        return [] if control.test.startswith("style.") else ["all"]

    def run(self, control):
        """True if the control's test ran and passed, False if it failed or hung, else why it did not run."""
        if control.filter:
            command = [self.build / "bin" / control.test, f"--gtest_filter={control.filter}"]
        else:
            command = ["ctest", "--test-dir", self.build, "--no-tests=error",
                       "-R", f"^{re.escape(control.test)}$"]
        try:
            code, output = self.run_group(command)
        except subprocess.TimeoutExpired:
            return False
        except OSError as error:
            return str(error)
        if code:
            return f"ctest knows no {control.test}" if "No tests were found" in output else False
        if control.filter and not re.search(r"\[  PASSED  \] [1-9]\d* test", output):
            return f"no test of {control.test} matches {control.filter}"
        if "[  SKIPPED ]" in output:
            return "the test was skipped"
        return True

    def run_group(self, command):
        """A crashed test leaves its children behind, and they hold a pipe open: a file, and the whole group ends."""
        with tempfile.TemporaryFile() as file:
            process = subprocess.Popen(command, cwd=self.build, stdin=subprocess.DEVNULL, stdout=file,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(timeout=self.timeout)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            file.seek(0)
            return code, file.read().decode("utf-8", "replace")


def check_unchanged(scratch, controls):
    """The names of the controls whose test cannot prove anything, each with the reason."""
    trouble = scratch.compile(*sorted({target for c in controls for target in scratch.targets(c)}))
    if trouble:
        sys.exit(f"{trouble}\ncontrols: the unchanged tree does not compile")
    results, broken = {}, {}
    for control in controls:
        key = (control.test, control.filter)
        if key not in results:
            results[key] = scratch.run(control)
        if results[key] is not True:
            broken[control.name] = results[key] or "the test fails on the unchanged tree"
    return broken


def try_control(scratch, control):
    """The verdict on one control and why; the scratch tree is afterwards as it was."""
    trouble = scratch.patch(control, "--dry-run") or scratch.patch(control)
    if trouble:
        return ERROR, "the patch does not apply:\n" + trouble
    try:
        trouble = scratch.compile(*scratch.targets(control))
        if trouble:
            return ERROR, "does not compile:\n" + trouble
        passed = scratch.run(control)
        if passed is True:
            return UNNOTICED, "the test passes without it"
        return (CAUGHT, "") if passed is False else (ERROR, passed)
    finally:
        if scratch.patch(control, "--reverse"):
            sys.exit(f"controls: {control.name} cannot be reverted in {scratch.source}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="this control alone; repeatable")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "build/controls")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=int, default=180, help="seconds until a test counts as hung")
    args = parser.parse_args()

    controls = [Control.read(path) for path in sorted((ROOT / "tests/controls").glob("*.patch"))
                if not args.only or path.stem in args.only]
    missing = set(args.only or []) - {control.name for control in controls}
    if missing or not controls:
        sys.exit("controls: no such control: " + (", ".join(sorted(missing)) or "tests/controls is empty"))
    width = max(len(control.name) for control in controls)
    if args.list:
        for control in controls:
            print(f"{control.name:{width}}  {control.guards}\n{'':{width}}  {control.test} {control.filter}")
        return 0

    scratch = Scratch(args.scratch.resolve(), args.jobs, args.timeout)
    scratch.copy()
    scratch.configure()
    broken = check_unchanged(scratch, controls)
    caught = 0
    for control in controls:
        start = time.monotonic()
        verdict, why = ((ERROR, broken[control.name]) if control.name in broken
                        else try_control(scratch, control))
        caught += verdict == CAUGHT
        print(f"{control.name:{width}}  {verdict:9}  {time.monotonic() - start:5.1f} s  {control.guards}")
        if why:
            print(f"{'':{width}}  {why}")
        sys.stdout.flush()
    print(f"controls: {caught} of {len(controls)} caught")
    return 0 if caught == len(controls) else 1


if __name__ == "__main__":
    sys.exit(main())
