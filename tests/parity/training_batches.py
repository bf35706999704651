"""Datasets of training.py, and the batches of their splits, computed from the tokenized datasets (h5py)."""

import json
import os
import random
import subprocess

import h5py
import numpy as np
import torch

IGNORED = -1


def furlong(program, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"furlong {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def words_of(random_words, count):
    pool = "the mare ran one furlong over wet grass while rain fell and nobody saw who had won it".split()
    return " ".join(random_words.choice(pool) for _ in range(count))


def prepare(program, folder):
    """Writes the datasets of all cases."""
    draw = random.Random(1)

    def write(name, lines):
        (folder / name).write_text("".join(line + "\n" for line in lines))
        return folder / name

    def data(name, *arguments, split="0.75,0.25,0"):
        furlong(program, "prepare", *arguments, "--output", folder / f"{name}.h5", "--split", split)

    lines = [words_of(draw, draw.randint(1, 24)) for _ in range(160)]
    data("text", "text", write("text.txt", lines), "--document-separator", "line")
    data("documents", "text", folder / "text.txt", "--document-separator", "line", "--split-by", "document")
    records = []
    for i in range(30):
        records += [f">{i}", "".join(draw.choice("ACGTN") for _ in range(draw.randint(20, 200)))]
    data("dna", "fasta", write("dna.fa", records), "--alphabet", "dna")
    texts = [words_of(draw, draw.randint(1, 20)) for _ in range(120)]
    kinds = ["dry", "wet", "both"]
    data("classes", "labeled", write("classes.tsv", [f"{text}\t{draw.choice(kinds)}" for text in texts]))
    pairs = [f"{one}\t{two}\t{draw.choice(kinds)}" for one, two in zip(texts[::2], texts[1::2])]
    data("pairs", "labeled", write("pairs.tsv", pairs), "--second-text-field", "2", "--label-field", "3")
    numbers = [f"{text}\t{len(text)}\t{draw.gauss(3, 0.1):.5f}" for text in texts]
    table = write("numbers.tsv", ["text\tlength\tspeed", *numbers])
    named = ("--text-field", "text", "--label-field", "length,speed")
    data("numbers", "labeled", table, "--label-type", "number", *named)
    sets = [f"{text}\t{';'.join(kind for kind in kinds if draw.random() < 0.4)}" for text in texts]
    data("sets", "labeled", write("sets.tsv", sets), "--label-type", "set")
    proteins = ["".join(draw.choice("ACDEFGHIK") for _ in range(draw.randint(5, 90))) for _ in range(80)]
    marks = [f"{text}\t{''.join(draw.choice('HEC.') for _ in text)}" for text in proteins]
    tokens = ("--label-type", "token", "--unlabeled", ".", "--alphabet", "protein")
    data("marks", "labeled", write("marks.tsv", marks), *tokens)


def stream(name):
    """32-bit FNV-1a."""
    value = 2166136261
    for letter in name.encode():
        value = (value ^ letter) * 16777619 & 0xFFFFFFFF
    return value


def philox(seed, name, blocks, step=0):
    """Philox4x32-10: four words [4, blocks] of each block's index."""
    blocks = np.atleast_1d(np.asarray(blocks, dtype=np.uint64))
    low = np.uint64(0xFFFFFFFF)
    fixed = lambda value: np.full(len(blocks), value, dtype=np.uint64)
    counter = [blocks & low, blocks >> np.uint64(32), fixed(stream(name)), fixed(step)]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        products = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = [
            products[1] >> np.uint64(32) ^ counter[1] ^ np.uint64(keys[0]),
            products[1] & low,
            products[0] >> np.uint64(32) ^ counter[3] ^ np.uint64(keys[1]),
            products[0] & low,
        ]
        keys = [keys[0] + 0x9E3779B9 & 0xFFFFFFFF, keys[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return np.stack(counter)


def permuted(index, size, seed, epoch):
    """The order of documents in an epoch: a Feistel network with cycle walking."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for turn in range(6):
            words = philox(seed, "order of documents", right << 8 | turn, epoch)[:, 0]
            left, right = right, left ^ ((int(words[1]) << 32 | int(words[0])) & low)
        index = left << half | right
        if index < size:
            return index


class Batch:
    """Rows of a forward pass. `mask` is false at padding, `documents` numbers the documents of a row."""

    def __init__(self, rows, n):
        self.inputs = torch.zeros(rows, n, dtype=torch.long)
        self.targets = torch.full((rows, n), IGNORED)
        self.mask = torch.zeros(rows, n, dtype=torch.bool)
        self.documents = torch.zeros(rows, n, dtype=torch.long)
        self.fresh = torch.ones(rows, dtype=torch.bool)
        self.labels = self.values = None
        self.tokens = 0  # that count as read

    def count(self):
        return int((self.targets if self.labels is None else self.labels).ge(0).sum())


class Source:
    """Batches of a split, as docs/config.md and docs/file_formats.md define them."""

    def __init__(self, settings, vocabulary, split, rows):
        self.settings, self.data, self.objective = settings, settings["data"], settings["objective"]["name"]
        self.training = split == "train"
        self.seed = settings["seed"] if self.training else 1
        self.n, self.rows, self.sampler = self.data["sequence_length"], rows, self.data["sampler"]
        with h5py.File(self.data["dataset"]) as file:
            tokens, offsets = file["tokens"][:].astype(np.int64), file["documents"][:].astype(np.int64)
            ranges = file[f"splits/{split}"][:].astype(np.int64)
            self.words = json.loads(file.attrs["vocabulary"])
            if "labels" in file:
                self.read_labels(file)
        self.symbols = vocabulary["symbols"]
        self.tokens = np.concatenate([tokens[begin:end] for begin, end in ranges])
        self.places = np.concatenate([np.arange(begin, end) for begin, end in ranges])
        starts = np.isin(self.places, offsets)
        gaps = np.diff(self.places, prepend=self.places[0] - 2) != 1
        self.gaps, self.starts = gaps, starts | gaps
        self.ignored = [self.symbols.index(name) for name in self.data["ignore_tokens"]]
        first = np.flatnonzero(self.starts)
        self.spans = list(zip(first, [*first[1:], len(self.tokens)]))
        labeled = self.objective not in ("next_token", "masked_tokens")
        self.kind = "labels" if labeled else "windows" if self.sampler in ("random", "sequential") else self.sampler
        if not self.training and self.kind == "windows":
            self.sampler = "sequential"
        getattr(self, f"init_{self.kind}")()

    def read_labels(self, file):
        labels = file["labels"]
        self.labels, self.label_kind = labels[:], labels.attrs.get("kind", "class")
        self.label_kind = getattr(self.label_kind, "decode", lambda: self.label_kind)()
        self.per_label = int(labels.attrs["documents_per_label"])
        self.offsets = file["documents"][:].astype(np.int64)
        self.label_ends = file["label_ends"][:].astype(np.int64) if "label_ends" in file else None

    def batch(self, first, count, one_pass=False):
        """Samples [first, first + count)."""
        made = getattr(self, f"{self.kind}_batch")(first, count, one_pass)
        return self.masked(made, first, one_pass) if self.objective == "masked_tokens" else made

    def shuffled(self, index):
        size = self.samples
        return permuted(index % size, size, self.seed, index // size) if self.shuffles else index % size

    def init_windows(self):
        random_windows = self.sampler == "random"
        self.samples = len(self.tokens) - self.n if random_windows else -(-(len(self.tokens) - 1) // self.n)

    def windows_batch(self, first, count, one_pass):
        made = Batch(count, self.n)
        borders = self.starts if self.data["packing"] == "documents" else self.gaps
        for row, index in enumerate(range(first, first + count)):
            if one_pass and index >= self.samples:
                continue
            start = index % self.samples * self.n
            if self.sampler == "random":
                words = philox(self.seed, "sampler", index)[:, 0]
                start = (int(words[1]) << 32 | int(words[0])) * self.samples >> 64
            inputs = self.tokens[start : start + self.n]
            targets, cut = self.tokens[start + 1 : start + self.n + 1], borders[start + 1 : start + self.n + 1]
            targets = np.where(cut | np.isin(targets, self.ignored), IGNORED, targets)
            made.inputs[row, : len(inputs)] = torch.from_numpy(inputs)
            made.targets[row, : len(targets)] = torch.from_numpy(targets)
            made.mask[row, : len(inputs)] = True
            if self.data["packing"] == "documents":
                inside = borders[start : start + self.n].copy()
                inside[0] = False
                made.documents[row] = len(self.tokens)
                made.documents[row, : len(inputs)] = torch.from_numpy(inside.cumsum())
        made.tokens = made.count()
        return made

    def init_documents(self):
        last = 1 if self.objective == "next_token" else 0  # a document's last token only is a target
        self.parts = []
        for begin, end in self.spans:
            for start in range(begin, end - last, self.n):
                self.parts.append((start, min(start + self.n, end - last)))
        self.samples, self.shuffles = len(self.parts), self.training

    def documents_batch(self, first, count, one_pass):
        made = Batch(count, self.n)  # padding to sequence_length: masked, whatever its length
        for row, index in enumerate(range(first, first + count)):
            if one_pass and index >= self.samples:
                continue
            begin, end = self.parts[self.shuffled(index)]
            made.inputs[row, : end - begin] = torch.from_numpy(self.tokens[begin:end])
            made.mask[row, : end - begin] = True
            if self.objective == "next_token":
                targets = self.tokens[begin + 1 : end + 1]
                targets = np.where(np.isin(targets, self.ignored), IGNORED, targets)
                made.targets[row, : end - begin] = torch.from_numpy(targets)
        made.tokens = made.count()
        return made

    def masked(self, made, first, one_pass):
        """Hides tokens: a function of the seed, the sample and the position."""
        objective, symbols = self.settings["objective"], self.symbols
        special = [i for i, symbol in enumerate(symbols) if symbol in ("<document>", "<mask>", "<class>")]
        ordinary = [i for i in range(len(symbols)) if i not in special]
        name = "masking" if self.training else "masking for evaluation"
        made.targets[:] = IGNORED
        made.tokens = int(made.mask.sum())
        for row in range(len(made.inputs)):
            words = philox(self.seed, name, (first + row) * self.n + np.arange(self.n)) * 2.0**-32
            for t in range(self.n):
                token = int(made.inputs[row, t])
                if not made.mask[row, t] or token in special or token in self.ignored:
                    continue
                if words[0, t] >= objective["mask_probability"]:
                    continue
                made.targets[row, t] = token
                if words[1, t] < objective["mask_token_fraction"]:
                    made.inputs[row, t] = symbols.index("<mask>")
                elif words[1, t] < objective["mask_token_fraction"] + objective["random_token_fraction"]:
                    made.inputs[row, t] = ordinary[int(words[2, t] * len(ordinary))]
        return made

    def init_stream(self):
        """Segments of documents, divided into as many parts as there are rows."""
        self.segments = []
        for begin, end in self.spans:
            starts = range(begin, end - 1, self.n)
            self.segments += [(start, min(start + self.n, end - 1), start == begin) for start in starts]
        edges = [len(self.segments) * row // self.rows for row in range(self.rows + 1)]
        if not self.training:  # parts start at the nearest document
            starts = [i for i, segment in enumerate(self.segments) if segment[2]]
            edges[1:-1] = [min(starts, key=lambda i, edge=edge: abs(i - edge)) for edge in edges[1:-1]]
        self.streams = list(zip(edges, edges[1:]))
        self.samples = self.rows * max(end - begin for begin, end in self.streams)

    def stream_batch(self, first, count, one_pass):
        made = Batch(count, self.n)
        for row, index in enumerate(range(first, first + count)):
            (begin, end), turn = self.streams[index % self.rows], index // self.rows
            if one_pass and turn >= end - begin:
                continue
            start, stop, fresh = self.segments[begin + turn % (end - begin)]
            made.inputs[row, : stop - start] = torch.from_numpy(self.tokens[start:stop])
            made.targets[row, : stop - start] = torch.from_numpy(self.tokens[start + 1 : stop + 1])
            made.mask[row, : stop - start] = True
            made.fresh[row] = bool(fresh or turn % (end - begin) == 0)
        made.tokens = made.count()
        return made

    def init_labels(self):
        position = {int(place): i for i, place in enumerate(self.places)}
        whole = lambda i: all(place in position for place in range(self.offsets[i], self.offsets[i + 1]))
        count = (len(self.offsets) - 1) // self.per_label
        documents = [[i * self.per_label + k for k in range(self.per_label)] for i in range(count)]
        self.chosen = [(i, rows) for i, rows in enumerate(documents) if all(whole(row) for row in rows)]
        self.first_of = lambda i: position[int(self.offsets[i])]
        self.samples, self.shuffles = len(self.chosen), self.training and self.sampler != "sequential"

    def labels_of(self, i):
        """Index of the class, or one value for each output."""
        n = len(self.words["labels"])
        if self.label_kind == "number":
            scales = self.words["label_scales"]
            mean = np.array([scale["mean"] if isinstance(scale, dict) else scale[0] for scale in scales])
            scale = np.array([scale["scale"] if isinstance(scale, dict) else scale[1] for scale in scales])
            return ((self.labels.reshape(-1, n)[i] - mean) / scale).astype(np.float32)
        if self.label_kind == "set":
            begin = self.label_ends[i - 1] if i > 0 else 0
            return np.isin(np.arange(n), self.labels[begin : self.label_ends[i]]).astype(np.float32)
        return int(self.labels[i])

    def labels_empty(self, count):
        made = Batch(count * self.per_label, self.n)
        if self.label_kind != "token":
            made.labels = torch.full((count,), IGNORED)
        if self.label_kind in ("number", "set"):
            made.values = torch.zeros(count, len(self.words["labels"]), dtype=torch.float64)
        return made

    def labels_row(self, made, row, document):
        front = [self.symbols.index("<class>")] if self.settings["objective"].get("pooling") == "class_token" else []
        length = min(self.offsets[document + 1] - self.offsets[document], self.n - len(front))
        start = self.first_of(document)
        ids = np.concatenate([np.array(front, dtype=np.int64), self.tokens[start : start + length]])
        made.inputs[row, : len(ids)] = torch.from_numpy(ids)
        made.mask[row, : len(ids)] = True
        made.tokens += len(ids)
        if self.label_kind == "token":
            marks = self.labels[self.offsets[document] :][:length].astype(np.int64)
            made.targets[row, :length] = torch.from_numpy(marks)

    def labels_batch(self, first, count, one_pass):
        made = self.labels_empty(count)
        for place, index in enumerate(range(first, first + count)):
            if one_pass and index >= self.samples:
                continue
            i, documents = self.chosen[self.shuffled(index)]
            for k, document in enumerate(documents):
                self.labels_row(made, place * self.per_label + k, document)
            if self.label_kind == "class":
                made.labels[place] = self.labels_of(i)
            elif self.label_kind != "token":
                made.labels[place], made.values[place] = 0, torch.from_numpy(self.labels_of(i)).double()
        return made
