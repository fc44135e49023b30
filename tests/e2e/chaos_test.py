#!/usr/bin/env python3
"""A short run of the chaos that `make chaos` makes for long."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

from harness import SCRATCH

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class ShortChaos(unittest.TestCase):
    def test_a_while_of_it_leave_nothing(self):
        done = subprocess.run(
            [sys.executable, ROOT / "tools/chaos.py", "--seconds", "18", "--transfers", "100000",
             "--interval", "0.5", "--seed", "7"],
            capture_output=True, text=True, timeout=170, stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(SCRATCH)})
        self.assertTrue(done.stdout.strip(), done.stderr[-3000:])
        result = json.loads(done.stdout.strip().splitlines()[-1])
        self.assertEqual((result["wrong"], result["hung"], result["failures"]), (0, 0, []), done.stdout[-3000:])
        self.assertGreater(result["transfers"], 20, result)
        self.assertGreater(result["answers"], result["requests"] // 4, result)


if __name__ == "__main__":
    unittest.main()
