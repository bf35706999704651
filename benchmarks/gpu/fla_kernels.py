#!/usr/bin/env python3
"""Predicts the time of flash-linear-attention's chunk kernels on an H100, with scripts/sass_cost.py. Needs no GPU.

  pip install torch triton fla-core==0.6.0 nvidia-cuda-nvdisasm
  python3 benchmarks/gpu/fla_kernels.py [--json]

Compiles chunk_fwd_kernel_h (states) and chunk_fwd_kernel_o (outputs) for sm_90: causal, bfloat16, chunks of 64 tokens,
16,384 tokens, width 64, and the configurations below, of those that fla tries on an H100. Takes the one with the least
predicted time of each kernel. These kernels get features, which a model computes before them, and do not normalize.
docs/internals/kernel_cost.md compares them with Furlong's."""

import argparse
import collections
import json
import pathlib
import sys
import tempfile

import triton
from fla.ops.common.chunk_h import chunk_fwd_kernel_h
from fla.ops.common.chunk_o import chunk_fwd_kernel_o
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import sass_cases
import sass_cost

TOKENS, CHUNK, WIDTH, HEADS = 16384, 64, 64, 12
BYTES = 2  # of a bfloat16
KERNELS = {
    "states": (chunk_fwd_kernel_h, [(64, 64, 2, 3), (64, 64, 4, 3), (64, 64, 4, 2), (32, 64, 2, 3), (32, 64, 4, 3)]),
    "outputs": (chunk_fwd_kernel_o, [(128, 128, 8, 3), (64, 64, 4, 3), (32, 32, 2, 3)]),
}
POINTERS, NUMBERS = ("q", "k", "v", "h", "o"), {"scale": "fp32", "T": "i32"}


def compiled(kernel, features, block_k, block_v, warps, stages):
    """The cubin of one configuration. Options of the kernel that are not listed are off."""
    while not isinstance(kernel, triton.runtime.jit.JITFunction):
        kernel = kernel.fn
    constants = dict(H=HEADS, HV=HEADS, K=features, V=WIDTH, BT=CHUNK, BS=CHUNK, BK=block_k, BV=block_v)
    signature, values, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in POINTERS:
            signature[name] = "*bf16"
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif name in NUMBERS:
            signature[name] = NUMBERS[name]
        else:
            signature[name] = "constexpr"
            values[(place,)] = constants.get(name, False if name.isupper() else None)
    source = ASTSource(kernel, signature, values, attributes)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["cubin"]


def predicted(name, features, configuration, folder):
    block_k, block_v, warps, _ = configuration
    path = pathlib.Path(folder, "fla.cubin")
    path.write_bytes(compiled(KERNELS[name][0], features, *configuration))
    kernels = sass_cost.read([str(path)])["sm_90"]
    has_loop = any(kernel.loops for kernel, _ in kernels.values())  # Triton unrolls short ones
    state = features * WIDTH * BYTES / CHUNK  # of a chunk, per token
    row = (features + WIDTH) * BYTES
    share = min(1, block_v / WIDTH)  # of a head's columns of v in a block, then also of its features
    if name == "states":
        loops = [("for i_t in range", TOKENS // CHUNK)]
        token_heads, moved = TOKENS * share * min(1, block_k / features), row + state
    else:
        loops = [("for i_k in range", -(-features // block_k))] if has_loop else []
        token_heads, moved = CHUNK * share, 2 * row + state
    case = sass_cases.Case(name, "chunk_fwd_kernel", warps, token_heads, moved, loops)
    found = sass_cost.evaluated(case, "sm_90", kernels, collections.Counter())
    return {"configuration": dict(zip(("BK", "BV", "warps", "stages"), configuration)), **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        for features in (64, 256):
            for name, (_, configurations) in KERNELS.items():
                tried = [predicted(name, features, each, folder) for each in configurations]
                best[f"fla {name}, {features} features"] = min(
                    tried, key=lambda found: (found["picoseconds"], found["slots"])
                )
    if arguments.json:
        print(json.dumps(best, indent=1))
        return
    sass_cost.print_cases({"sm_90": best})
    for name, found in best.items():
        print(f"  {name}: {found['configuration']}, {found['registers']} registers")


if __name__ == "__main__":
    main()
