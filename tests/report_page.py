#!/usr/bin/env python3
"""Opens a page of furlong report in headless Chromium and compares what it draws with metrics.jsonl.

usage: report_page.py FURLONG
Exit status: 0 success, 1 failure, 77 without Chromium.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CONFIG = """run_directory: {run}
model: {{d_model: 16, n_layers: 1, n_heads: 2}}
data: {{task: copy, task_symbols: 4, sequence_length: 16, batch_size: 2}}
trainer: {{max_steps: 6, validate_every: 3}}
log: {{every: 1}}
"""


def rendered(chromium, page):
    """Returns the document after its script has run."""
    done = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,2000",
                           "--virtual-time-budget=3000", "--dump-dom", page.as_uri()],
                          capture_output=True, text=True, timeout=60)
    return done.stdout


def main():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        print("no chromium: the page is not drawn")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        run = folder / "run"
        (folder / "c.yaml").write_text(CONFIG.format(run=run))
        subprocess.run([sys.argv[1], "train", folder / "c.yaml"], check=True)
        subprocess.run([sys.argv[1], "report", run, "-o", folder / "r.html"], check=True)
        document = rendered(chromium, folder / "r.html")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    keys = {key for line in lines for key, value in line.items() if value is not None}
    keys -= {"step", "split", "tokens"}
    problems = []
    drawn = set(re.findall(r'<figure data-key="([^"]*)"', document))
    if drawn != keys:
        problems.append(f"figures {sorted(drawn)}, expected {sorted(keys)}")
    loss = re.search(r'<figure data-key="loss".*?</figure>', document, re.S)
    points = re.findall(r"[ML][\d.]+ [\d.]+", loss.group(0) if loss else "")
    if len(points) != 6 + 2:
        problems.append(f"{len(points)} points of losses, expected 6 of training and 2 of validation")
    last = [line for line in lines if line["split"] == "train"][-1]["loss"]
    if f"{last:.5g}" not in re.sub(r"<[^>]*>", " ", document):
        problems.append(f"the last loss, {last:.5g}, is not in the table of runs")
    for problem in problems:
        print("error:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
