#!/usr/bin/env python3
"""Compares vectors of `furlong embed` and scores of `furlong score` with PyTorch, for real models.

all-MiniLM-L6-v2: normalized mean-pooled vectors of English sentences, computed as in sentence-transformers (attention
mask as weights, then length 1), and by that library itself if it is installed. AntiBERTy: normalized mean-pooled
vectors of antibody sequences, from every layer; pseudo-log-likelihoods; masked-marginal and wild-type-marginal scores
of mutations. SmolLM2 (GGUF, dequantized by transformers): log-likelihoods of texts.

  tests/parity/embeddings.py --furlong build/release/bin/furlong --models data/models

Run with torch 2.15.0, transformers 5.23.0, gguf 0.19.0 and h5py (requirements.txt), if possible with
sentence-transformers 6.2.0. Prints the largest difference of each comparison. Exit status 1 if one is over its
tolerance: 1e-5 for normalized vectors, 1e-4 for each token's log-probability.
"""

import argparse
import pathlib
import random
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch
import transformers

VECTORS, LOG_PROBABILITIES = 1e-5, 1e-4
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAKDRLSITIRPRYYG"
    "LDVWGQGTTVTVSS"
)
LIGHT = "DIQMTQSPSSLSASVGDRVTITCRASQSISSYLNWYQQKPGKAPKLLIYAASSLQSGVPSRFSGSGSGTDFTLTISSLQPEDFATYYCQQSYSTPLTFGQGTKVEIK"
SENTENCES = [
    "A furlong is an eighth of a mile.",
    "The quick brown fox jumps over the lazy dog.",
    "Linear attention keeps a state of constant size, whatever the length of the sequence.",
    "Naïve café: 1,000 £ — or so they say!",
    "short",
]


class Report:
    def __init__(self):
        self.failed = False

    def compare(self, name, ours, theirs, tolerance):
        ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
        assert ours.shape == theirs.shape, (name, ours.shape, theirs.shape)
        difference = float(np.abs(ours - theirs).max())
        self.failed |= not difference <= tolerance
        print(f"{name:70} {ours.shape!s:>12}  {difference:.2e}{'' if difference <= tolerance else '  TOO LARGE'}")


