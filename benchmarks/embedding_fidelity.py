#!/usr/bin/env python3
"""Compares the sentence embeddings of converted models with those of the original model. An embedding is the normalized
mean of a held-out document's hidden states, as sentence-transformers computes it with all-MiniLM-L6-v2.

  benchmarks/embedding_fidelity.py --store data/english_passages.h5 --teacher runs/minilm_performer/teacher.h5 \\
      runs/minilm_performer/student.h5 runs/minilm_performer

Prints for each student:
  - the cosine between its embeddings and the teacher's: mean and 5 % quantile;
  - the rank correlation (Spearman) of the cosines between all pairs of documents;
  - the fraction of documents whose nearest other document is the same as the teacher's.
Search and clustering depend on the last two. Needs numpy and h5py.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import h5py
import numpy


def documents_of(store, split, count, longest):
    """Token ids of `count` documents spread over the split, each cut to `longest` tokens with its last one kept
    ([SEP])."""
    with h5py.File(store) as file:
        offsets, tokens = file["documents"][:].astype(numpy.int64), file["tokens"]
        spans = [(begin, end) for begin, end in file[f"splits/{split}"][:].astype(numpy.int64)]
        chosen = [
            i
            for i in range(len(offsets) - 1)
            if any(begin <= offsets[i] and offsets[i + 1] <= end for begin, end in spans)
        ]
        chosen = [i for i in chosen if offsets[i + 1] - offsets[i] >= 8]
        if not chosen:
            raise SystemExit(f"{store}: no documents of 8 tokens or more in the split {split}")
        places = sorted(set(numpy.linspace(0, len(chosen) - 1, min(count, len(chosen))).astype(int)))
        for i in (chosen[place] for place in places):
            ids = tokens[offsets[i] : offsets[i + 1]].tolist()
            yield ids if len(ids) <= longest else ids[: longest - 1] + ids[-1:]


def embeddings(arguments, model, rows, folder):
    """[documents, d_model], of length 1: the mean of the hidden states of each document's tokens."""
    (folder / "ids.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    command = [arguments.furlong, "logits", model, folder / "ids.txt", "--hidden", "--output", folder / "hidden.h5"]
    if arguments.threads:
        command += ["--threads", arguments.threads]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    with h5py.File(folder / "hidden.h5") as file:
        # Hidden states are zero at padding.
        mean = file["hidden"][:].astype(numpy.float64).sum(1) / file["lengths"][:][:, None]
    (folder / "hidden.h5").unlink()
    return mean / numpy.linalg.norm(mean, axis=1, keepdims=True)


def ranks(values):
    order = numpy.argsort(values, kind="stable")
    found = numpy.empty(len(values))
    found[order] = numpy.arange(len(values))
    return found


def compare(teacher, student):
    cosine = (teacher * student).sum(1)
    above = numpy.triu_indices(len(teacher), 1)
    pairs = [(e @ e.T)[above] for e in (teacher, student)]

    def nearest(e):
        between = e @ e.T
        numpy.fill_diagonal(between, -2)
        return between.argmax(1)

    return {
        "cosine_mean": float(cosine.mean()),
        "cosine_5_percent": float(numpy.quantile(cosine, 0.05)),
        "rank_correlation_of_pairs": float(numpy.corrcoef(ranks(pairs[0]), ranks(pairs[1]))[0, 1]),
        "same_nearest": float((nearest(teacher) == nearest(student)).mean()),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("students", nargs="+", help="checkpoints or run directories")
    parser.add_argument("--teacher", required=True, help="checkpoint")
    parser.add_argument("--store", required=True, help="tokenized dataset in the models' vocabulary")
    parser.add_argument("--split", default="test")
    parser.add_argument("--count", type=int, default=1000, help="documents")
    parser.add_argument("--longest", type=int, default=256, help="tokens of a document; all-MiniLM-L6-v2 reads 256")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--furlong", default="build/release/bin/furlong")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    rows = list(documents_of(arguments.store, arguments.split, arguments.count, arguments.longest))
    version = subprocess.run(
        [arguments.furlong, "--version"], check=True, capture_output=True, text=True
    ).stdout.strip()
    result = {
        "documents": len(rows),
        "tokens": sum(map(len, rows)),
        "longest": arguments.longest,
        "split": arguments.split,
        "furlong": version,
        "students": {},
    }
    print(
        "| model | cosine with the teacher's, mean | lowest 5 % | rank correlation of pairs | same nearest |\n"
        "| --- | --- | --- | --- | --- |"
    )
    with tempfile.TemporaryDirectory(prefix="furlong_embeddings_") as place:
        teacher = embeddings(arguments, arguments.teacher, rows, pathlib.Path(place))
        for student in arguments.students:
            found = compare(teacher, embeddings(arguments, student, rows, pathlib.Path(place)))
            result["students"][student] = found
            print(
                f"| {student} | {found['cosine_mean']:.4f} | {found['cosine_5_percent']:.4f} | "
                f"{found['rank_correlation_of_pairs']:.4f} | {100 * found['same_nearest']:.1f} % |",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
