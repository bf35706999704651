#!/usr/bin/env python3
"""Checks the Markdown of the tree: every relative link and anchor resolves, tables stay narrow, and files contain the
names that pages find in them.
    python3 tests/wording/check_pages.py [--self-test | --installed BUILD]
Reads every tracked *.md; with --installed those that cmake installs from the build folder BUILD, in a temporary place.
A link is [text](target) or [name]: target outside code. A target without a scheme must be a
file or folder of the tree; its anchor must be a heading of that page, spelled as GitHub does. Every page of docs/ must
be reachable from docs/README.md. In `FILE` (`name`) and `Name` (`FILE`) the file must contain the name; without
capitals the second form is not checked. Also finds lines of prose of more than 100 characters, unless they hold a URL
or an image, and table cells of more than 200.
Exit status: 0 none found, 1 some found (one line each: file, line, problem)."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_IN_LINE, MOST_IN_CELL = 100, 200
FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
# The text of a link may be an image, whose own target counts too.
LINK = re.compile(r"!?\[(?:[^\[\]]|!?\[[^\[\]]*\]\([^()]*\))*\]"
                  r"\(\s*<?([^()<>\s]*(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\s*\)")
IMAGE = re.compile(r"!\[[^\[\]]*\]\(\s*<?([^()<>\s]+)>?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]^]+\]:\s+<?(\S+?)>?\s*$")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
FILE = r"`((?:[\w.-]+/)+[\w.-]+\.\w+)`"
NAME_IN_FILE = re.compile(FILE + r"\s+\(`([A-Za-z_][\w:]*)(?:\(\))?`\)")
FILE_OF_NAME = re.compile(r"`(\w*[A-Z][\w:]*)(?:\(\))?`\s+\(" + FILE + r"\)")
CELL_BORDER = re.compile(r"(?<!\\)\|")


def prose_lines(text: str) -> list[tuple[int, str]]:
    """(number, line) of the lines outside fenced and indented code."""
    found, fence, in_list, previous_blank = [], "", False, True
    for number, line in enumerate(text.split("\n"), 1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and line.strip() == mark[1]:
                fence = ""
            continue
        if mark:
            fence = mark[1]
            continue
        if line.strip():
            indented = line.startswith("    ") and previous_blank and not in_list
            if not line.startswith(" "):
                in_list = bool(re.match(r"([-*+]|\d+[.)]) ", line))
            if indented:
                continue  # previous_blank stays: the next indented line is code too
        previous_blank = not line.strip()
        found.append((number, line))
    return found


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings."""
    found: dict[str, int] = {}
    for _, line in prose_lines(text):
        heading = HEADING.match(line)
        if not heading:
            continue
        title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = found.get(slug, -1) + 1
        found[slug] = count
        if count:
            found[f"{slug}-{count}"] = 0
    return set(found)


def links(text: str) -> list[tuple[int, str]]:
    """(line, target) of each link. A link's text may be broken over lines."""
    lines = prose_lines(text)
    found = [(number, match[1]) for number, line in lines if (match := REFERENCE.match(line))]
    joined, starts = "", []
    for number, line in lines:
        starts.append((len(joined), number))
        joined += CODE_SPAN.sub(lambda m: "x" * len(m[0]), line) + "\n"
    for match in [*LINK.finditer(joined), *IMAGE.finditer(joined)]:
        found.append((max(number for start, number in starts if start <= match.start()), match[1]))
    return sorted(set(found))


def too_long(text: str) -> list[tuple[int, str]]:
    """(line, problem) of long lines and table cells. Code is exempt, and lines with a URL or an image."""
    found = []
    for number, line in prose_lines(text):
        if line.lstrip().startswith("|"):
            longest = max((len(cell.strip()) for cell in CELL_BORDER.split(line)[1:-1]), default=0)
            if longest > MOST_IN_CELL:
                found.append((number, f"a table cell of {longest} characters; at most {MOST_IN_CELL}"))
        elif len(line) > MOST_IN_LINE and "://" not in line and "![" not in line:
            found.append((number, f"{len(line)} characters; at most {MOST_IN_LINE}"))
    return found


def lost_names(root: pathlib.Path, text: str) -> list[tuple[int, str]]:
    """(line, problem) of names that are not in the file that the page gives. Files of absent top folders are skipped:
    an installation has no sources."""
    joined, starts = "", []
    for number, line in prose_lines(text):
        starts.append((len(joined), number))
        joined += line + "\n"
    places = [(match.start(), match[1], match[2]) for match in NAME_IN_FILE.finditer(joined)]
    places += [(match.start(), match[2], match[1]) for match in FILE_OF_NAME.finditer(joined)]
    found = []
    for position, file, name in places:
        line = max(number for start, number in starts if start <= position)
        if not (root / file.split("/")[0]).is_dir():
            continue
        if not (root / file).is_file():
            found.append((line, f"`{file}` is missing"))
        elif not re.search(rf"\b{name.split('::')[-1]}\b", (root / file).read_text(encoding="utf-8")):
            found.append((line, f"`{file}` does not contain `{name}`"))
    return sorted(found)


