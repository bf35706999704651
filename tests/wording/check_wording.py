#!/usr/bin/env python3
"""Finds phrases that the project does not use, in prose, comments, messages and help texts.
    python3 tests/wording/check_wording.py [--self-test]
Reads every tracked file of C++, CUDA, Python, shell, CMake, YAML and Markdown. In C++ only comments and string literals
count. Also finds lines of code over 120 columns. Exit status: 0 none found, 1 some found (one line each: file, line,
phrase, what to write)."""

import pathlib
import re
import subprocess
import sys
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Phrase (a regular expression between word boundaries) -> what to write.
PHRASES = {
    r"foretells?": "estimates",
    r"by turns": "alternating",
    r"(a )?mistakes? to mend": "invalid input",
    r"mend(s|ed|ing)?": "fix",
    r"what there is": "the existing ...",
    r"beg[iau]ns? from": "starts from",
    r"(is|are|was|were|be) told": "is reported",
    r"(is|are) not there": "is missing",
    r"in the place of": "instead of",
    r"(for|by) itself alone": "separately",
    r"random directions": "random projection",
    r"(?<!furlong )token stores?": "tokenized dataset",
    r"lessons?": "distillation step",
    r"norms (before|behind)": "pre-norm, post-norm",
    r"averages of (the )?weights": "EMA",
    r"remak(e|es|ing)": "recompute",
    r"kernel bodies|bodies of (an )?ops?": "kernels",
    r"what is to be told": "the message",
    r"goes on from": "continues from",
    r"(comes|stands) behind": "follows",
    r"is there twice": "occurs twice",
    r"has room for": "fits",
    r"to be seen by": "visible to",
    r"carries? (its|the|their) state": "stateful",
    r"(is|are) not said": "is not given",
    # British spelling; quoted alone it is an old name of an option or a value of another program.
    r"(?!(?<=[\"-])\w+[\"=])\w*(behaviour|neighbour|colour|favour|honour|labell(ed|ing)|modelling|cancell(ed|ing)|"
    r"centr(ed?|ing)|fibre|licence|misspelt|learnt|(normal|optim|initial|recogn|minim|maxim|general|special|quant|"
    r"token|serial|random|regular|util|stabil|factor|summar|synchron|vector|parametr)is(e|ing|ation))\w*":
        "American spelling",
}
PATTERN = re.compile("|".join(rf"(?P<p{i}>\b(?:{phrase})\b)" for i, phrase in enumerate(PHRASES)), re.IGNORECASE)
TOKENS = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<text>R"(?P<d>[^\s()\\]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*")'
    r"|'(?:\\.|[^'\\\n])'", re.DOTALL)
MOST_COLUMNS = 120
SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake", ".md", ".yaml", ".txt"}
IGNORED = ("tests/wording/", "tests/fuzz/corpus/", "benchmarks/results/", "tests/trainers/settings/broken_configs/",
           "tests/cli/test_help.cpp",
           "trainers/settings/renamed_keys.cpp", "LICENSE", "CHANGELOG.md")


def words_of(text: str, is_code: bool) -> str:
    """The text with everything blanked that is not prose; lines and columns stay."""
    if not is_code:
        return text
    kept = [c if c == "\n" else " " for c in text]
    for match in TOKENS.finditer(text):
        if match.group("comment") or match.group("text"):
            kept[match.start():match.end()] = text[match.start():match.end()]
    return "".join(kept)


def find(text: str, is_code: bool) -> list[tuple[int, str, str]]:
    """(line, phrase, what to write) for each phrase; a phrase may go over the end of a comment's line."""
    found = []
    prose = words_of(text, is_code)
    prose = re.sub(r"\n(\s*)(///?<?|#)(?= )", lambda m: "\n" + m.group(1) + " " * len(m.group(2)), prose)
    joined = re.sub(r"\s", " ", prose)
    folded, places, previous = [], [], ""
    for i, c in enumerate(joined):  # one space between words, with the place of each character
        if c == " " and previous == " ":
            continue
        folded.append(c)
        places.append(i)
        previous = c
    for match in PATTERN.finditer("".join(folded)):
        write = list(PHRASES.values())[int(match.lastgroup[1:])]
        found.append((text.count("\n", 0, places[match.start()]) + 1, match.group(0), write))
    return found


def long_lines(text: str) -> list[tuple[int, int]]:
    """(line, columns) of each line over MOST_COLUMNS. Combining characters take no column."""
    columns = [sum(unicodedata.combining(c) == 0 for c in line) for line in text.split("\n")]
    return [(number, width) for number, width in enumerate(columns, 1) if width > MOST_COLUMNS]


def self_test() -> None:
    planted = "// The store\n// begins\n//   from here.\nint mend = 1;  // fine\nauto s = \"by turns\";\n"
    found = [(line, phrase.lower()) for line, phrase, _ in find(planted, True)]
    assert found == [(2, "begins from"), (5, "by turns")], found
    assert not find("int lesson = remake(what);\n", True)
    assert [f[1] for f in find("\"--unlabelled\", old: labelled,\nRenormalised", False)] == ["labelled", "Renormalised"]
    assert [f[1] for f in find("What there\nis of it.\n", False)] == ["What there is"]
    assert long_lines("x" * 120 + "\n" + "x" * 121 + "\n" + "q\u0302" * 120) == [(2, 121)]
    for phrase in PHRASES:
        assert phrase.islower() or not phrase.isalpha(), phrase


def main() -> int:
    if "--self-test" in sys.argv[1:]:
        self_test()
        print("self-test: planted phrases and long lines found, identifiers ignored")
        return 0
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not files:  # an unpacked archive
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
        files = [name for name in names if not name.startswith(("build", "data", "runs", "."))]
    checked = count = 0
    for name in files:
        path = ROOT / name
        if path.suffix not in SUFFIXES or name.startswith(IGNORED) or not path.is_file():
            continue
        checked += 1
        is_code = path.suffix in {".cpp", ".h", ".cu", ".cuh"}
        text = path.read_text(encoding="utf-8", errors="replace")
        for line, phrase, write in find(text, is_code):
            print(f'{name}:{line}: "{phrase}"; write "{write}"')
            count += 1
        if path.suffix not in {".md", ".yaml", ".txt"} or path.name == "CMakeLists.txt":
            for line, width in long_lines(text):
                print(f"{name}:{line}: {width} columns; at most {MOST_COLUMNS}")
                count += 1
    print(f"{checked} files, {len(PHRASES)} phrases, {count} found")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
