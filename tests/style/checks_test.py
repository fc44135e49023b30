#!/usr/bin/env python3
"""The checks of the tree find what they are for: each is run over a small tree with one fault in it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
GOOD = "int f() {\n  return 1;\n}\n"
LAYERS = "base: -\nengine: base\ntesting: *\n<boost/: server/ | 1\n<cuda: /cuda/\n"


def run(check, files):
    """Exit status and output of a check over a tree of these files."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"src/LAYERS": LAYERS, "include/dormouse/a.h": "", **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        done = subprocess.run([sys.executable, TOOLS / f"check_{check}.py", "--root", root],
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class Checks(unittest.TestCase):
    def clean(self, check, files):
        code, output = run(check, files)
        self.assertEqual(code, 0, output)

    def finds(self, check, files, *expected):
        code, output = run(check, files)
        self.assertEqual(code, 1, output)
        for text in expected:
            self.assertIn(text, output)

    def test_format(self):
        (style,) = [(TOOLS.parent / ".clang-format").read_text()]
        self.clean("format", {".clang-format": style, "src/base/a.cc": GOOD})
        self.finds("format", {".clang-format": style, "src/base/a.cc": "int  f(){return 1;}\n"}, "src/base/a.cc:1")

    def test_layers_between_folders(self):
        self.clean("layers", {"src/engine/a.cc": '#include "base/b.h"\n#include "dormouse/a.h"\n'})
        self.clean("layers", {"src/engine/a_test.cc": '#include "testing/b.h"\n'})
        self.finds("layers", {"src/base/a.cc": '\n#include "engine/b.h"\n'}, "src/base/a.cc:2", "engine/b.h")
        self.clean("layers", {"src/engine/fake_a.h": '#include "testing/b.h"\n',
                              "src/engine/a_test.cc": '#include "engine/fake_a.h"\n'})
        self.finds("layers", {"src/engine/a.cc": '#include "testing/b.h"\n'}, "src/engine/a.cc:1")
        self.finds("layers", {"src/engine/a.cc": '#include "engine/fake_a.h"\n'}, "src/engine/a.cc:1")
        self.finds("layers", {"include/dormouse/a.h": '#include "base/b.h"\n'}, "include/dormouse/a.h:1")
        self.finds("layers", {"src/novel/a.cc": GOOD}, "novel has no line")

    def test_layers_of_libraries(self):
        self.clean("layers", {"src/engine/cuda/a.cc": "#include <cuda.h>\n"})
        self.finds("layers", {"src/engine/a.cc": "#include <cuda.h>\n"}, "src/engine/a.cc:1")
        self.finds("layers", {"src/LAYERS": LAYERS + "server: base\n",
                              "src/server/a.cc": "#include <boost/beast.hpp>\n",
                              "src/server/b.cc": "#include <boost/asio.hpp>\n"}, "1 files may include")

    def test_tidy_lengths(self):
        long_function = "int f() {\n" + "  // a line\n" * 69 + "}\n"
        lambda_inside = "int f() {\n  auto g = [] {\n" + "  // a line\n" * 68 + "  };\n}\n"
        listed = {"tests/style/ratchet.txt": "src/base/a.cc:f 71\n"}
        self.clean("tidy", {"src/base/a.cc": GOOD * 100})
        self.clean("tidy", {"src/base/a.cc": "namespace a {\nclass B {\n" + "  int x;\n" * 90 + "};\n}\n"})
        self.finds("tidy", {"src/base/a.cc": GOOD + long_function}, "src/base/a.cc:4: f: 71 lines")
        self.finds("tidy", {"src/base/a.cc": lambda_inside}, "src/base/a.cc:1: f: 72 lines")
        self.clean("tidy", {"src/base/a.cc": long_function, **listed})
        self.finds("tidy", {"src/base/a.cc": lambda_inside, **listed}, "more than the 71")
        self.finds("tidy", {"src/base/a.cc": GOOD, **listed}, "lower its number")
        self.finds("tidy", {"src/base/b.cc": GOOD, **listed}, "not there any more")
        self.finds("tidy", {"src/base/a.cc": GOOD * 170}, "src/base/a.cc: 510 lines")
        self.finds("tidy", {"src/base/a.cc": "int " + "a" * 100 + ";\n"}, "src/base/a.cc:1: 105 columns")

    def test_tidy_words(self):
        self.clean("tidy", {"src/base/a.cc": '// never throw or exit(\nconst char* kText = "throw exit(1)";\n'})
        self.finds("tidy", {"src/base/a.cc": "void f() {\n  throw 1;\n}\n"}, "src/base/a.cc:2: `throw`")
        self.finds("tidy", {"src/base/a.cc": "void f() {\n  std::exit(1);\n}\n"}, "src/base/a.cc:2: `exit(`")
        self.clean("tidy", {"src/cli/a.cc": "void f() {\n  std::exit(1);\n}\n",
                            "src/base/a.cc": "void f() {\n  _exit(1);\n}\n"})
        self.finds("tidy", {"src/base/a_test.cc": "void f() {\n  std::this_thread::sleep_for(x);\n}\n"},
                   "src/base/a_test.cc:2: sleeping")
        self.clean("tidy", {"src/base/a_test.cc": "void f() { sleep(1); }  // allowed: time is measured\n"})
        self.finds("tidy", {"src/base/a.cc": "// TO" "DO: more\n"}, "src/base/a.cc:1: unfinished")
        self.finds("tidy", {"src/base/a.cc": "int a; \n"}, "src/base/a.cc:1: trailing")

    def test_docs(self):
        code = {"src/base/gate.h": "class InflightGate { void open_gate(); };  // --some-flag\n"}
        self.clean("docs", {**code, "docs/a.md": "`InflightGate::open_gate()`, `src/base/gate.h`, `base/`, "
                            "`--some-flag`, `POST /sleep`, `level`\n```\nNoSuchThing\n```\n"})
        for missing in ("InflightDoor", "open_door", "base/door.h", "src/door/", "--other-flag", "Gate::f"):
            self.finds("docs", {**code, "docs/a.md": f"\n`{missing}`\n"}, "docs/a.md:2: no such thing")
        routes = {"src/server/api_server.cc": 'add("GET", "/models/");\n'}
        self.clean("docs", {**routes, "docs/http.md": "`GET /models/NAME`\n"})
        self.finds("docs", {**routes, "docs/http.md": "`GET /models`\n"}, "docs/http.md lacks: /models/")
        self.clean("docs", {**code, "docs/a.md": "`MultiThing`\n", "tests/style/foreign_words.txt": "MultiThing\n"})

    def test_words(self):
        self.clean("words", {"docs/a.md": "the network/ folder\n"})
        for word in ("/t" "mp/x", "/wo" "rk/x", "pypi" ".org", "DES" "IGN.md"):
            self.finds("words", {"docs/a.md": f"\nsee {word}\n"}, "docs/a.md:2")


if __name__ == "__main__":
    unittest.main()
