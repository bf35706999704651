"""PyTorch's process of run_training_step.py. The first request describes the model; each request runs one whole step:
  attention=favor|softmax n=8192 batch=1 layers=6 d_model=512 heads=8 d_feedforward=2048 vocabulary=256 m=256
  chunk=256 form=batched dtype=float32|bfloat16 compile=0 threads=2
The arithmetic is that of training_step.cpp: pre-norm blocks with biases, learned positions, tanh GELU, tied embeddings,
AdamW, clipping at 1. bfloat16 is autocast over float32 parameters.
"""

import contextlib
import os
import pathlib
import sys
import time

import torch
from torch import nn
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import serve  # noqa: E402
from attention.chunked_favor import FORMS  # noqa: E402


class Attention(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options
        d_model = options["d_model"]
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)
        self.register_buffer("directions", torch.randn(options["m"], d_model // options["heads"]))

    def forward(self, x):
        heads = lambda y: y.unflatten(-1, (self.options["heads"], -1)).transpose(1, 2)
        query, key, value = (heads(part) for part in self.query_key_value(x).chunk(3, dim=-1))
        if self.options["attention"] == "softmax":
            y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            y = FORMS[self.options["form"]](query, key, value, self.directions, self.options["chunk"])
        return self.output(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, options):
        super().__init__()
        d_model, d_feedforward = options["d_model"], options["d_feedforward"]
        self.attention_norm, self.attention = nn.LayerNorm(d_model), Attention(options)
        self.feedforward_norm = nn.LayerNorm(d_model)
        self.feedforward = nn.Sequential(
            nn.Linear(d_model, d_feedforward), nn.GELU(approximate="tanh"), nn.Linear(d_feedforward, d_model)
        )

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feedforward(self.feedforward_norm(x))


class Decoder(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.token_embedding = nn.Embedding(options["vocabulary"], options["d_model"])
        self.position_embedding = nn.Embedding(options["n"], options["d_model"])
        self.blocks = nn.ModuleList(Block(options) for _ in range(options["layers"]))
        self.final_norm = nn.LayerNorm(options["d_model"])
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.final_norm(x) @ self.token_embedding.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


DEFAULTS = {
    "n": 8192,
    "batch": 1,
    "layers": 6,
    "d_model": 512,
    "heads": 8,
    "d_feedforward": 2048,
    "vocabulary": 256,
    "m": 256,
    "chunk": 256,
    "compile": 0,
    "threads": os.cpu_count(),
}


class Training:
    def __init__(self, request):
        options = {key: int(request.get(key, value)) for key, value in DEFAULTS.items()}
        options |= {"attention": request.get("attention", "favor"), "form": request.get("form", "batched")}
        torch.set_num_threads(options["threads"])
        torch.manual_seed(1)
        self.model = Decoder(options)
        self.run = torch.compile(self.model, dynamic=False) if options["compile"] else self.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        tokens = torch.randint(options["vocabulary"], (options["batch"], options["n"] + 1))
        self.tokens, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        half = request.get("dtype", "float32") == "bfloat16"
        self.precision = (lambda: torch.autocast("cpu", dtype=torch.bfloat16)) if half else contextlib.nullcontext

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision():
            loss = self.run(self.tokens, self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def resident(kind):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(kind):
            return int(line.split()[1]) * 1024
    return 0


def main():
    training, at_start = None, resident("VmRSS:")

    def answer(request):
        nonlocal training
        training = training or Training(request)
        start = time.perf_counter()
        loss = training.step()
        seconds = time.perf_counter() - start
        return {
            "seconds": [seconds],
            "loss": loss,
            "parameters": sum(p.numel() for p in training.model.parameters()),
            "peak_resident_bytes": resident("VmHWM:"),
            "resident_bytes_at_start": at_start,
        }

    serve(answer)


if __name__ == "__main__":
    main()
