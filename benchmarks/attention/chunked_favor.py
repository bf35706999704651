"""Causal FAVOR+ in chunks of plain PyTorch, as a careful user without custom kernels would write it.

The estimator is Furlong's favor_positive: features exp(w.x' - |x'|^2 / 2) with x' = x d^(-1/4), without an epsilon.
Each query row subtracts its own maximum, and all keys of a head subtract a common one; both cancel in the ratio. At
moderate norms nothing underflows, which suffices for a benchmark. At large norms the common maximum loses accuracy;
Furlong stays accurate there, at a cost.

The queries of a chunk attend to its own keys pair by pair (masked), and to earlier keys through the sum of
phi(k) [v, 1]. The column of ones makes numerator and denominator one product. The benchmark uses the faster form:
  batched  all chunks in one product; states by a cumulative sum over chunks
  loop     one chunk after another, with the state in cache and features computed when needed
"""

import torch
import torch.nn.functional as F


def scaled(x):
    return x * x.shape[-1] ** -0.25


def query_features(query, directions):
    u = scaled(query) @ directions.T  # without |x'|^2 / 2, which is the same for all features of a query
    return torch.exp(u - u.amax(dim=-1, keepdim=True).detach())


def key_logarithms(key, directions):
    x = scaled(key)
    return x @ directions.T - x.square().sum(dim=-1, keepdim=True) / 2


def key_features(key, directions, maximum=None):
    log = key_logarithms(key, directions)
    if maximum is None:
        maximum = log.amax(dim=(-1, -2), keepdim=True).detach()
    return torch.exp(log - maximum)


def with_ones(value):
    return F.pad(value, (0, 1), value=1.0)


def divide(sums):
    return sums[..., :-1] / sums[..., -1:]


def batched(query, key, value, directions, chunk):
    """query, key, value [batch, heads, n, d], n a multiple of chunk -> [batch, heads, n, d]."""
    split = lambda x: x.unflatten(2, (-1, chunk))
    q, k = split(query_features(query, directions)), split(key_features(key, directions))
    v = split(with_ones(value))
    states = k.transpose(-1, -2) @ v
    before = F.pad(states.cumsum(dim=2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    near = (q @ k.transpose(-1, -2)).tril() @ v
    return divide(near + q @ before).flatten(2, 3)


def loop(query, key, value, directions, chunk):
    """The same, chunk by chunk."""
    with torch.no_grad():
        maxima = [key_logarithms(part, directions).amax(dim=(-1, -2), keepdim=True) for part in key.split(chunk, dim=2)]
        maximum = torch.stack(maxima).amax(dim=0)
    state, outputs = None, []
    for q, k, v in zip(*(x.split(chunk, dim=2) for x in (query, key, value))):
        q, k, v = query_features(q, directions), key_features(k, directions, maximum), with_ones(v)
        sums = (q @ k.transpose(-1, -2)).tril() @ v
        if state is not None:
            sums = sums + q @ state
        outputs.append(divide(sums))
        update = k.transpose(-1, -2) @ v
        state = update if state is None else state + update
    return torch.cat(outputs, dim=2)


FORMS = {"batched": batched, "loop": loop}
