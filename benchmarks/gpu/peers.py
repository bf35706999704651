"""Attention in PyTorch and its packages, for run.py: query, key, value [batch, heads, n, d] -> the same.

This module can be imported without PyTorch, but its functions need it.
"""

import functools
import inspect

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    pass


def favor(query, key, value, directions, chunk):
    """Causal FAVOR+: features exp(w.x' - |x'|^2 / 2) with x' = x d^(-1/4). A row of queries subtracts its own maximum
    and the keys of a head their common one; both cancel in the ratio. Products in the inputs' type, exponentials and
    the sum over chunks in float32.
    """
    dtype, scale = query.dtype, query.shape[-1] ** -0.25
    u = ((query * scale) @ directions.T).float()
    q = torch.exp(u - u.amax(dim=-1, keepdim=True).detach()).to(dtype)
    x = key * scale
    w = (x @ directions.T).float() - x.float().square().sum(dim=-1, keepdim=True) / 2
    k = torch.exp(w - w.amax(dim=(-1, -2), keepdim=True).detach()).to(dtype)
    v = F.pad(value, (0, 1), value=1.0)  # numerator and denominator in one product
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (q, k, v))
    states = (k.transpose(-1, -2) @ v).float().cumsum(dim=2)
    before = F.pad(states[:, :, :-1], (0, 0, 0, 0, 1, 0)).to(dtype)
    sums = ((q @ k.transpose(-1, -2)).tril() @ v + q @ before).float()
    return (sums[..., :-1] / sums[..., -1:]).to(dtype).flatten(2, 3)


def elu1(x):
    return F.elu(x) + 1


@functools.cache
def thin_autotuning(most):
    """Keeps at most `most` configurations of each kernel that Triton tunes, evenly chosen. Call it before fla is
    imported. Returns a list of (kept, all) per kernel, which importing fills."""
    import triton

    tune, kept = triton.autotune, []

    def thinned(configs, *arguments, **keywords):
        chosen = list(configs)[:: -(-len(configs) // most)]
        kept.append((len(chosen), len(configs)))
        return tune(chosen, *arguments, **keywords)

    triton.autotune = thinned
    return kept


@functools.cache
def chunk_linear_attn(normalize):
    """fla's kernel for [batch, n, heads, d], the layout that it wants."""
    from fla.ops.linear_attn import chunk_linear_attn as attention

    # Its later versions take this layout alone; earlier ones where head_first says so.
    keywords = {"head_first": False} if "head_first" in inspect.signature(attention).parameters else {}

    def run(query, key, value):
        output = attention(query, key, value, scale=1.0, normalize=normalize, **keywords)
        return output[0] if isinstance(output, tuple) else output

    return run


def softmax_by(backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run(query, key, value):
        with sdpa_kernel([getattr(SDPBackend, backend)]):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    return run
