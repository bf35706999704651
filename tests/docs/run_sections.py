#!/usr/bin/env python3
"""Runs the ```sh and ```python blocks of sections of the user pages that describe files and numbers of a run.
    python3 tests/docs/run_sections.py FURLONG PAGE
    python3 tests/docs/run_sections.py FURLONG --self-test
The blocks of a section run in order, in a folder with small runs that the commands of SECTIONS make.
Exit status: 0 all blocks ran, 1 one failed or printed something else, 2 invalid arguments, 77 without a Python that has
the modules which the section's blocks import."""

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```(sh|python)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CONFIG = """cat >my.yaml <<'EOF'
data: {task: copy, sequence_length: 16, batch_size: 2}
model: {n_layers: 1, d_model: 16, n_heads: 2}
trainer: {max_steps: 2, validate_every: 1, validation_batches: 1}
threads: 1
EOF
"""
TEXT = """mkdir wiki
for part in train valid test; do cp {root}/README.md wiki/$part.txt; done
sed 's/task: copy, //' my.yaml >story.yaml
"""


@dataclasses.dataclass
class Section:
    page: str
    heading: str
    setup: str  # commands that make what the blocks read
    modules: list[str]  # that the Python blocks import, besides the standard library
    check: str = ""  # a statement after the last block
    output: str = ""  # an expression that the output must match


SECTIONS = {
    "attention": Section("attention.md", "## On your own tensors: furlong attend, furlong bench", "",
                         ["h5py", "numpy"], """for file in out exact steps; do [[ -s $file.h5 ]] || exit 1; done
"""),
    "file_formats": Section("file_formats.md", "### Reading a tensor in Python",
                            "furlong train my.yaml --run-dir runs/my", ["h5py", "numpy"],
                            "assert values.dtype == 'float32' and values.shape[1] == 16"),
    "report": Section("report.md", "## Your own plots", "furlong train my.yaml --run-dir runs/my",
                      ["matplotlib", "pandas"], "assert open('loss.svg').read().rstrip().endswith('</svg>')"),
    "sweep": Section("sweep.md", "## Means over seeds", """cat >rates.yaml <<'EOF'
base: my.yaml
output: runs/rates
grid: {optimizer.learning_rate: [1e-3, 3e-3]}
list: [{seed: 1}, {seed: 2}]
EOF
furlong sweep rates.yaml""", [], output=r"learning_rate=0\.003 +2 +\d"),
    "evaluate": Section("evaluate.md", "## Comparing with published numbers", TEXT.format(root=ROOT), [],
                        output=r"perplexity of words: [\d.e+]+"),
}


def section_of(text: str, heading: str) -> str:
    """Returns the text below a heading, up to the next one of any level; empty if there is none."""
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#|\Z)", outside_blocks(text), re.MULTILINE | re.DOTALL)
    return text[found.start(1):found.end(1)] if found else ""


def outside_blocks(text: str) -> str:
    """The text with blocks blanked, so that their comments are no headings."""
    return BLOCK.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)


def interpreter(modules: list[str]) -> str | None:
    for python in (sys.executable, "/usr/bin/python3"):
        command = [python, "-c", "".join(f"import {module}\n" for module in modules)]
        if pathlib.Path(python).exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return python
    return None


def run_section(section: Section, text: str, program: pathlib.Path) -> int:
    """Returns the exit status, and prints what failed."""
    blocks = [(found[2], textwrap.dedent(found[3])) for found in BLOCK.finditer(section_of(text, section.heading))]
    if not blocks:
        print(f"{section.page}: no block ```sh or ```python below '{section.heading}'")
        return 1
    python = interpreter(section.modules)
    if not python:
        print(f"{section.page}: skipped: no Python with {' and '.join(section.modules)}")
        return 77
    blocks[-1] = (blocks[-1][0], blocks[-1][1] + section.check)
    printed = ""
    with tempfile.TemporaryDirectory(prefix="furlong_section_") as folder:
        (pathlib.Path(folder) / "furlong").symlink_to(program)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "MPLBACKEND": "agg"}
        for language, block in [("sh", CONFIG + section.setup), *blocks]:
            command = ["bash", "-e", "-o", "pipefail", "-c"] if language == "sh" else [python, "-c"]
            done = subprocess.run([*command, block], cwd=folder, env=environment, text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                print(f"{section.page}: FAILED with {done.returncode}:\n{block}\n{done.stdout[-2000:]}")
                return 1
            printed += done.stdout
    if not re.search(section.output, printed):
        print(f"{section.page}: the output has no '{section.output}':\n{printed[-2000:]}")
        return 1
    print(f"{section.page}: {len(blocks)} blocks ran")
    return 0


def self_test(program: pathlib.Path) -> None:
    """Checks that failing blocks, unexpected output, missing blocks and missing modules are found."""

    def status(text: str, **values: object) -> int:
        return run_section(dataclasses.replace(Section("planted.md", "## Planted", "", []), **values), text, program)

    good = ("## Planted\n\n```python\n# a comment\nx = 1\nprint('one')\n```\n\n"
            "- a list\n\n  ```sh\n  furlong --version\n  ```\n")
    assert status(good, output="one") == 0
    assert status("# Other\n" + good + "\n## Next\n\n```sh\nfalse\n```\n") == 0
    assert status(good, output="two") == 1
    assert status("## Planted\n\n```python\nx = 1\n```\n", check="assert x == 2") == 1
    assert status("## Planted\n\n```sh\nfalse | cat\n```\n") == 1
    assert status("## Planted\n\n    indented\n") == 1 and status("## Other\n\n```sh\ntrue\n```\n") == 1
    assert status(good, setup="false") == 1
    assert status(good, modules=["no_such_module"]) == 77
    print("self-test: failing blocks, other output, missing blocks and missing modules are found")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("furlong", type=pathlib.Path)
    parser.add_argument("page", nargs="?", choices=SECTIONS)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    program = arguments.furlong.resolve()
    if arguments.self_test:
        self_test(program)
        return 0
    if not arguments.page:
        parser.error("expected a page or --self-test")
    section = SECTIONS[arguments.page]
    return run_section(section, (ROOT / "docs" / section.page).read_text(encoding="utf-8"), program)


if __name__ == "__main__":
    sys.exit(main())
