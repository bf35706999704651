#!/usr/bin/env python3
"""Runs the commands of the tutorials.
    python3 tests/docs/run_tutorials.py FURLONG [--full] [--keep DIR] [PAGE...]
    python3 tests/docs/run_tutorials.py FURLONG --self-test
A page of docs/tutorials/ is one bash script: its blocks ```bash, in order. It runs in a folder of its own that has
links to the tree and the program at build/release/bin/furlong, as a clone has. A command that fails ends the page.
Words after ```bash name what a block needs: network, torch (python3 with transformers; env/bin/python3 starts it) or
slurm.
Without --full these blocks are left out; tests/docs/stand_ins/PAGE.sh then makes the files that they would fetch, and
every training gets the options SMALL, except keys that the command sets itself. With --full everything runs as
printed, except blocks whose program is missing.
--keep DIR   works in DIR/PAGE and leaves it there
Exit status: 0 all pages ran, 1 a command failed or a page has no block to run, 2 invalid arguments."""

import argparse
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "tutorials"
STAND_INS = pathlib.Path(__file__).with_name("stand_ins")
NOT_LINKED = {"build", "data", "env", "runs"}
BLOCK = re.compile(r"^```bash[ \t]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = {
    "train": ["trainer.max_steps=12", "trainer.validation_batches=2", "data.sequence_length=128", "data.batch_size=2"],
    "finetune": ["finetune.attention_transfer.max_steps=6", "finetune.evaluation_batches=2",
                 "trainer.validation_batches=2", "data.batch_size=4"],
}
NEEDS = {
    "network": "true",
    "torch": "python3 -c 'import torch, transformers'",
    "slurm": "timeout 20 sinfo",
}


@dataclasses.dataclass
class Block:
    line: int
    needs: list[str]
    commands: str


class Failure(RuntimeError):
    """A page that cannot be run as it stands."""


def blocks_of(text: str, name: str) -> list[Block]:
    """Returns the page's blocks. Throws Failure if there is none, or a need is unknown."""
    blocks = [Block(text.count("\n", 0, found.start()) + 2, found[1].split(), found[2])
              for found in BLOCK.finditer(text)]
    for block in blocks:
        for need in block.needs:
            if need not in NEEDS:
                raise Failure(f"{name}:{block.line - 1}: ```bash {need} is unknown; expected {', '.join(NEEDS)}")
    if not any(not block.needs for block in blocks):
        raise Failure(f"{name}: no block ```bash that runs anywhere")
    return blocks


def is_met(need: str, full: bool) -> bool:
    return full and subprocess.run(["bash", "-c", NEEDS[need]], capture_output=True, check=False).returncode == 0


def script_of(blocks: list[Block], name: str, full: bool) -> str:
    """Returns the blocks that can run as one bash script, which prints the line of each."""
    lines = ["set -e -o pipefail"]
    stand_in = STAND_INS / f"{pathlib.PurePath(name).stem}.sh"
    if not full and stand_in.is_file():
        lines += [f"echo '==> {stand_in.relative_to(ROOT)}'", f"bash -e -o pipefail {shlex.quote(str(stand_in))}"]
    for block in blocks:
        missing = [need for need in block.needs if not is_met(need, full)]
        if missing:
            lines.append(f"echo '==> {name}:{block.line} left out: needs {', '.join(missing)}'")
        else:
            lines += [f"echo '==> {name}:{block.line}'", block.commands]
    return "\n".join(lines) + "\n"


def prepare_folder(folder: pathlib.Path, program: pathlib.Path, full: bool) -> None:
    """Makes a folder that looks like a clone with the program built and a virtual environment, PATH's python3."""
    (folder / "build/release/bin").mkdir(parents=True)
    python = folder / "env/bin/python3"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nexec python3 "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    # What somebody has made in the clone, for example by a tutorial, is not part of it.
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = {path.split("/")[0] for path in tracked.splitlines()}
    for entry in sorted(ROOT.iterdir()):
        is_part = entry.name in names if names else entry.name not in NOT_LINKED
        if is_part and not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    wrapper = folder / "build/release/bin/furlong"
    if full:
        wrapper.symlink_to(program)
        return
    wrapper.write_text(f"""#!/bin/bash
settings=()
case "$1 $*" in
  train*|launch*' train '*) settings=({shlex.join(SMALL["train"])}) ;;
  finetune*) settings=({shlex.join(SMALL["finetune"])}) ;;
esac
small=()
for setting in "${{settings[@]}}"; do
  [[ "$* " == *" ${{setting%%=*}}="* ]] || small+=(--set "$setting")
done
exec {shlex.quote(str(program))} "$@" "${{small[@]}}"
""", encoding="utf-8")
    wrapper.chmod(0o755)


def run_page(name: str, text: str, program: pathlib.Path, full: bool, keep: pathlib.Path | None) -> bool:
    """Runs a page. Returns whether every command succeeded."""
    try:
        script = script_of(blocks_of(text, name), name, full)
    except Failure as failure:
        print(failure)
        return False
    begin = time.monotonic()
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="furlong_tutorial_") as temporary:
        folder = pathlib.Path(temporary) / "clone"
        if keep:
            folder = keep.resolve() / pathlib.PurePath(name).stem
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        prepare_folder(folder, program, full)
        environment = {**os.environ, "FURLONG": str(folder / "build/release/bin/furlong")}
        environment.pop("FURLONG_DATA", None)
        finished = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, check=False,
                                  stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    outcome = "ran" if finished.returncode == 0 else f"FAILED: the last command above ended with {finished.returncode}"
    print(f"{name}: {outcome}, {time.monotonic() - begin:.0f} s", flush=True)
    return finished.returncode == 0


def self_test(program: pathlib.Path) -> None:
    """Checks that a failing command, a page without blocks and an unknown need are found, and needs are left out."""

    def ran(text: str) -> bool:
        return run_page("planted.md", text, program, False, None)

    assert ran("```bash\nfurlong() { build/release/bin/furlong \"$@\"; }\nfurlong --version\n```\n"
               "```bash network\nfalse\n```\n```sh\nfalse\n```\n```bash\nfurlong --version\n```\n")
    assert not ran("```bash\nbuild/release/bin/furlong train missing.yaml\n```\n")
    assert not ran("```bash\ntrue\n```\n```bash\nfalse | cat\n```\n")
    assert not ran("```sh\ntrue\n```\n") and not ran("```bash network\ntrue\n```\n")
    assert not ran("```bash\ntrue\n```\n```bash netwrok\ntrue\n```\n")
    print("self-test: failing commands, pages without a block and unknown needs are found")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("furlong", type=pathlib.Path)
    parser.add_argument("pages", nargs="*", help="names without .md; default: all")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_intermixed_args()
    program = arguments.furlong.resolve()
    if arguments.self_test:
        self_test(program)
        return 0
    paths = [PAGES / f"{name}.md" for name in arguments.pages] or sorted(PAGES.glob("*.md"))
    for path in paths:
        if not path.is_file():
            parser.error(f"{path} is missing")
    ran = [run_page(path.name, path.read_text(encoding="utf-8"), program, arguments.full, arguments.keep)
           for path in paths]
    print(f"{len(ran)} pages, {ran.count(False)} failed")
    return 0 if ran and all(ran) else 1


if __name__ == "__main__":
    sys.exit(main())
