#!/usr/bin/env python3
"""Writes tests/parity/goldens/label_metrics.json: metrics of classifiers as scikit-learn computes them.

  tests/parity/label_metrics.py [--check]

Each case holds labels, scores [samples, classes] and the values of accuracy_score, balanced_accuracy_score, f1_score
(macro), matthews_corrcoef, roc_auc_score and average_precision_score (two classes: of class 1; more: macro mean of each
class against the rest). tests/evaluation/test_label_metrics.cpp compares Furlong's metrics with them. --check writes
nothing and fails if the file differs by more than 1e-12. Made with scikit-learn 1.9.1 and numpy 2.4.6.
"""

import argparse
import json
import pathlib
import sys
import warnings

import numpy as np
from sklearn import metrics

GOLDEN = pathlib.Path(__file__).resolve().parent / "goldens" / "label_metrics.json"


def draw(seed, samples, shares, strength, steps=None):
    """Labels with the given shares, and scores in which the label's own is higher by `strength` on average; rounded to
    `steps` values, so that some are equal."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(len(shares), size=samples, p=shares)
    logits = generator.normal(size=(samples, len(shares)))
    logits[np.arange(samples), labels] += strength
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if steps:
        scores = np.round(scores * steps) / steps
    return labels, np.round(scores, 6)


def cases():
    yield "balanced", *draw(1, 40, [0.5, 0.5], 1.0)
    yield "tied scores of rare positives", *draw(2, 60, [0.85, 0.15], 1.5, steps=8)
    yield "worse than chance", *draw(3, 30, [0.4, 0.6], -1.0)
    yield "four classes", *draw(4, 80, [0.55, 0.25, 0.15, 0.05], 1.2)
    labels, scores = draw(5, 50, [0.4, 0.4, 0.2], 1.0, steps=10)
    scores[:, 2] = 0  # never predicted
    yield "three classes, one never predicted", labels, scores
    labels, scores = draw(6, 20, [0.5, 0.5], 1.0)
    scores[:, 0], scores[:, 1] = 0.75, 0.25
    yield "one prediction for all", labels, scores


def values(labels, scores):
    predicted, classes = scores.argmax(axis=1), scores.shape[1]
    assert set(labels) == set(range(classes)), "roc_auc_score needs samples of all classes"
    if classes == 2:
        areas = metrics.roc_auc_score(labels, scores[:, 1]), metrics.average_precision_score(labels, scores[:, 1])
    else:
        each = np.eye(classes)[labels]
        areas = metrics.roc_auc_score(each, scores, average="macro"), metrics.average_precision_score(each, scores)
    return {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(labels, predicted),
        "f1_macro": metrics.f1_score(labels, predicted, average="macro"),
        "mcc": metrics.matthews_corrcoef(labels, predicted),
        "auroc": areas[0],
        "auprc": areas[1],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    check = parser.parse_args().check
    warnings.simplefilter("error")
    made = {
        name: {
            "classes": int(scores.shape[1]),
            "labels": labels.tolist(),
            "scores": scores.ravel().tolist(),
            "metrics": {key: float(value) for key, value in values(labels, scores).items()},
        }
        for name, labels, scores in cases()
    }
    if not check:
        GOLDEN.write_text(json.dumps(made) + "\n")
        print(f"{GOLDEN}: {len(made)} cases")
        return 0
    found = json.loads(GOLDEN.read_text())
    if list(found) != list(made) or any(found[name]["scores"] != made[name]["scores"] for name in made):
        print("other cases; run without --check")
        return 1
    largest = max(abs(found[name]["metrics"][key] - value)
                  for name, case in made.items() for key, value in case["metrics"].items())
    print(f"largest difference {largest:.1e}")
    return int(not largest <= 1e-12)


if __name__ == "__main__":
    sys.exit(main())
