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

# A stage of furlong finetune, as its directory shows it: the loss is an error of attention.
TRANSFER = """model: {{d_model: 16, n_layers: 1, n_heads: 2, attention: {{mechanism: linear}}}}
data: {{dataset: tokens.h5}}
teacher: {{loss: attention_transfer, checkpoint: teacher.h5}}
trainer: {{max_steps: 2}}
"""
TRANSFER_METRICS = [{"step": 1, "split": "train", "loss": 0.5, "tokens": 100, "memory_bytes": 3 * 2 ** 20},
                    {"step": 2, "split": "validation", "loss": 0.25, "tokens": 100}]
LRA = {"size": "desk", "results": [{"task": "text", "stand_in": "pages", "mechanism": "elu1", "seconds": 12.3,
                                    "accuracy": {"value": 0.375, "low": 0.35, "high": 0.4},
                                    "published_accuracy": 0.1613}]}


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
        transfer = folder / "transfer"
        transfer.mkdir()
        (transfer / "config.yaml").write_text(TRANSFER.format())
        (transfer / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in TRANSFER_METRICS))
        (folder / "lra.json").write_text(json.dumps(LRA))
        subprocess.run([sys.argv[1], "report", run, transfer, "--lra", folder / "lra.json", "-o", folder / "r.html"],
                       check=True)
        document = rendered(chromium, folder / "r.html")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    keys = {key for line in lines for key, value in line.items() if value is not None}
    keys -= {"step", "split", "tokens"}
    keys.add("attention_error")
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
    error = re.search(r'<figure data-key="attention_error".*?</figure>', document, re.S)
    if not error or len(re.findall(r"[ML][\d.]+ [\d.]+", error.group(0))) != 2:
        problems.append("the chart of the attention error does not have 2 points")
    words = " ".join(re.sub(r"<[^>]*>", " ", document).split())
    for expected in ("attention_transfer 0.5 0.25 0.25 at 2", "3.00 MiB",
                     "text (pages) elu1 37.5 (35.0 – 40.0) – 16.1 12 –"):
        if expected not in words:
            problems.append(f"the tables do not have '{expected}'")
    if not re.search(r'<input id="smoothing"[^>]* disabled', document):
        problems.append("smoothing can be chosen although no run has 50 lines")
    for problem in problems:
        print("error:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
