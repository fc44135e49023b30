#!/usr/bin/env python3
"""Lengths of lines, functions and files, and calls that this tree does not make.

Where a banned call is right after all, its line ends in `// allowed: why`.
"""

import re

import tree

MAX_LINE, MAX_FUNCTION, MAX_FILE = 100, 70, 500
RATCHET = "tests/style/ratchet.txt"
ALLOWED = re.compile(r"// allowed: \S")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")

# pattern over code without comments and literals, where it counts, why
BANNED = [
    (re.compile(r"\bthrow\b(?!\s*\()"), lambda n: n.startswith(("src/", "include/")),
     "`throw`: return an Error"),
    (re.compile(r"(?<![\w.>])(?:std::|::)?(?:quick_)?exit\s*\("),
     lambda n: n.startswith(("src/", "include/")) and not n.startswith("src/cli/"),
     "`exit(`: only src/cli ends the process; return an Error"),
    (re.compile(r"\bsleep_(?:for|until)\s*\(|(?<![\w.>])u?sleep\s*\("),
     lambda n: n.endswith("_test.cc") or n.startswith("tests/"),
     "sleeping in a test: use a manual clock, a latch or a condition variable"),
]

SCOPE = re.compile(r"^\s*(?:inline\s+)?namespace\b|^\s*extern\s*$")
TYPE = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:class|struct|union|enum)\b")
FUNCTION_NAME = re.compile(r"(~?[\w:]+|operator\s*\S+)\s*\(")


def scope_kind(head, parent):
    """What a `{` opens, from the text before it."""
    if parent == "function" or parent == "other":
        return "other"
    if SCOPE.search(head):
        return "scope"
    if TYPE.search(head) and not head.rstrip().endswith(")"):
        return "scope"
    return "function" if "(" in head else "other"


def functions(code):
    """(first line, name, lines) of each function, by following braces; lambdas count to their function."""
    stack, head, head_line, line = [], "", 1, 1
    for char in code:
        if char == "{":
            kind = scope_kind(head, stack[-1][0] if stack else "scope")
            name = FUNCTION_NAME.search(head)
            stack.append((kind, head_line, re.sub(r"\s", "", name.group(1)) if name else "?"))
            head = ""
        elif char == "}" and stack:
            kind, first, name = stack.pop()
            if kind == "function":
                yield first, name, line - first + 1
            head = ""
        elif char == ";" and head.count("(") <= head.count(")"):
            head = ""
        elif char == "\n":
            line += 1
            head = "" if head.lstrip().startswith("#") else head + " "
        else:
            if not head.strip() and not char.isspace():
                head, head_line = "", line
            head += char


def read_ratchet(root):
    path = root / RATCHET
    lines = path.read_text().splitlines() if path.exists() else []
    return {key: int(number) for key, number in
            (line.rsplit(maxsplit=1) for line in lines if line.strip() and not line.startswith("#"))}


def length_findings(sizes, ratchet):
    """`sizes`: key -> (where, lines, limit)"""
    for key, (where, lines, limit) in sizes.items():
        known = ratchet.pop(key, None)
        if known is None and lines > limit:
            yield f"{where}: {lines} lines, more than {limit}"
        elif known is not None and lines > known:
            yield f"{where}: {lines} lines, more than the {known} in {RATCHET}"
        elif known is not None and lines < known:
            yield f"{RATCHET}: {key} has {lines} lines now, lower its number or drop the line"
    for key in ratchet:
        yield f"{RATCHET}: {key} is not there any more, drop the line"


def line_findings(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_LINE and name.endswith((".h", ".cc", ".cu", ".cuh")):
            yield f"{name}:{number}: {len(line)} columns, more than {MAX_LINE}"
        if line != line.rstrip() and not name.endswith(".patch"):
            yield f"{name}:{number}: trailing white space"
        if UNFINISHED.search(line):
            yield f"{name}:{number}: unfinished: {UNFINISHED.search(line).group()}"
    if text and not text.endswith("\n"):
        yield f"{name}: no newline at the end"


def banned_findings(name, text, code):
    lines = text.splitlines()
    for pattern, applies, why in BANNED:
        for found in pattern.finditer(code) if applies(name) else ():
            number = code.count("\n", 0, found.start()) + 1
            if not ALLOWED.search(lines[number - 1]):
                yield f"{name}:{number}: {why}"


def check():
    args = tree.arguments(__doc__).parse_args()
    findings, sizes = [], {}
    code_files = set(tree.sources(args.root))
    for name in tree.files(args.root):
        text = tree.read(args.root, name)
        if text is None or "golden" in name or name.endswith((".json", ".txt", ".jinja", ".svg")):
            continue
        findings += line_findings(name, text)
        if name not in code_files:
            continue
        code = tree.without_comments(text)
        findings += banned_findings(name, text, code)
        sizes[name] = (name, text.count("\n"), MAX_FILE)
        for first, function, lines in functions(code):
            key = f"{name}:{function}"
            if lines > sizes.get(key, ("", 0, 0))[1]:
                sizes[key] = (f"{name}:{first}: {function}", lines, MAX_FUNCTION)
    findings += length_findings(sizes, read_ratchet(args.root))
    return tree.report("tidy", findings, "Split what is long, and say it another way where a call is banned.")


if __name__ == "__main__":
    tree.main(check)
