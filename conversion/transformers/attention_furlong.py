"""
Attention of Furlong models in plain PyTorch: linear attention in log space, softmax, and Linformer.

Linear attention replaces softmax's exp(q·k/√d) by φ(q)·φ(k), φ a feature map with m features:

    output_i = Σ_j w_ij v_j / Σ_j w_ij        w_ij = Σ_f φ_f(q_i) φ_f(k_j)        (j <= i when causal)

Σ_j φ(k_j) v_jᵀ is a state of m × d numbers, so that cost is linear in length and generation needs no cache that grows.
φ spans hundreds of orders of magnitude (favor_positive is an exponential), so that it is never computed as such:
features are logarithms, and each sum is stored with a maximum that was taken out of it. No epsilon is added anywhere.

A causal sequence is walked in chunks. Inside a chunk weights are computed pair by pair; keys of earlier chunks count
through the state. Both parts meet under one maximum for each query (LinearAttention.combined).

Shapes: B batch, H heads, n queries, w keys, m features, d width of a head.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn

EMPTY = -1e30  # the logarithm of nothing. Finite: -inf - -inf is NaN
UNDERFLOW = 1e-30  # products of normalised features below this have lost digits, and are summed again from logarithms


@dataclass
class Features:
    """φ = values · exp(logs). Maps with positive features have no values: φ = exp(logs)."""

    x: torch.Tensor  # [B, H, n, d]: what they are features of
    logs: torch.Tensor  # [B, H, n, m]; with values [B, H, n, 1]
    values: Optional[torch.Tensor]  # [B, H, n, m]
    row: torch.Tensor  # [B, H, n, 1]. Of a query: left out of its logs, where it cancels. Of a key: added to them

    def relative_to(self, maximum):
        """φ · exp(-maximum)."""
        scaled = (self.logs - maximum).clamp(max=1).exp()  # 0 at most, but for rounding and sums over nothing
        return scaled if self.values is None else scaled * self.values

    def masked(self, mask):
        """mask [B, 1, n, 1]: False makes φ zero."""
        values = None if self.values is None else self.values.masked_fill(~mask, 0)
        return Features(self.x, self.logs.masked_fill(~mask, EMPTY), values, self.row)

    def rows(self, start, stop):
        parts = (self.x, self.logs, self.values, self.row)
        return Features(*(None if part is None else part[..., start:stop, :] for part in parts))


class FeatureMap(nn.Module):
    """φ by name; definitions and sources are in Furlong's docs/numerics.md. x' = x d^(-1/4), so q'·k' = q·k/√d."""

    SIGNED = ("favor_trig", "taylor", "limit", "cosine")  # sums of their weights can cancel

    def __init__(self, config):
        super().__init__()
        self.name, self.order, self.epsilon = config.feature_map, config.order, config.kernel_epsilon
        self.signed = self.name in self.SIGNED

    def forward(self, x, is_key, projection=None, oprf_a=None):
        """x [B, H, n, d], projection ω [r, d], oprf_a [H] -> logs, values and row of Features."""
        zero = torch.zeros_like(x[..., :1])
        if self.name == "elu1":
            return torch.where(x > 0, x.clamp(min=0).log1p(), x), None, zero
        if self.name == "exp":
            return x, None, zero
        if self.name == "hedgehog":
            return torch.cat([x.log_softmax(-1), (-x).log_softmax(-1)], -1), None, zero
        if self.name == "relu":
            return zero, x.relu(), zero
        if self.name == "cosine":
            norm = x.norm(dim=-1, keepdim=True)
            return zero, torch.cat([torch.ones_like(zero), x / norm.where(norm > 0, 1)], -1), zero
        scaled = x * x.shape[-1] ** -0.25
        if self.name in ("taylor", "limit"):
            return zero, self.monomials(scaled), zero
        u = scaled @ projection.T  # ω_f·x' [B, H, n, r]
        half = scaled.square().sum(-1, keepdim=True) / 2
        count = math.log(len(projection))
        if self.name == "favor_relu":
            return zero, u.relu() + self.epsilon, zero - count
        if self.name == "favor_trig":
            return half if is_key else zero, torch.cat([u.cos(), u.sin()], -1), half - count
        row = -half - count
        if self.name == "favor_hyperbolic":
            u, row = torch.cat([u, -u], -1), row - math.log(2)
        if self.name == "oprf":
            a = oprf_a[:, None, None]
            u = a * projection.square().sum(-1) + (1 - 4 * a).sqrt() * u
            row = row + x.shape[-1] / 2 * (1 - 4 * a).log()
        return u - half if is_key else u, None, row  # favor_positive, favor_hyperbolic, oprf

    def monomials(self, x):
        """√(c_r r!/Π α_i!) Π x_i^α_i for every multi-index α of degree r <= order: products are Σ_r c_r (q'·k')^r."""
        features = [torch.ones_like(x[..., :1])]
        for r in range(1, self.order + 1):
            c = 1 / math.factorial(r) if self.name == "taylor" else math.comb(self.order, r) / self.order**r
            indices = list(itertools.combinations_with_replacement(range(x.shape[-1]), r))
            repeats = [math.prod(math.factorial(index.count(i)) for i in set(index)) for index in indices]
            roots = [math.sqrt(c * math.factorial(r) / repeat) for repeat in repeats]
            features.append(x[..., torch.tensor(indices, device=x.device)].prod(-1) * x.new_tensor(roots))
        return torch.cat(features, -1)


@dataclass
class Rotation:
    """Rotates the pair of features (f, f + ⌊m/2⌋) by position · base^(-2f/m); the last of an odd number stays."""

    cos: torch.Tensor  # [B, 1, n, m/2]
    sin: torch.Tensor

    @staticmethod
    def at(positions, base, m, dtype):
        f = torch.arange(m // 2, dtype=torch.float64, device=positions.device)
        angles = positions[:, None, :, None].double() * base ** (-2 * f / m)
        return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))

    def __call__(self, x):
        h = x.shape[-1] // 2
        a, b, rest = x[..., :h], x[..., h : 2 * h], x[..., 2 * h :]
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos, rest], -1)

    @staticmethod
    def larger_of_pairs(x):
        """A maximum taken out of both features of a pair, and so out of their rotation."""
        h = x.shape[-1] // 2
        larger = torch.maximum(x[..., :h], x[..., h : 2 * h])
        return torch.cat([larger, larger, x[..., 2 * h :]], -1)

    def rows(self, start, stop):
        return Rotation(self.cos[..., start:stop, :], self.sin[..., start:stop, :])

    def of(self, b, i):
        """Those of row i of sequence b, for lists of b and i."""
        return Rotation(self.cos[b, 0, i], self.sin[b, 0, i])


@dataclass
class State:
    """Sums over keys, exp(-maximum) taken out of them: a maximum for each feature; of maps with values, one for all."""

    sum: torch.Tensor  # [B, H, m, d]: Σ_j φ(k_j) v_jᵀ
    normalizer: torch.Tensor  # [B, H, m]: Σ_j φ(k_j)
    maximum: torch.Tensor  # [B, H, m] or [B, H, 1]
    magnitude: torch.Tensor  # [B, H, 1]: Σ_j |φ(k_j)|

    @staticmethod
    def empty(key, value):
        B, H, _, m = (key.logs if key.values is None else key.values).shape
        zeros = lambda *shape: value.new_zeros(B, H, *shape)
        return State(zeros(m, value.shape[-1]), zeros(m), zeros(key.logs.shape[-1]) + EMPTY, zeros(1))

    def extended(self, key, value, rotate):
        """The state after more keys, Features of [B, H, w, m], and values [B, H, w, d]."""
        logs = key.logs.detach()
        if rotate is not None and key.values is None:
            logs = Rotation.larger_of_pairs(logs)
        maximum = torch.maximum(self.maximum, logs.amax(-2))
        shrink = (self.maximum - maximum).exp()
        features = key.relative_to(maximum[..., None, :]) * (logs > EMPTY / 2)
        rotated = features if rotate is None else rotate(features)
        return State(
            self.sum * shrink[..., None] + rotated.transpose(-1, -2) @ value,
            self.normalizer * shrink + features.sum(-2),
            maximum,
            self.magnitude * shrink.amax(-1, keepdim=True) + features.detach().norm(dim=-1).sum(-1, keepdim=True),
        )


def joined(cache, key, value, mask):
    """Keys and values [B, H, w, d] and mask [B, w] with those of the cache first, and how many these are."""
    if not cache:
        return key, value, mask, 0
    seen, new = cache["key"].shape[2], key.shape[2]
    if mask is not None or cache["mask"] is not None:
        fill = lambda m, n: torch.ones(len(key), n, dtype=torch.bool, device=key.device) if m is None else m
        mask = torch.cat([fill(cache["mask"], seen), fill(mask, new)], 1)
    return torch.cat([cache["key"], key], 2), torch.cat([cache["value"], value], 2), mask, seen


def keep(cache, start, key, value, mask):
    """Those from `start` on, for later tokens."""
    cache.update(key=key[:, :, start:], value=value[:, :, start:], mask=None if mask is None else mask[:, start:])


class LinearAttention(nn.Module):
    """Linear attention of `heads` heads; with exact_window the nearest pairs have softmax's weights (windowed)."""

    def __init__(self, config, heads, kv_heads, hybrid):
        super().__init__()
        d = config.head_dim
        self.causal, self.chunk_size = config.causal, config.chunk_size
        self.exact_window = config.softmax_window if hybrid else 0
        self.window = 0 if hybrid else config.window
        self.reach = max(self.exact_window, self.window, 1) - 1  # earlier keys that a query meets pair by pair
        self.guard, self.divides = config.denominator_guard, config.normalizer == "sum"
        self.groups = heads // kv_heads
        self.rotary_base = None
        if config.position == "rotary" and config.rotary_placement == "numerator":
            self.rotary_base = config.rotary_base
        self.feature_map = FeatureMap(config)
        buffer = lambda name, *shape: self.register_buffer(name, torch.zeros(*shape))
        for name in ("directions", "query_center", "key_center", "scaling", "oprf_a"):
            self.register_buffer(name, None)
        if config.random_features > 0:
            buffer("directions", config.random_features, d)
        # Constants that Furlong measures in training. Here they stay what they are.
        if config.centering:
            buffer("query_center", heads, d)
            buffer("key_center", heads, d)
        if config.scaling == "saderf":
            buffer("scaling", heads, d)
        if config.feature_map == "oprf":
            buffer("oprf_a", heads)
        if config.centering or config.scaling != "none" or config.feature_map == "oprf":
            buffer("statistics", heads, 1 + 4 * d)  # what they are measured from
        if config.feature_map == "hedgehog":
            self.query_features = nn.Parameter(torch.eye(d).repeat(heads, 1, 1))
            self.key_features = nn.Parameter(torch.eye(d).repeat(kv_heads, 1, 1))
        if not self.divides:
            self.output_norm = nn.Parameter(torch.ones(heads * d))
        if hybrid:
            self.gate = nn.Parameter(torch.zeros(heads))

    def forward(self, query, key, value, tokens, cache=None):
        """query [B, H, n, d], key and value [B, H_kv, n, d] -> [B, H, n, d]."""
        dtype = query.dtype
        query, key, value = (x if x.dtype == torch.float64 else x.float() for x in (query, key, value))
        key, value, mask, seen = joined(cache, key, value, tokens.mask)
        positions = torch.cat([cache["positions"], tokens.positions], 1) if cache else tokens.positions
        with torch.autocast(query.device.type, enabled=False):  # logarithms take no bfloat16
            output, state = self.attend(query, key, value, mask, positions, seen, cache["state"] if cache else None)
        if cache is not None:
            start = max(key.shape[2] - self.reach, 0)
            keep(cache, start, key, value, mask)
            cache.update(positions=positions[:, start:], state=state)
        return output.to(dtype)

    def attend(self, query, key, value, mask, positions, first, state):
        """Queries `first`, `first` + 1, ... of the keys. `state` holds all keys that lie before these."""
        query, key, value, key_log = self.prepared(query, key, value)
        q = Features(query, *self.mapped(query, False))
        logs, values, _ = self.mapped(key, True)
        k = Features(key, logs + key_log, values, key_log)
        if mask is not None:
            k = k.masked(mask[:, None, :, None])
        rotate = None
        if self.rotary_base is not None:
            m = (k.logs if k.values is None else k.values).shape[-1]
            rotate = Rotation.at(positions, self.rotary_base, m, value.dtype)
        w = key.shape[2]

        def extended(state, start, stop):
            part = None if rotate is None else rotate.rows(start, stop)
            return state.extended(k.rows(start, stop), value[..., start:stop, :], part)

        state = state or State.empty(k, value)
        if not self.causal and not self.window and not self.exact_window:  # every query sees every key
            return self.combined(q, k, value, rotate, (0, w), (0, 0), [extended(state, 0, w)]), None
        chunks = [(c, min(c + self.chunk_size, w)) for c in range(first, w, self.chunk_size)]
        later = {}  # encoders: the keys after a chunk that are out of reach of all of its queries
        if not self.causal and not self.window:
            after, done = State.empty(k, value), w
            for start, stop in reversed(chunks):
                if (begin := min(stop + self.reach, w)) < done:
                    after, done = extended(after, begin, done), begin
                later[start] = after
        outputs, done = [], 0
        for start, stop in chunks:
            near = max(start - self.reach, 0), stop if self.causal else min(stop + self.reach, w)
            if near[0] > done and not self.window:
                state, done = extended(state, done, near[0]), near[0]
            states = [] if self.window else [state] + ([later[start]] if later else [])
            queries = q.rows(start - first, stop - first)
            outputs.append(self.combined(queries, k, value, rotate, (start, stop), near, states))
        if self.causal and not self.window and w - self.reach > done:
            state = extended(state, done, w - self.reach)
        return torch.cat(outputs, 2), state

    def prepared(self, query, key, value):
        """Queries and keys as the feature map takes them, and the logarithm that goes into each key's weight."""
        if self.feature_map.name == "hedgehog":
            query = torch.einsum("bhnc,hoc->bhno", query, self.query_features.to(query))
            key = torch.einsum("bhnc,hoc->bhno", key, self.key_features.to(key))
        if self.groups > 1:
            key, value = key.repeat_interleave(self.groups, 1), value.repeat_interleave(self.groups, 1)
        key_log = torch.zeros_like(key[..., :1])
        if self.query_center is not None:  # exp(q·k) = exp((q-a)·(k-b)) exp(a·(k-b)) times what depends on q alone
            a, b = self.query_center.to(query)[:, None], self.key_center.to(key)[:, None]
            query, key = query - a, key - b
            key_log = (a * key).sum(-1, keepdim=True) * key.shape[-1] ** -0.5
        if self.scaling is not None:
            psi = self.scaling.to(query)[:, None]
            query, key = query * psi, key / psi
        return query, key, value, key_log

    def mapped(self, x, is_key):
        to = lambda buffer: None if buffer is None else buffer.to(x)
        return self.feature_map(x, is_key, to(self.directions), to(self.oprf_a))

    def combined(self, q, k, value, rotate, queries, near, states):
        """
        Output of the queries in the range `queries`: pairs with the keys in the range `near`, and `states` of others,
        under one maximum for each query, `top`. The maxima are constants for autograd: they cancel.
        """
        turn_q = (lambda x: x) if rotate is None else rotate.rows(*queries)
        logs = q.logs.detach()
        if rotate is not None and q.values is None:
            logs = Rotation.larger_of_pairs(logs)
        tops = [(logs + state.maximum[..., None, :]).amax(-1, keepdim=True) for state in states]
        if near[1] > near[0]:
            value = value[..., near[0] : near[1], :]
            turn_k = (lambda x: x) if rotate is None else rotate.rows(*near)
            i = torch.arange(*queries, device=value.device)[:, None]
            j = torch.arange(*near, device=value.device)
            weight, turned, log, size, bound = self.pairs(q, k.rows(*near), i, j, turn_q, turn_k)
            tops.append((log + size).detach().amax(-1, keepdim=True))
        top = torch.stack(tops).amax(0)  # [B, H, n, 1]
        num = den = magnitude = 0
        if near[1] > near[0]:
            scale = (log - top).exp()  # [B, H, n, w]
            num, den = (turned * scale) @ value, (weight * scale).sum(-1, keepdim=True)
            magnitude = (bound * scale).detach().sum(-1, keepdim=True)
        for state in states:
            a = q.relative_to(top - state.maximum[..., None, :])  # [B, H, n, m]
            num = num + turn_q(a) @ state.sum
            den = den + a @ state.normalizer[..., None]
            magnitude = magnitude + a.detach().norm(dim=-1, keepdim=True) * state.magnitude[..., None]
        return self.normalized(num, den, magnitude)

    def pairs(self, q, k, i, j, turn_q, turn_k):
        """
        Of pairs [B, H, n, w]: w_ij = weight · exp(log); turned · exp(log), by which values are weighted; size, the
        logarithm of the larger factor; bound, |φ(q_i)| |φ(k_j)| exp(-log). i [n, 1] and j [w] are token indices.
        """
        r = q.logs.detach().amax(-1, keepdim=True)  # [B, H, n, 1]
        s = k.logs.detach().amax(-1, keepdim=True)  # [B, H, w, 1]
        a, b = q.relative_to(r), k.relative_to(s)
        weight = a @ b.transpose(-1, -2)
        turned = weight
        if isinstance(turn_q, Rotation):  # a token and itself are at one position: no rotation, and no rounding of one
            turned = torch.where(i == j, weight, turn_q(a) @ turn_k(b).transpose(-1, -2))
        log = (r + s.transpose(-1, -2)).expand_as(weight)
        visible = k.logs.detach().amax(-1)[..., None, :] > EMPTY / 2
        if self.causal:
            visible = visible & (j <= i)
        if self.window:
            visible = visible & ((i - j).abs() < self.window)
        visible = visible.expand_as(weight)
        exact = visible & ((i - j).abs() < self.exact_window)
        if self.exact_window:  # exp(q·k/√d + gate), relative to what the query's features leave out
            scores = (q.x * q.x.shape[-1] ** -0.5) @ k.x.transpose(-1, -2)
            scores = scores + self.gate.to(scores)[:, None, None] - q.row + k.row.transpose(-1, -2)
            log, weight = torch.where(exact, scores, log), weight.masked_fill(exact, 1)
            turned = weight
        size = torch.zeros_like(log)
        if q.values is None:
            lost = visible & ~exact & (weight < UNDERFLOW)
            if lost.any():
                weight, turned, log = self.summed_again(q, k, weight, turned, log, lost, turn_q, turn_k)
            size = torch.maximum(weight, turned.abs()).clamp(min=UNDERFLOW).log()
        hide = lambda x, by: x.masked_fill(~visible, by)
        bound = a.norm(dim=-1, keepdim=True) * b.norm(dim=-1)[..., None, :]
        return hide(weight, 0), hide(turned, 0), hide(log, EMPTY), hide(size, 0), hide(bound.masked_fill(exact, 1), 0)

    @staticmethod
    def summed_again(q, k, weight, turned, log, lost, turn_q, turn_k):
        """Pairs that share no large feature: log Σ_f exp(log φ_f(q) + log φ_f(k)), pair by pair."""
        b, h, i, j = where = lost.nonzero(as_tuple=True)
        x, y = q.logs[b, h, i], k.logs[b, h, j]  # [pairs, m]
        total = torch.logsumexp(x + y, -1)
        weight, log = weight.index_put(where, torch.ones_like(total)), log.index_put(where, total)
        if not isinstance(turn_q, Rotation):
            return weight, weight, log
        u, v = Rotation.larger_of_pairs(x.detach()), Rotation.larger_of_pairs(y.detach())
        x, y = turn_q.of(b, i)((x - u).exp()), turn_k.of(b, j)((y - v).exp())
        turned = turned.index_put(where, (x * y * (u + v - total[:, None]).exp()).sum(-1))
        return weight, turned, log

    def normalized(self, num, den, magnitude):
        if not self.divides:  # the root mean square of each head, times a learned gain
            B, H, n, d = num.shape
            largest = num.detach().abs().amax(-1, keepdim=True)
            x = num / largest.where(largest > 0, 1)
            square = x.square().mean(-1, keepdim=True)
            x = x / square.where(square > 0, 1).sqrt()
            return x * self.output_norm.to(x).view(1, H, 1, d)
        least = torch.finfo(den.dtype).tiny if self.rotary_base is None else UNDERFLOW
        guarded = den.detach().abs() < least
        if self.feature_map.signed:  # a denominator that is lost in the rounding of its terms
            guarded = guarded | (den.detach().abs() < self.guard * magnitude)
        return (num / den.masked_fill(guarded, 1)).masked_fill(guarded, 0)


