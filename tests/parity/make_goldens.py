#!/usr/bin/env python3
"""Makes tests/parity/goldens/*.h5 by running the libraries listed in requirements.txt, in float32 and float64, forward
and backward. test_parity.cpp (tests/framework/ops) compares Furlong's ops with these files.

Runs each library's own module. Its linear layers are set so that query, key and value are parts of one input, and a
given random projection replaces the drawn one. The one exception is causal pytorch-fast-transformers in float64. Its
compiled product supports only float32 and is replaced by its definition, the lower triangle of Q Kᵀ times V
(`lower_triangle_product`).

A file contains the inputs, shared by its cases, and one group per case, with its options as attributes and
  f32/{output, d_query, d_key, d_value}, f64/{the same}.
Layouts are Furlong's: [batch, n, heads * d].
"""

import argparse
import importlib.metadata
import math
import pathlib

import h5py
import numpy as np
import torch

BATCH, N, HEADS, D, DIRECTIONS = 2, 66, 2, 3, 10
INNER = HEADS * D
GOLDENS = pathlib.Path(__file__).resolve().parent / "goldens"


def normal(generator, *shape, scale=1.0):
    """float32 numbers, so that both precisions start from the same."""
    return (scale * torch.randn(*shape, generator=generator)).numpy().astype(np.float32)


def make_inputs(seed, scale, n=N, n_key=N, d=D):
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        "query": normal(generator, BATCH, n, HEADS * d, scale=scale),
        "key": normal(generator, BATCH, n_key, HEADS * d, scale=scale),
        "value": normal(generator, BATCH, n_key, HEADS * d),
        "d_output": normal(generator, BATCH, n, HEADS * d),
        "directions": normal(generator, DIRECTIONS, d),
    }
    mask = np.ones((BATCH, n_key), dtype=np.int32)
    mask[0, n_key - 9 :] = 0  # both libraries are made for padding at the end
    mask[1, n_key // 2 :] = 0
    inputs["mask"] = mask
    return inputs


def select(columns, start, width):
    """Weight of a linear layer that gives columns [start, start + width) of its input as they are."""
    weight = torch.zeros(width, columns)
    weight[:, start : start + width] = torch.eye(width)
    return weight


def set_weight(linear, weight):
    with torch.no_grad():
        linear.weight.copy_(weight)
        if linear.bias is not None:
            linear.bias.zero_()


def run(forward, inputs, dtype, more=()):
    """Output and gradients of forward(query, key, value, *more)."""
    names = ["query", "key", "value", *more]
    leaves = [torch.tensor(inputs[name]).to(dtype).requires_grad_() for name in names]
    output = forward(*leaves)
    output.backward(torch.tensor(inputs["d_output"]).to(dtype))
    return {"output": output.detach(), **{"d_" + name: leaf.grad for name, leaf in zip(names, leaves)}}


def write(path, versions, inputs, cases):
    with h5py.File(path, "w", libver=("earliest", "v110")) as file:
        file.attrs["made_with"] = versions
        for name, values in inputs.items():
            file.create_dataset(name, data=values)
        for name, (attributes, results) in cases.items():
            group = file.create_group(name)
            for key, value in attributes.items():
                group.attrs[key] = value
            for precision, tensors in results.items():
                for key, tensor in tensors.items():
                    group.create_dataset(f"{precision}/{key}", data=tensor.numpy())
    print(f"{path.name}: {', '.join(cases)} ({path.stat().st_size} bytes)")


def versions(*packages):
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("torch", *packages))


def both_precisions(make, inputs, more=()):
    return {
        name: run(make(dtype), inputs, dtype, more) for name, dtype in (("f32", torch.float32), ("f64", torch.float64))
    }


# performer-pytorch ----------------------------------------------------------------------------------------------------


