#!/usr/bin/env python3
"""Checks that docs/results.md has every line that its commands of benchmarks/ print from JSON files.
    python3 tests/docs/results_tables.py [--self-test]
Exit status: 0 it has, 1 a line is missing or a command failed."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = re.compile(
    r"^    (benchmarks/(?:finetune_table\.py|train_configs\.py --table) (?:\\\n)?.*)$", re.MULTILINE
)


def problems(page: str) -> list[str]:
    """Returns one line for each problem of the page."""
    commands, lines, found = COMMAND.findall(page), set(page.splitlines()), []
    for program in ("finetune_table", "train_configs"):
        if not any(program in command for command in commands):
            found.append(f"no command of benchmarks/{program}.py")
    for command in commands:
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, text=True, capture_output=True, check=False)
        if done.returncode:
            found.append(f"{command}\nfailed: {done.stderr[-1000:]}")
        found += [f"missing: {line}" for line in done.stdout.splitlines() if line not in lines]
    return found


def main() -> int:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    if sys.argv[1:] == ["--self-test"]:
        assert not problems(page)
        assert problems(page.replace("attention transfer | 0.3430", "attention transfer | 0.3431"))
        assert problems(page.replace("finetune/antiberty_{favor_positive", "finetune/antiberty_{no_such_run"))
        assert problems("")
        assert problems(page.replace("train_configs.py --table", "train_configs.py --tables"))
        return 0
    found = problems(page)
    print("\n".join(found) or "docs/results.md: all lines of the tables are those of the commands")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
