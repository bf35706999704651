"""Whole training steps for run.py: `furlong train` and compiled PyTorch with a model of GPT-2's shape, 124M parameters.

12 layers, d_model 768, 12 heads, tanh GELU, biases, tied embeddings, 50257 tokens, bfloat16 with float32 master
weights, AdamW, clipping at 1, no dropout, random tokens. Two comparisons:
    step        n=1024, softmax on both sides, learned positions
    crossover   Furlong's Performer (favor_positive, m=256) against PyTorch's softmax (scaled_dot_product_attention,
                flash). Finds the length from which the Performer's step is faster. Without position embeddings, whose
                table would be larger than the model
Each side uses its fastest setting that fits in memory: storing all activations, or recomputing blocks in backward.
PyTorch then computes its logits for 16,384 rows at a time; Furlong always computes them in chunks.

Importing this module needs no PyTorch.
"""

import json
import math
import random
import subprocess

SHAPE = {"n_layers": 12, "d_model": 768, "n_heads": 12, "d_feedforward": 3072, "vocabulary": 50257}
FEATURES = 256
STEP_TARGET, CROSSOVER_TARGET = 1.0, 8192


def cases(arguments):
    """Dictionaries, in the order in which they are run."""
    yield {
        "training": "step",
        "attention": "softmax",
        "peer_attention": "softmax",
        "n": 1024,
        "batch": max(1, arguments.training_tokens // 1024),
        "position": "learned",
    }
    for n in sorted(arguments.training_n):
        yield {
            "training": "crossover",
            "attention": "favor_positive",
            "peer_attention": "softmax",
            "n": n,
            "m": FEATURES,
            "batch": max(1, arguments.training_tokens // n),
            "position": "none",
        }


def describe(case):
    features = f" m={case['m']}" if "m" in case else ""
    return (
        f"training step, {case['attention']}{features} against {case['peer_attention']}, n={case['n']} "
        f"batch={case['batch']}"
    )


# ---- figures ---------------------------------------------------------------------------------------------------------
def crossover(points):
    """From [(n, times as fast as the peer)]: the length beyond which ours is the faster at all lengths measured, on a
    straight line through the logarithms of its two neighbors. A dictionary with "tokens" and "text"; tokens is None
    where all lengths are on one side, or none was measured."""
    points = sorted(points)
    if not points:
        return {"tokens": None, "text": "not measured"}
    slower = [i for i, (_, ratio) in enumerate(points) if ratio < 1]
    if not slower:
        return {"tokens": None, "text": f"below {points[0][0]}"}
    last = slower[-1]
    if last + 1 == len(points):
        return {"tokens": None, "text": f"above {points[-1][0]}"}
    (n, ratio), (next_n, next_ratio) = points[last], points[last + 1]
    share = -math.log(ratio) / (math.log(next_ratio) - math.log(ratio))
    tokens = math.exp(math.log(n) + share * (math.log(next_n) - math.log(n)))
    return {"tokens": tokens, "text": f"{tokens:.0f}"}


def reaches(found, target, shortest):
    """Whether a crossover is below the target: known or not, as far as the lengths measured tell."""
    if found["tokens"] is not None:
        return found["tokens"] < target
    return found["text"].startswith("below") and shortest <= target


def speed_of_lines(lines, steps_of_line):
    """Tokens per second of lines of metrics.jsonl: the median of those for training, the first of which, with all that
    is made once, does not count."""
    speeds = sorted(line["tokens_per_second"] for line in lines[1:] if line.get("tokens_per_second"))
    if not speeds:
        raise ValueError(
            f"metrics.jsonl has {len(lines)} lines of training; two at least were expected, "
            f"one each {steps_of_line} steps"
        )
    middle = len(speeds) // 2
    return speeds[middle] if len(speeds) % 2 else (speeds[middle - 1] + speeds[middle]) / 2


# ---- ours ------------------------------------------------------------------------------------------------------------
def settings(case, store, arguments, checkpointing, line_steps, lines):
    """The run as YAML."""
    shape = shape_of(arguments)
    attention = (
        {"mechanism": "softmax"}
        if case["attention"] == "softmax"
        else {"mechanism": "linear", "feature_map": case["attention"], "n_features": case["m"]}
    )
    steps = line_steps * lines
    # JSON is YAML.
    return json.dumps(
        {
            "device": arguments.device,
            "model": {
                "n_layers": shape["n_layers"],
                "d_model": shape["d_model"],
                "n_heads": shape["n_heads"],
                "d_feedforward": shape["d_feedforward"],
                "vocabulary_size": shape["vocabulary"],
                "activation": "gelu_tanh",
                "position": case["position"],
                "dtype": "bfloat16",
                "attention": attention,
            },
            "data": {"dataset": str(store), "sequence_length": case["n"], "batch_size": case["batch"]},
            "schedule": {"warmup_steps": 1},
            "trainer": {
                "max_steps": steps,
                "validate_every": 0,
                "validation_batches": 1,
                "activation_checkpointing": checkpointing,
            },
            "log": {"every": line_steps, "progress": "none"},
        },
        indent=1,
    )


def shape_of(arguments):
    return {
        **SHAPE,
        **(
            {"n_layers": 2, "d_model": 64, "n_heads": 2, "d_feedforward": 128, "vocabulary": 300}
            if arguments.device == "cpu"
            else {}
        ),
    }


def token_store(furlong, folder, longest):
    """Random bytes, as many as the longest sequence needs in each split."""
    text, store = folder / "text", folder / "tokens.h5"
    text.write_bytes(bytes(random.Random(1).choices(range(97, 123), k=max(1 << 20, 24 * longest))))
    subprocess.run(
        [
            furlong,
            "prepare",
            "text",
            str(text),
            "--split-by",
            "span",
            "--split",
            "train:0.8,validation:0.1,test:0.1",
            "--output",
            str(store),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return store


def ours(case, store, arguments, folder, checkpointing, timeout):
    """{"tokens_per_second", "peak_bytes", "activation_checkpointing"}, or {"failed"}."""
    line_steps, lines = (5, 4) if case["n"] < 65536 else (2, 4)  # the third step is recorded, and later ones replayed
    config, run = folder / "config.yaml", folder / f"run_{case['attention']}_{case['n']}_{checkpointing}"
    config.write_text(settings(case, store, arguments, checkpointing, line_steps, lines))
    try:
        ended = subprocess.run(
            [arguments.furlong, "train", str(config), "--run-dir", str(run), "--resume", "never"],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {timeout:.0f} s", "activation_checkpointing": checkpointing}
    if ended.returncode != 0:
        return {"failed": (ended.stderr or ended.stdout).strip()[-400:], "activation_checkpointing": checkpointing}
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in found if line.get("split") == "train"]
    for file in (run / "checkpoints").glob("*"):
        file.unlink()  # 1.5 GB each
    return {
        "tokens_per_second": speed_of_lines(train, line_steps),
        "peak_bytes": train[-1].get("memory_bytes"),
        "activation_checkpointing": checkpointing,
    }


# ---- the peer --------------------------------------------------------------------------------------------------------
def peer_model(case, shape, checkpointing):
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            d, self.heads = shape["d_model"], shape["n_heads"]
            self.attention_norm, self.feedforward_norm = nn.LayerNorm(d), nn.LayerNorm(d)
            self.query_key_value, self.output = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.inner, self.outer = nn.Linear(d, shape["d_feedforward"]), nn.Linear(shape["d_feedforward"], d)

        def forward(self, x):
            query, key, value = (
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in self.query_key_value(self.attention_norm(x)).chunk(3, dim=-1)
            )
            y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.output(y.transpose(1, 2).flatten(2))
            return x + self.outer(F.gelu(self.inner(self.feedforward_norm(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(shape["vocabulary"], shape["d_model"])
            self.positions = nn.Embedding(case["n"], shape["d_model"]) if case["position"] == "learned" else None
            self.blocks = nn.ModuleList(Block() for _ in range(shape["n_layers"]))
            self.norm = nn.LayerNorm(shape["d_model"])
            for module in self.modules():
                if isinstance(module, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(module.weight, std=0.02)

        def part_of_loss(self, x, targets):
            return F.cross_entropy((x @ self.tokens.weight.T.to(x.dtype)).float(), targets, reduction="sum")

        def forward(self, tokens, targets):
            x = self.tokens(tokens)
            if self.positions is not None:
                x = x + self.positions.weight
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
            # In 16 bits, as under autocast a linear layer would have it.
            x, targets = self.norm(x).flatten(0, 1).to(torch.bfloat16), targets.flatten()
            rows = 16384 if checkpointing else len(x)
            parts = [
                (
                    checkpoint(self.part_of_loss, x[i : i + rows], targets[i : i + rows], use_reentrant=False)
                    if checkpointing
                    else self.part_of_loss(x, targets)
                )
                for i in range(0, len(x), rows)
            ]
            return sum(parts) / len(x)

    return Model()


def peer_step(case, shape, device, checkpointing):
    """A function that runs one step."""
    import torch

    torch.manual_seed(1)
    torch.compiler.reset()
    model = peer_model(case, shape, checkpointing).to(device)
    run = torch.compile(model, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(shape["vocabulary"], (case["batch"], case["n"] + 1), device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = run(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


# ---- cases -----------------------------------------------------------------------------------------------------------
def fastest(turns):
    timed = [turn for turn in turns if "tokens_per_second" in turn]
    return max(timed, key=lambda turn: turn["tokens_per_second"]) if timed else turns[-1]


def finish(case):
    """The comparison of one case, from what was found of either side."""
    case["ours"], case["peer"] = fastest(case["our_turns"]), fastest(case["peer_turns"])
    if "failed" in case["ours"] or "failed" in case["peer"]:
        return
    case["times_as_fast"] = case["ours"]["tokens_per_second"] / case["peer"]["tokens_per_second"]
    if case["training"] == "step":
        case["target"], case["reached"] = STEP_TARGET, case["times_as_fast"] >= STEP_TARGET


def summary(found):
    """What all cases of a run say together."""
    points = [
        (case["n"], case["times_as_fast"])
        for case in found
        if case["training"] == "crossover" and "times_as_fast" in case
    ]
    where = crossover(points)
    where["times_as_fast"] = {str(n): ratio for n, ratio in sorted(points)}
    if points:
        where["target"], where["reached"] = CROSSOVER_TARGET, reaches(where, CROSSOVER_TARGET, min(points)[0])
    return where


# ---- tests of the arithmetic -----------------------------------------------------------------------------------------
def self_test():
    def near(found, expected):
        assert found is not None and abs(found - expected) <= 1e-9 * expected, (found, expected)

    # On the line ratio = (n / 8192)^2, whichever lengths were measured.
    near(crossover([(n, (n / 8192) ** 2) for n in (4096, 16384, 65536)])["tokens"], 8192)
    near(crossover([(n, (n / 8192) ** 2) for n in (1000, 2000, 300000)])["tokens"], 8192)
    near(crossover([(65536, 4.0), (4096, 0.25)])["tokens"], 16384)  # in any order
    near(crossover([(4096, 0.5), (16384, 1.0), (65536, 3.0)])["tokens"], 16384)
    # Faster, slower and faster again: only what is faster at all longer lengths counts.
    near(crossover([(1024, 2.0), (4096, 0.5), (16384, 2.0)])["tokens"], 8192)
    assert crossover([]) == {"tokens": None, "text": "not measured"}
    assert crossover([(4096, 1.5), (16384, 9.0)]) == {"tokens": None, "text": "below 4096"}
    assert crossover([(4096, 1.5), (16384, 0.9)]) == {"tokens": None, "text": "above 16384"}
    assert reaches(crossover([(4096, 1.5)]), 8192, 4096) and not reaches(crossover([(16384, 1.5)]), 8192, 16384)
    assert reaches(crossover([(4096, 0.9), (16384, 2.0)]), 8192, 4096)
    assert not reaches(crossover([(4096, 0.25), (16384, 1.1)]), 8192, 4096) and not reaches(crossover([]), 8192, 0)

    def lines(*speeds):
        return [{"tokens_per_second": speed} for speed in speeds]

    assert speed_of_lines(lines(1, 30, 10, 20), 5) == 20
    assert speed_of_lines(lines(1, 30, 10), 5) == 20
    assert speed_of_lines(lines(99, 7, None), 5) == 7
    try:
        speed_of_lines(lines(5), 5)
        raise AssertionError("one line is no measurement")
    except ValueError:
        pass

    case = {
        "training": "step",
        "n": 1024,
        "our_turns": [{"failed": "memory"}, {"tokens_per_second": 3.0}, {"tokens_per_second": 4.0}],
        "peer_turns": [{"tokens_per_second": 5.0}],
    }
    finish(case)
    assert case["times_as_fast"] == 0.8 and case["reached"] is False and case["ours"]["tokens_per_second"] == 4.0
    lost = {
        "training": "crossover",
        "n": 4096,
        "our_turns": [{"tokens_per_second": 1.0}],
        "peer_turns": [{"failed": "memory"}],
    }
    finish(lost)
    assert "times_as_fast" not in lost
    found = summary(
        [case, lost] + [{"training": "crossover", "n": n, "times_as_fast": n / 10000} for n in (4096, 16384)]
    )
    assert found["reached"] is False and list(found["times_as_fast"]) == ["4096", "16384"]
    near(found["tokens"], 10000)
    print("training.py: the arithmetic is right")


if __name__ == "__main__":
    self_test()
