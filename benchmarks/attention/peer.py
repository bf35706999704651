"""PyTorch's process of run_attention.py. Requests and answers are as in benchmarks/worker.h:
attention=favor|softmax n=8192 heads=8 d=64 m=256 batch=1 chunk=256 form=batched compile=0 repetitions=1 threads=2
dtype=float32
"""

import functools
import os
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import serve  # noqa: E402
from attention.chunked_favor import FORMS  # noqa: E402


@functools.cache
def tensors(batch, heads, n, d, m, dtype):
    generator = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(*shape, generator=generator).to(getattr(torch, dtype))
    return [normal(batch, heads, n, d) for _ in range(4)] + [normal(m, d)]


@functools.cache
def attention(name, form, chunk, compiled):
    if name == "softmax":
        run = lambda q, k, v, _: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        run = lambda q, k, v, directions: FORMS[form](q, k, v, directions, chunk)
    return torch.compile(run, dynamic=False) if compiled else run


def answer(request):
    number = lambda key, default: int(request.get(key, default))
    torch.set_num_threads(number("threads", os.cpu_count()))
    *inputs, d_output, directions = tensors(
        *(number(k, v) for k, v in (("batch", 1), ("heads", 8), ("n", 8192), ("d", 64), ("m", 256))),
        request.get("dtype", "float32"),
    )
    run = attention(
        request.get("attention", "favor"),
        request.get("form", "batched"),
        number("chunk", 256),
        bool(number("compile", 0)),
    )
    total, forward, processor = [], [], []
    for _ in range(number("repetitions", 1)):
        leaves = [x.detach().requires_grad_() for x in inputs]
        start, processor_start = time.perf_counter(), time.process_time()
        output = run(*leaves, directions)
        middle = time.perf_counter()
        output.backward(d_output)
        total.append(time.perf_counter() - start)
        processor.append(time.process_time() - processor_start)
        forward.append(middle - start)
        del output, leaves
    return {"seconds": total, "forward_seconds": forward, "processor_seconds": processor}


if __name__ == "__main__":
    serve(answer)