class SoftmaxAttention(nn.Module):
    """Exact attention. A query that sees no key has output 0."""

    def __init__(self, config, heads, kv_heads):
        super().__init__()
        self.causal, self.window, self.groups = config.causal, config.window, heads // kv_heads

    def forward(self, query, key, value, tokens, cache=None):
        key, value, mask, _ = joined(cache, key, value, tokens.mask)
        if cache is not None:
            keep(cache, max(key.shape[2] - self.window + 1, 0) if self.window else 0, key, value, mask)
        n, w = query.shape[2], key.shape[2]
        i = torch.arange(w - n, w, device=key.device)[:, None]
        j = torch.arange(w, device=key.device)
        visible = (j <= i) if self.causal else torch.ones_like(j <= i)
        if self.window:
            visible = visible & ((i - j).abs() < self.window)
        visible = visible[None, None] if mask is None else visible & mask[:, None, None]
        return softmax_attention(query, key, value, visible, self.groups)


def softmax_attention(query, key, value, visible, groups):
    """visible [B or 1, 1, n, w]."""
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    blind = ~visible.any(-1, keepdim=True)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=visible | blind)
    return output.masked_fill(blind, 0)


class LinformerAttention(nn.Module):
    """softmax(Q (E K)ᵀ) F V: E and F project a sequence of n tokens to `projected_length` rows. Encoders only."""

    def __init__(self, config, heads, kv_heads):
        super().__init__()
        self.groups, self.kind = heads // kv_heads, config.projection
        self.rows, self.longest = config.projected_length, config.max_position_embeddings
        self.stride = -(-self.longest // self.rows)
        names = {"none": ["key_projection", "value_projection"], "heads": ["key_projection", "value_projection"]}
        for name in names.get(config.sharing, ["sequence_projection"] if config.sharing == "key_value" else []):
            if self.kind != "mean":
                setattr(self, name, nn.Parameter(projection_weight(config, kv_heads)))

    def forward(self, query, key, value, tokens, cache=None):
        if key.shape[2] > self.longest:
            raise ValueError(f"a sequence of {key.shape[2]} tokens; Linformer projects at most {self.longest}")
        weight = getattr(self, "sequence_projection", tokens.shared_projection)
        projected_key = self.projected(key, getattr(self, "key_projection", weight), tokens.mask)
        projected_value = self.projected(value, getattr(self, "value_projection", weight), tokens.mask)
        visible = torch.ones(1, 1, 1, projected_key.shape[2], dtype=torch.bool, device=key.device)
        if tokens.mask is not None and self.kind == "linear":  # every row reads the whole sequence
            visible = tokens.mask.any(-1)[:, None, None, None].expand(-1, -1, -1, self.rows)
        elif tokens.mask is not None:
            visible = self.windows(tokens.mask[:, None, :, None]).any(3)[..., 0][:, :, None]
        visible = visible.expand(-1, -1, query.shape[2], -1)
        return softmax_attention(query, projected_key, projected_value, visible, self.groups)

    def windows(self, x):
        """[B, H, n, d] -> [B, H, rows, stride, d], zeros after the end."""
        return F.pad(x, (0, 0, 0, -x.shape[2] % self.stride)).unflatten(2, (-1, self.stride))

    def projected(self, x, weight, mask):
        """[B, H, n, d] -> [B, H, rows, d]."""
        if mask is not None:
            x = x.masked_fill(~mask[:, None, :, None], 0)
        if self.kind == "linear":  # weight [rows, longest] or [H, rows, longest]
            return weight[..., : x.shape[2]].to(x.dtype) @ x
        if self.kind == "convolution":  # weight [d, stride] or [H d, stride]
            by_head = weight.to(x.dtype).unflatten(0, (-1, x.shape[-1])).transpose(-1, -2)  # [1 or H, stride, d]
            return (self.windows(x) * by_head[:, None]).sum(3)
        kept = torch.ones_like(x[:1, :1, :, :1]) if mask is None else mask[:, None, :, None].to(x.dtype)
        return self.windows(x).sum(3) / self.windows(kept).sum(3).clamp(min=1)


def projection_weight(config, kv_heads):
    """Zeros in the shape of Linformer's weight: one for all heads, or with sharing none one for each."""
    if config.projection == "linear":
        heads = (kv_heads,) if config.sharing == "none" else ()
        return torch.zeros(*heads, config.projected_length, config.max_position_embeddings)
    channels = config.head_dim * (kv_heads if config.sharing == "none" else 1)
    return torch.zeros(channels, -(-config.max_position_embeddings // config.projected_length))


def make_mechanism(config, name, heads, kv_heads):
    if name == "softmax":
        return SoftmaxAttention(config, heads, kv_heads)
    if name == "linformer":
        return LinformerAttention(config, heads, kv_heads)
    return LinearAttention(config, heads, kv_heads, hybrid=name == "windowed")