def furlong(program, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"furlong {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def embed(program, folder, model, inputs, *options):
    furlong(program, "embed", model, inputs, "-o", folder / "vectors.h5", *options)
    with h5py.File(folder / "vectors.h5") as file:
        return file["embeddings"][:]


def columns(text):
    header, *rows = (line.split("\t") for line in text.splitlines())
    return [dict(zip(header, row)) for row in rows]


def sentences():
    """Of many lengths, so that batches are padded."""
    words = random.Random(1)
    pool = " ".join(SENTENCES).split()
    return SENTENCES + [" ".join(words.choices(pool, k=words.randint(1, 150))) for _ in range(60)]


def antibodies():
    """Parts of two antibodies, some with residues exchanged."""
    choose = random.Random(2)
    made = [HEAVY, LIGHT]
    for _ in range(40):
        letters = list(choose.choice((HEAVY, LIGHT)))
        for _ in range(choose.randint(0, 8)):
            letters[choose.randrange(len(letters))] = choose.choice("ACDEFGHIKLMNPQRSTVWY")
        made.append("".join(letters[: choose.randint(5, len(letters))]))
    return made


@torch.no_grad()
def check_minilm(report, program, folder, path):
    texts = sentences()
    (folder / "sentences.txt").write_text("".join(text + "\n" for text in texts))
    ours = embed(program, folder, path, folder / "sentences.txt", "--normalize")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    for dtype in (torch.float32, torch.float64):
        model = transformers.AutoModel.from_pretrained(path, dtype=dtype).eval()
        theirs = []
        for text in texts:
            batch = tokenizer(text, return_tensors="pt")
            states = model(**batch).last_hidden_state[0]
            vector = states.mean(0)  # one row: every token counts
            theirs.append((vector / vector.norm()).numpy())
        report.compare(f"all-MiniLM-L6-v2, normalized mean, PyTorch {dtype}", ours, theirs, VECTORS)
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        print("sentence-transformers is not installed: its pooling is computed here")
        return
    library = SentenceTransformer(str(path), device="cpu")
    library.max_seq_length = 512  # its own 256 would cut texts
    theirs = library.encode(texts, batch_size=8, normalize_embeddings=True)
    report.compare("all-MiniLM-L6-v2, sentence-transformers", ours, theirs, VECTORS)


@torch.no_grad()
def check_antiberty(report, program, folder, path):
    sequences = antibodies()
    fasta = folder / "antibodies.fasta"
    fasta.write_text("".join(f">s{i}\n{sequence}\n" for i, sequence in enumerate(sequences)))
    model = bert_with_head(path)
    tokens = {token: i for i, token in enumerate((path / "vocab.txt").read_text().split())}
    rows = [
        torch.tensor([[tokens["[CLS]"], *(tokens[letter] for letter in sequence), tokens["[SEP]"]]])
        for sequence in sequences
    ]
    states = [model(row, output_hidden_states=True).hidden_states for row in rows]
    for layer in range(len(states[0])):
        theirs = [torch.nn.functional.normalize(one[layer][0].mean(0), dim=0).numpy() for one in states]
        ours = embed(program, folder, path, fasta, "--normalize", "--layer", layer)
        report.compare(f"AntiBERTy, normalized mean of layer {layer}", ours, theirs, VECTORS)
    for pooling, pick in (("class", lambda one: one[0]), ("last", lambda one: one[-2])):
        theirs = [torch.nn.functional.normalize(pick(one[-1][0]), dim=0).numpy() for one in states]
        ours = embed(program, folder, path, fasta, "--normalize", "--pooling", pooling, "--skip-special")
        report.compare(f"AntiBERTy, --pooling {pooling} --skip-special", ours, theirs, VECTORS)

    few = sequences[:6]
    fasta.write_text("".join(f">s{i}\n{sequence}\n" for i, sequence in enumerate(few)))
    marginals = [masked_marginals(model, row, tokens["[MASK]"]) for row in rows[:6]]
    theirs = [table[range(len(table)), row[0, 1:-1]] for table, row in zip(marginals, rows)]
    found = columns(furlong(program, "score", path, fasta, "--positions"))
    report.compare(
        "AntiBERTy, masked log-probability of each residue",
        [float(row["log_probability"]) for row in found],
        np.concatenate(theirs),
        LOG_PROBABILITIES,
    )
    check_mutations(report, program, folder, path, model, tokens, rows[0], marginals[0])


def check_mutations(report, program, folder, path, model, tokens, row, masked):
    choose = random.Random(3)
    places = [sorted(choose.sample(range(len(HEAVY)), choose.randint(1, 3))) for _ in range(100)]
    mutations = [[(HEAVY[at], at, choose.choice("ACDEFGHIKLMNPQRSTVWY")) for at in some] for some in places]
    (folder / "mutations.txt").write_text(
        "".join(":".join(f"{old}{at + 1}{new}" for old, at, new in some) + "\n" for some in mutations)
    )
    (folder / "wild_type.fasta").write_text(f">heavy\n{HEAVY}\n")
    out = furlong(program, "score", path, folder / "wild_type.fasta", "--mutations", folder / "mutations.txt")
    visible = torch.log_softmax(model(row).logits[0, 1:-1].double(), -1).numpy()
    for name, table in (("masked_marginal", masked), ("wild_type_marginal", visible)):
        theirs = [sum(table[at, tokens[new]] - table[at, tokens[old]] for old, at, new in some) for some in mutations]
        ours = [float(row[name]) for row in columns(out)]
        report.compare(f"AntiBERTy, {name} of 100 mutations", ours, theirs, 3 * LOG_PROBABILITIES)


def bert_with_head(path):
    """BertForMaskedLM of the checkpoint, whose own class (AntiBERTy) has further heads."""
    config = transformers.BertConfig.from_pretrained(path)
    config.architectures = ["BertForMaskedLM"]
    model = transformers.BertForMaskedLM(config).eval()
    state = torch.load(path / "pytorch_model.bin", map_location="cpu", weights_only=True)
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "bert.embeddings.position_ids"}
    assert set(missing) <= tied, missing
    print(f"AntiBERTy: tensors that BertForMaskedLM has no place for: {len(unexpected)}")
    model.tie_weights()
    return model


@torch.no_grad()
def masked_marginals(model, row, mask):
    """log p of each letter at each position, where it alone is hidden: float64 [positions, vocabulary]."""
    places = range(1, row.shape[1] - 1)
    copies = row.repeat(len(places), 1)
    for i, at in enumerate(places):
        copies[i, at] = mask
    logits = torch.cat([model(copies[i : i + 1]).logits[:, at] for i, at in enumerate(places)])
    return torch.log_softmax(logits.double(), -1).numpy()


@torch.no_grad()
def check_smollm2(report, program, folder, path):
    texts = SENTENCES[:3]
    (folder / "texts.txt").write_text("".join(text + "\n" for text in texts))
    ids = [
        [int(word) for word in line.split()]
        for line in furlong(program, "tokenize", path / "model.gguf", folder / "texts.txt").splitlines()
    ]
    model = transformers.AutoModelForCausalLM.from_pretrained(path, gguf_file="model.gguf", dtype=torch.float32).eval()
    theirs = []
    for row in ids:
        logits = torch.log_softmax(model(torch.tensor([row])).logits[0].double(), -1)
        theirs += [float(logits[at - 1, token]) for at, token in enumerate(row) if at > 0]
    out = furlong(program, "score", path / "model.gguf", folder / "texts.txt", "--positions", "--start", "none")
    ours = [float(row["log_probability"]) for row in columns(out)]
    report.compare("SmolLM2-135M, log-probability of each token", ours, theirs, LOG_PROBABILITIES)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--furlong", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path, help="folder of scripts/fetch_models.sh")
    arguments = parser.parse_args()
    report = Report()
    checks = {"minilm": check_minilm, "antiberty": check_antiberty, "smollm2": check_smollm2}
    with tempfile.TemporaryDirectory() as name:
        for model, check in checks.items():
            if (arguments.models / model).exists():
                check(report, arguments.furlong, pathlib.Path(name), arguments.models / model)
            else:
                print(f"{model}: not fetched, not compared")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