def performer(inputs, causal, generalized, masked):
    from performer_pytorch.performer_pytorch import SelfAttention

    def make(dtype):
        module = SelfAttention(
            3 * INNER, causal=causal, heads=HEADS, dim_head=D, nb_features=DIRECTIONS, generalized_attention=generalized
        ).to(dtype)
        for linear, start in ((module.to_q, 0), (module.to_k, INNER), (module.to_v, 2 * INNER)):
            set_weight(linear, select(3 * INNER, start, INNER))
        set_weight(module.to_out, select(3 * INNER, 0, INNER).T)
        module.fast_attention.projection_matrix.copy_(torch.tensor(inputs["directions"]))
        mask = torch.tensor(inputs["mask"], dtype=torch.bool) if masked else None

        def forward(query, key, value):
            return module(torch.cat([query, key, value], dim=-1), mask=mask)[..., :INNER]

        return forward

    return both_precisions(make, inputs)


def make_performer():
    for name, generalized, scale in (("softmax", False, 1.5), ("relu", True, 1.0)):
        inputs = make_inputs(1 if generalized else 2, scale)
        cases = {}
        for causal in (False, True):
            for masked in (False, True):
                case = f"{'causal' if causal else 'full'}{'_masked' if masked else ''}"
                cases[case] = (
                    {"causal": int(causal), "masked": int(masked)},
                    performer(inputs, causal, generalized, masked),
                )
        write(GOLDENS / f"performer_pytorch_{name}.h5", versions("performer-pytorch"), inputs, cases)


# pytorch-fast-transformers
# --------------------------------------------------------------------------------------------------------------


def lower_triangle_product(query, key, value):
    """causal_linear by its definition, differentiable, [batch, n, heads, d] as theirs."""
    weights = torch.einsum("nlhe,nshe->nhls", query, key)
    return torch.einsum("nhls,nshm->nlhm", weights.tril(), value)


def fast_transformers(inputs, causal, feature_map, masked, stabilize=False):
    from fast_transformers.attention import causal_linear_attention, linear_attention
    from fast_transformers.feature_maps import Favor, GeneralizedRandomFeatures
    from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask

    n, n_key = inputs["query"].shape[1], inputs["key"].shape[1]
    d = inputs["query"].shape[2] // HEADS
    compiled_product = causal_linear_attention.causal_linear

    def make(dtype):
        factory = None  # their default, elu
        if feature_map == "favor":
            factory = Favor.factory(n_dims=2 * DIRECTIONS, stabilize=stabilize, deterministic_eval=True)
        elif feature_map == "relu":
            factory = GeneralizedRandomFeatures.factory(n_dims=DIRECTIONS, deterministic_eval=True)
        kind = causal_linear_attention.CausalLinearAttention if causal else linear_attention.LinearAttention
        module = kind(d, feature_map=factory).eval()
        if factory is not None:
            module.feature_map.omega = torch.tensor(inputs["directions"]).T.to(dtype).contiguous()
        lengths = inputs["mask"].sum(axis=1) if masked else np.full(BATCH, n_key)
        key_lengths = LengthMask(torch.tensor(lengths, dtype=torch.long), max_len=n_key)
        query_lengths = LengthMask(torch.full((BATCH,), n, dtype=torch.long), max_len=n)
        attention_mask = TriangularCausalMask(n) if causal else FullMask(n, n_key)

        def forward(query, key, value):
            split = [x.reshape(BATCH, -1, HEADS, d) for x in (query, key, value)]
            causal_linear_attention.causal_linear = (
                compiled_product if dtype == torch.float32 else lower_triangle_product
            )
            return module(*split, attention_mask, query_lengths, key_lengths).reshape(BATCH, n, HEADS * d)

        return forward

    return both_precisions(make, inputs)


