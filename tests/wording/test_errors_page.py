#!/usr/bin/env python3
"""Checks that every message quoted in docs/errors.md occurs in the program.
    python3 tests/wording/test_errors_page.py [--self-test]
An entry is a heading "### ..." with its messages as indented lines. The fixed parts of a message, those between "…",
must each occur in a string literal of the product's C++ source. Adjacent literals count as one, and a placeholder of
fmt or printf counts as "…". A message that is composed of several literals is split after ":", ";" and ")" if
necessary.
The page has at least 30 entries.
Exit status: 0 all found, 1 otherwise (one line for each problem: line of the page, entry, missing part)."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
ROOMS = ("cli", "communication", "conversion", "datasets", "evaluation", "formats", "framework", "layers", "trainers")
SUFFIXES = {".cpp", ".h", ".cu", ".cuh"}
MIN_ENTRIES = 30
MIN_LONGEST_PART = 8  # characters; a quote of short parts alone would occur anywhere
ELLIPSIS = "…"

TOKENS = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)"
    r'|(?P<raw>R"(?P<delimiter>[^\s()\\]{0,16})\((?P<raw_text>.*?)\)(?P=delimiter)")'
    r'|"(?P<text>(?:\\.|[^"\\\n])*)"'
    r"|(?P<number>\b\d[\w']*)|(?P<character>'(?:\\.|[^'\\\n])+')|(?P<space>\s+)|(?P<other>.)", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{[^{}]*\}|%%|%[-+ #0]*[\d*]*(?:\.[\d*]+)?(?:hh|h|ll|l|z|j|t)?[diufgeEGxXcsp]")


def literals(source):
    """Returns the string literals of C++ source, adjacent ones joined."""
    found, current = [], None
    for token in TOKENS.finditer(source):
        kind = token.lastgroup
        if kind in ("comment", "space"):
            continue
        if token.group("raw") is not None:
            current = (current or "") + token.group("raw_text")
        elif token.group("text") is not None:
            current = (current or "") + re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), token.group("text"),
                                               flags=re.DOTALL)
        elif current is not None:
            found.append(current)
            current = None
    return found + ([current] if current is not None else [])


def fixed_text(literal):
    """Returns a literal with each placeholder replaced by "…"."""
    return PLACEHOLDER.sub(lambda m: m[0][0] if m[0] in ("{{", "}}", "%%") else ELLIPSIS, literal)


def source_text():
    """Returns all literals of the product, separated so that no part of a message matches across two of them."""
    texts = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                texts += [fixed_text(literal) for literal in literals(path.read_text(encoding="utf-8"))]
    return "\0".join(texts)


def entries(page):
    """Returns (title, [(line number, quoted message)]) of each entry."""
    result = []
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("### "):
            result.append((line[4:].strip(), []))
        elif line.startswith("## "):
            result.append(None)
        elif result and result[-1] and line.startswith("    ") and line.strip():
            result[-1][1].append((number, line.strip()))
    return [entry for entry in result if entry]


def fixed_parts(message):
    """Returns the parts of a quoted message that hold a word, without the level in front."""
    message = re.sub(r"^(error|warning): ", "", message)
    parts = [part.strip(" :;,.?") for part in message.split(ELLIPSIS)]
    return [part for part in parts if re.search(r"\w", part)]


def missing_parts(part, source):
    """Returns what of a fixed part occurs in no literal: nothing, the part, or its pieces between ":", ";" and ")"."""
    if part in source:
        return []
    pieces = [piece for piece in re.split(r"[:;)] ", part) if re.search(r"\w", piece)]
    missing = [piece for piece in pieces if piece not in source]
    return missing if len(missing) < len(pieces) else [part]


def problems(page, source, min_entries=MIN_ENTRIES):
    """Returns one line for each problem of the page."""
    found = []
    all_entries = entries(page)
    if len(all_entries) < min_entries:
        found.append(f"{PAGE.name}: {len(all_entries)} entries, expected at least {min_entries}")
    for title, messages in all_entries:
        if not messages:
            found.append(f"{PAGE.name}: entry '{title}' quotes no message, expected an indented line with one")
        for number, message in messages:
            parts = fixed_parts(message)
            if max(map(len, parts), default=0) < MIN_LONGEST_PART:
                found.append(f"{PAGE.name}:{number}: entry '{title}': no fixed part of {MIN_LONGEST_PART} characters")
            for missing in (one for part in parts for one in missing_parts(part, source)):
                found.append(f"{PAGE.name}:{number}: entry '{title}': no string literal contains '{missing}'")
    return found


def self_test(page, source):
    """Plants faults and checks that each one is found."""
    joined = literals(
        'f("a {:.1f} b"  // "not a literal"\n  " c \\"d\\"", \'"\', R"(raw {} "x")", "%d e", 1\'000, "g");')
    expected = ["a {:.1f} b c \"d\"", 'raw {} "x"', "%d e", "g"]
    assert joined == expected, joined
    assert [fixed_text(one) for one in joined] == ["a … b c \"d\"", 'raw … "x"', "… e", "g"]
    assert fixed_text("{{}} is 5 %% of {}") == "{} is 5 % of …"

    before = problems(page, source)
    title, messages = entries(page)[0]
    number, message = messages[0]
    longest = max(fixed_parts(message), key=len)
    wrong = page.replace(longest, longest[:-1] + "#", 1)
    after = [one for one in problems(wrong, source) if one not in before]
    assert len(after) == 1 and f":{number}:" in after[0] and title in after[0] and "#" in after[0], after

    def text_of(entry_count):
        return "## group\n" + "".join(f"### entry {i}\n    error: {longest}\n" for i in range(entry_count))

    known = "\0" + longest + "\0"
    assert not problems(text_of(MIN_ENTRIES), known)
    assert "expected at least" in problems(text_of(MIN_ENTRIES - 1), known)[0]
    assert "quotes no message" in problems(text_of(MIN_ENTRIES) + "### empty\n", known)[0]
    assert "no fixed part" in problems(text_of(MIN_ENTRIES) + "### short\n    error: … is …\n", known + "is")[0]
    print("self-test: a wrong quote, a short quote, an empty entry and a missing entry are found")


def main():
    page, source = PAGE.read_text(encoding="utf-8"), source_text()
    if "--self-test" in sys.argv[1:]:
        self_test(page, source)
        return 0
    found = problems(page, source)
    for one in found:
        print(one)
    if not found:
        print(f"{PAGE.name}: {len(entries(page))} entries, all quoted messages occur in the source")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