def problems(root: pathlib.Path, names: list[str]) -> list[str]:
    """Returns one line for each problem of the pages `names` below `root`."""
    found, linked = [], {}
    texts = {name: (root / name).read_text(encoding="utf-8") for name in names}
    for name, text in texts.items():
        found += [f"{name}:{line}: {problem}" for line, problem in too_long(text) + lost_names(root, text)]
        linked[name] = set()
        for line, target in links(text):
            path, _, anchor = urllib.parse.unquote(target).partition("#")
            if re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE):
                continue
            place = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            if place.startswith(("..", "/")) or not (root / place).exists():
                found.append(f"{name}:{line}: the link to '{target}' leads nowhere: {place} is missing")
                continue
            linked[name].add(place)
            if anchor and place.endswith(".md"):
                page = texts[place] if place in texts else (root / place).read_text(encoding="utf-8")
                if anchor not in anchors(page):
                    found.append(f"{name}:{line}: the link to '{target}' leads nowhere: {place} has no such heading")
    reached, open_pages = {"docs/README.md"}, ["docs/README.md"]
    while open_pages:
        for place in linked.get(open_pages.pop(), ()):
            if place not in reached:
                reached.add(place)
                open_pages.append(place)
    found += [f"{name}: no link leads here from docs/README.md" for name in names
              if name.startswith("docs/") and name not in reached]
    return found


def self_test() -> None:
    """Plants faults and checks that each one, and nothing else, is found."""
    pages = {
        "README.md": "# Top\n[a](docs/README.md#a-b) [b](docs/missing.md)\n\n    [code](nowhere.md)\n\n"
                     "`[c](nowhere.md)`\n",
        "docs/README.md": "# A `b`\n\n## Same\n\n## Same\n\n[one](page.md#one), [a link whose\ntext goes on]"
                          "(page.md#two) [s](#same-1) [t](#same-2)\n```\n[x](nowhere.md)\n```\n"
                          "[web](https://example.org/x#y)\n",
        "docs/page.md": "# One\n\n![picture](images/none.svg) [up](../README.md)\n[r]\n\n[r]: gone.md\n\n"
                        f"| a | {'x' * 201} |\n\n{'y' * 101}\n\n{'z' * 100}\n"
                        f"| a | {'x' * 200} |\n\n[{'u' * 100}](https://example.org)\n![{'p' * 100}](../README.md)\n",
        "docs/lost.md": "# Lost\n\n[folder](../docs)\n",
        "docs/names.md": "# Names\n\n[up](README.md) `src/code.h` (`call`), `src/code.h` (`cal`), `Type`\n(`src/code.h`), "
                         "`Kind`\n(`src/code.h`), `kind` (`src/code.h`), `src/gone.h` (`x`), `far/code.h` (`x`)\n",
        "src/code.h": "struct Type;\nvoid call();\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in pages.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        found = problems(root, sorted(name for name in pages if name.endswith(".md")))
    expected = ["README.md:2: the link to 'docs/missing.md'", "docs/README.md:7: the link to 'page.md#two'",
                "docs/README.md:8: the link to '#same-2'", "docs/page.md:3: the link to 'images/none.svg'",
                "docs/page.md:6: the link to 'gone.md'", "docs/page.md:8: a table cell of 201 characters",
                "docs/page.md:10: 101 characters", "docs/lost.md: no link leads here",
                "docs/names.md:3: `src/code.h` does not contain `cal`",
                "docs/names.md:4: `src/code.h` does not contain `Kind`", "docs/names.md:5: `src/gone.h` is missing",
                "docs/names.md: no link leads here"]
    for start in expected:
        assert sum(one.startswith(start) for one in found) == 1, (start, found)
    assert len(found) == len(expected), found


def report(root: pathlib.Path, names: list[str]) -> int:
    """Prints the problems of the pages `names` below `root`. Returns the exit status."""
    found = problems(root, names)
    for one in found:
        print(one)
    count = sum(len(links((root / name).read_text(encoding="utf-8"))) for name in names)
    print(f"{len(names)} pages, {count} links, {len(found)} problems")
    return 1 if found or not names else 0


def check_installed(build: str) -> int:
    """Installs the program from `build` and checks its pages."""
    environment = {name: value for name, value in os.environ.items() if name != "DESTDIR"}
    with tempfile.TemporaryDirectory(prefix="furlong_install_") as folder:
        done = subprocess.run(["cmake", "--install", build, "--prefix", folder], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        root = next((path.parent for path in pathlib.Path(folder).rglob("CHANGELOG.md")), None)
        if done.returncode or not root:
            print(f"cmake --install {build}: status {done.returncode}, pages in {root}\n{done.stdout[-1000:]}")
            return 1
        pages = [*root.rglob("*.md"), *(root / "configs").rglob("*.md")]  # configs is a link
        return report(root, sorted({str(path.relative_to(root)) for path in pages}))


def main() -> int:
    if "--self-test" in sys.argv[1:]:
        self_test()
        print("self-test: broken links, anchors and images, unreachable pages, lost names and long cells are found")
        return 0
    if sys.argv[1:2] == ["--installed"] and len(sys.argv) == 3:
        return check_installed(sys.argv[2])
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True,
                           check=False).stdout.split()
    if not names:  # an unpacked archive
        paths = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md")]
        names = [name for name in paths if not name.startswith(("build", "data", "runs", "."))]
    names = sorted(name for name in names if (ROOT / name).is_file())
    return report(ROOT, names)


if __name__ == "__main__":
    sys.exit(main())