def make_fast_transformers():
    for feature_map, name in (("elu", "elu"), ("favor", "favor"), ("relu", "generalized")):
        inputs = make_inputs(3, 1.0)
        if feature_map == "elu":
            del inputs["directions"]
        cases = {}
        for causal in (False, True):
            for masked in (False, True):
                case = f"{'causal' if causal else 'full'}{'_masked' if masked else ''}"
                cases[case] = (
                    {"causal": int(causal), "masked": int(masked), "stabilize": 0},
                    fast_transformers(inputs, causal, feature_map, masked),
                )
            if feature_map == "favor":
                cases["causal_stabilized" if causal else "full_stabilized"] = (
                    {"causal": int(causal), "masked": 0, "stabilize": 1},
                    fast_transformers(inputs, causal, feature_map, False, stabilize=True),
                )
        write(GOLDENS / f"fast_transformers_{name}.h5", versions("pytorch-fast-transformers"), inputs, cases)
    inputs = make_inputs(4, 1.0, n=11, n_key=N)
    write(
        GOLDENS / "fast_transformers_cross.h5",
        versions("pytorch-fast-transformers"),
        inputs,
        {"full": ({"causal": 0, "masked": 0, "stabilize": 0}, fast_transformers(inputs, False, "favor", False))},
    )


# linformer ------------------------------------------------------------------------------------------------------------


def linformer(inputs, share_kv, one_kv_head):
    from linformer.linformer import LinformerSelfAttention

    n = inputs["query"].shape[1]
    rows, max_length = inputs["E"].shape
    kv_width = D if one_kv_head else INNER

    def make(dtype):
        columns = 3 * INNER
        module = LinformerSelfAttention(
            columns, max_length, k=rows, heads=HEADS, dim_head=D, one_kv_head=one_kv_head, share_kv=share_kv
        ).to(dtype)
        set_weight(module.to_q, select(columns, 0, INNER))
        set_weight(module.to_k, select(columns, INNER, kv_width))
        if not share_kv:
            set_weight(module.to_v, select(columns, 2 * INNER, kv_width))
        set_weight(module.to_out, select(columns, 0, INNER).T)

        def forward(query, key, value, e, f):
            # Their parameters are [n, r]; ours, as in the paper, [r, n]. Set as plain tensors, gradients reach the
            # leaves here.
            for name, leaf in (("proj_k", e), ("proj_v", f)):
                if hasattr(module, name):
                    delattr(module, name)
                    setattr(module, name, leaf.T)
            pad = torch.zeros(BATCH, n, INNER - kv_width, dtype=dtype)
            return module(torch.cat([query, key, pad, value, pad], dim=-1))[..., :INNER]

        return forward

    results = both_precisions(make, inputs, more=("E", "F"))
    if share_kv:  # keys serve as values and E as F: there is nothing to compare of the other two
        for tensors in results.values():
            del tensors["d_value"], tensors["d_F"]
    return results


def make_linformer():
    rows, max_length = 6, 48
    for name, one_kv_head in (("heads", False), ("one_kv_head", True)):
        cases = {}
        generator = torch.Generator().manual_seed(5)
        n = 40  # shorter than max_length: the first columns of E and F
        kv_width = D if one_kv_head else INNER
        inputs = {
            "query": normal(generator, BATCH, n, INNER),
            "key": normal(generator, BATCH, n, kv_width),
            "value": normal(generator, BATCH, n, kv_width),
            "d_output": normal(generator, BATCH, n, INNER),
            "E": normal(generator, rows, max_length, scale=1 / math.sqrt(rows)),
            "F": normal(generator, rows, max_length, scale=1 / math.sqrt(rows)),
        }
        for share_kv in (False, True):
            cases["shared" if share_kv else "separate"] = (
                {"share_kv": int(share_kv), "kv_heads": 1 if one_kv_head else HEADS},
                linformer(inputs, share_kv, one_kv_head),
            )
        write(GOLDENS / f"linformer_{name}.h5", versions("linformer"), inputs, cases)


def main():
    makers = {"performer": make_performer, "fast_transformers": make_fast_transformers, "linformer": make_linformer}
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("libraries", nargs="*", choices=[[], *makers], help="libraries to run (default: all)")
    GOLDENS.mkdir(exist_ok=True)
    torch.set_num_threads(1)  # sums in one order
    for name in parser.parse_args().libraries or makers:
        makers[name]()


if __name__ == "__main__":
    main()
