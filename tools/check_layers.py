#!/usr/bin/env python3
"""Folders include only what lies below them, and libraries stay where they belong: the table is src/LAYERS."""

import re

import tree

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


def read_table(text):
    """folder -> what it may include, header prefix -> (where, how many files or None)"""
    folders, libraries = {}, {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        key, _, value = line.partition(":")
        if key.startswith("<"):
            where, _, limit = value.partition("|")
            libraries[key[1:]] = (where.split(), int(limit) if limit.strip() else None)
        else:
            folders[key] = set(value.split()) - {"-"}
    return folders, libraries


def for_tests(path):
    """A test, or what stands beside tests to help them: x_test.cc, fake_x.h, x_fixture.h, anything in testing/."""
    return path.endswith(("_test.cc", "_fixture.h")) or path.split("/")[-1].startswith("fake_") or path.startswith("testing/")


def own_include_allowed(folder, path, header, allowed):
    target = header.split("/")[0]
    if for_tests(header):
        return for_tests(path) and ("*" in allowed or target in ("testing", folder, *allowed))
    if target in ("dormouse", folder):
        return True
    return "*" in allowed or target in allowed or header in allowed


def place_allowed(path, places):
    """A place is a folder (`server/`, `/cuda/` at any depth), a file, or the ending of a name."""
    return any(path.endswith(place) if place.startswith("_")
               else place in "/" + path if place.startswith("/") else path.startswith(place)
               for place in places)


def check():
    args = tree.arguments(__doc__).parse_args()
    folders, libraries = read_table((args.root / "src/LAYERS").read_text())
    present = {path.name for path in (args.root / "src").iterdir() if path.is_dir()}
    findings = [f"src/LAYERS: {folder} has no line" for folder in sorted(present - folders.keys())
                if any(name.startswith(f"src/{folder}/") for name in tree.sources(args.root))]
    users = {prefix: [] for prefix in libraries}
    for name in tree.sources(args.root):
        if not name.startswith(("src/", "include/")):
            continue
        path = name.removeprefix("src/")
        folder = path.split("/")[0] if name.startswith("src/") else "dormouse"
        allowed = folders.get(folder, set())
        text = tree.read(args.root, name)
        for found in INCLUDE.finditer(text):
            where = f"{name}:{text.count(chr(10), 0, found.start(2)) + 1}"
            quote, header = found.groups()
            if quote == '"' and not own_include_allowed(folder, path, header, allowed):
                findings.append(f"{where}: {folder} may not include {header}")
            for prefix, (places, _) in libraries.items():
                if quote == "<" and header.startswith(prefix):
                    if not place_allowed(path, places):
                        findings.append(f"{where}: <{header}> belongs in {' '.join(places)} only")
                    if not for_tests(path):
                        users[prefix].append(name)
    for prefix, (_, limit) in libraries.items():
        if limit is not None and len(set(users[prefix])) > limit:
            findings.append(f"src/LAYERS: {limit} files may include <{prefix}...>, and these do: "
                            + " ".join(sorted(set(users[prefix]))))
    return tree.report("layers", findings, "Include only what src/LAYERS allows, or move the code to "
                       "the folder where it belongs.")


if __name__ == "__main__":
    tree.main(check)
