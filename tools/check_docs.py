#!/usr/bin/env python3
"""What the documents name in backticks exists: paths, C++ symbols, flags, environment variables.
And each route that a server answers stands in docs/http.md."""

import re

import tree

FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(r"[\w.-]+(?:/[\w.*-]+)*/?")
SYMBOL = re.compile(r"(?:[A-Za-z_]\w*::)*~?[A-Za-z_]\w*(?:\(\))?")
FLAG = re.compile(r"--[a-z][a-z0-9-]+")
ROUTES = ("src/server/api_server.cc", "src/router/pd_router.cc")
ROUTE = re.compile(r'"(/[a-z][a-z0-9_/]*)"')
EXTENSION = re.compile(r"\.(h|cc|cu|py|sh|md|txt|cmake|patch|json)$")


def is_identifier(word):
    """Words that look written by a programmer: CamelCase, snake_case, a::b, f()."""
    return bool("::" in word or word.endswith("()") or "_" in word.strip("_")
                or re.fullmatch(r"[A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+", word))


def path_exists(root, document, text):
    places = (root, root / "src", root / "include", (root / document).parent)
    return any(next(place.glob(text.rstrip("/")), None) for place in places)


class Tree:
    def __init__(self, root, foreign):
        self.root = root
        self.foreign = foreign
        self.top = {name.split("/")[0] for name in tree.files(root) if "/" in name}
        self.top |= {p.name for p in (root / "src").iterdir()} | {p.name for p in (root / "include").iterdir()}
        self.text = "\n".join(tree.read(root, name) or "" for name in tree.files(root)
                              if not name.endswith(".md") and name != "tests/style/foreign_words.txt")
        self.words = set(re.findall(r"\w+", self.text))

    def missing(self, document, span):
        """What of this span does not exist, or None."""
        if span in self.foreign:
            return None
        if PATH.fullmatch(span) and ("/" in span or EXTENSION.search(span)):
            ours = span.split("/")[0] in self.top or EXTENSION.search(span)
            return span if ours and not path_exists(self.root, document, span) else None
        for flag in FLAG.findall(span):
            if flag not in self.text and flag not in self.foreign:
                return flag
        if SYMBOL.fullmatch(span) and is_identifier(span):
            parts = re.findall(r"\w+", span)
            return next((part for part in parts if part not in self.words and part not in self.foreign), None)
        return None


def check():
    args = tree.arguments(__doc__).parse_args()
    listed = args.root / "tests/style/foreign_words.txt"
    foreign = {line.strip() for line in listed.read_text().splitlines()
               if line and not line.startswith("#")} if listed.exists() else set()
    known = Tree(args.root, foreign)
    findings = []
    for name in tree.files(args.root, ".md"):
        if not name.startswith("docs/") and "/" in name:
            continue
        text = FENCE.sub(lambda found: "\n" * found.group().count("\n"), tree.read(args.root, name))
        for found in SPAN.finditer(text):
            missing = known.missing(name, found.group(1))
            if missing:
                findings.append(f"{name}:{text.count(chr(10), 0, found.start()) + 1}: no such thing: {missing}")
    text = {name: tree.read(args.root, name) for name in tree.files(args.root) if name in (*ROUTES, "docs/http.md")}
    for name in ROUTES:
        for route in sorted(set(ROUTE.findall(text.get(name, "")))):
            if not re.search(rf"(GET|POST) {route}(NAME)?`", text.get("docs/http.md", "")):
                findings.append(f"{name}: a route that docs/http.md lacks: {route}")
    return tree.report("docs", findings, "Name what exists; words of other projects go into "
                       "tests/style/foreign_words.txt.")


if __name__ == "__main__":
    tree.main(check)
