#!/usr/bin/env python3
"""The tree names no paths of a developer's machine, no package hosts, and not how it was made.

The pattern is put together from pieces, so that this file passes its own check.
"""

import re

import tree

PIECES = [
    ("/wo", "rk/"), ("/t", "mp/"), ("/ho", "me/"), ("/ro", "ot/"),
    (r"\bpypi\.", "org"), ("pythonhos", "ted"), (r"deb\.deb", r"ian\.org"), (r"registry\.npm", "js"),
    (r"proxy\.gol", "ang"), (r"static\.crat", r"es\.io"), ("artifact", "ory"),
    ("DES", r"IGN\.md"), (r"aesthe", r"tics\.md"), (r"vllm-con", r"tract\.md"), ("sub", "agent"),
    (r"\.libr", "ary/"), ("/fa", "rm/"), ("DEVEL", r"OPERS\.md"),
]
PATTERN = re.compile("|".join("".join(piece) for piece in PIECES))


def check():
    args = tree.arguments(__doc__).parse_args()
    findings = []
    for name in tree.files(args.root):
        text = tree.read(args.root, name)
        findings += [f"{name}:{number}: {PATTERN.search(line).group()}"
                     for number, line in enumerate((text or "").splitlines(), 1) if PATTERN.search(line)]
    return tree.report("words", findings, "Take temporary folders from the system, hosts from the tools' own "
                       "settings, and let the project speak of itself alone.")


if __name__ == "__main__":
    tree.main(check)
