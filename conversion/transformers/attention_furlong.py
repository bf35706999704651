"""
Attention of Furlong models in plain PyTorch: linear attention in log space, softmax, and Linformer.

Linear attention replaces softmax's exp(q·k/√d) by φ(q)·φ(k), φ a feature map with m features:

    output_i = Σ_j w_ij v_j / Σ_j w_ij        w_ij = Σ_f φ_f(q_i) φ_f(k_j)        (j <= i when causal)

Σ_j φ(k_j) v_jᵀ is a state of m × d numbers, so that cost is linear in length and generation needs no cache that grows.
φ spans hundreds of orders of magnitude (favor_positive is an exponential), so that it is never computed as such:
features are logarithms, and each sum is stored with a maximum that was taken out of it. No epsilon is added anywhere.

A causal sequence is cut into chunks, which are computed together. Inside a chunk weights are computed pair by pair;
keys of earlier chunks count through the state. Both parts meet under one maximum for each query
(LinearAttention.combined). Long sequences go through in segments of SEGMENT tokens, so that memory is bounded.

Shapes: B batch, H heads, T chunks, C queries of a chunk, n queries, w keys, m features, d width of a head.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from .features_furlong import EMPTY, FeatureMap, Features, rotation, rows_of, widened, windows_of

UNDERFLOW = 1e-30  # products of normalized features below this have lost digits, and are summed again from logarithms
SEGMENT = 4096  # tokens whose chunks are computed together
# Buffers of linear attention. They stay in float32 beside weights in float16 (statistics are beyond it) or bfloat16,
# except if transformers 4 loads them with device_map or low_cpu_mem_usage.
EXACT = ["directions", "query_center", "key_center", "scaling", "oprf_a", "statistics"]


@dataclass
class State:
    """Sums over keys, exp(-maximum) taken out of them: a maximum for each feature; of maps with values, one for all."""

    sum: torch.Tensor  # [..., m, d]: Σ_j φ(k_j) v_jᵀ
    normalizer: torch.Tensor  # [..., m]: Σ_j φ(k_j)
    maximum: torch.Tensor  # [..., m] or [..., 1]
    magnitude: torch.Tensor  # [..., 1]: Σ_j |φ(k_j)|

    @staticmethod
    def empty(key, value):
        B, H, _, m = (key.logs if key.values is None else key.values).shape
        zeros = lambda *shape: value.new_zeros(B, H, *shape)
        return State(zeros(m, value.shape[-1]), zeros(m), zeros(key.logs.shape[-1]) + EMPTY, zeros(1))

    @staticmethod
    def of(key, value):
        """key: Features of [..., w, m]; value [..., w, d]."""
        limits = key.limits()
        maximum = limits.amax(-2)
        features = key.relative_to(maximum[..., None, :]) * (limits > EMPTY / 2)
        magnitude = features.detach().norm(dim=-1).sum(-1, keepdim=True)
        return State(key.rotated(features).transpose(-1, -2) @ value, features.sum(-2), maximum, magnitude)

    def changed(self, change):
        return State(*map(change, vars(self).values()))

    def before_each(self, first):
        """
        self: sums of T chunks [B, H, T, ...]; first: sums [B, H, ...] of what precedes them. Returns the sums of
        `first` and the chunks before each chunk, [B, H, T, ...], and the sums of all.
        """
        pairs = zip(vars(first).values(), vars(self).values())
        parts = State(*(torch.cat([a[:, :, None], b], 2) for a, b in pairs))  # [B, H, 1 + T, ...]
        maximum = parts.maximum.cummax(2).values
        # Part c is in sum t if c <= t; then its maximum is the smaller one.
        share = parts.maximum[:, :, None] - maximum[:, :, :, None]  # [B, H, t, c, m]
        t = torch.arange(share.shape[2], device=share.device)
        share = share.masked_fill((t > t[:, None])[..., None], EMPTY).exp()
        sums = State(
            torch.einsum("bhtcm,bhcmd->bhtmd", share, parts.sum),
            torch.einsum("bhtcm,bhcm->bhtm", share, parts.normalizer),
            maximum,
            share.amax(-1) @ parts.magnitude,
        )
        return sums.changed(lambda x: x[:, :, :-1]), sums.changed(lambda x: x[:, :, -1])


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
        buffer = lambda name, *shape: self.register_buffer(name, torch.zeros(*shape, dtype=torch.float32))
        for name in EXACT:
            self.register_buffer(name, None)
        if config.random_features > 0:
            buffer("directions", config.random_features, d)
        # Constants that Furlong measures in training. Here they stay what they are.
        if config.centering:
            buffer("query_center", heads, d)
            buffer("key_center", heads, d)
        if config.scaling == "saderf":
            buffer("scaling", heads, d)
        if config.needs_oprf_a:
            buffer("oprf_a", heads)
        if config.centering or config.scaling != "none" or config.needs_oprf_a:
            buffer("statistics", heads, 1 + 4 * d)  # what they are measured from
        self.learns_inputs = config.learns_inputs
        if self.learns_inputs:
            self.query_features = nn.Parameter(torch.eye(d).repeat(heads, 1, 1))
            self.key_features = nn.Parameter(torch.eye(d).repeat(kv_heads, 1, 1))
        if not self.divides:
            self.output_norm = nn.Parameter(torch.ones(heads * d))
        if hybrid:
            self.gate = nn.Parameter(torch.zeros(heads))

    def _apply(self, *args, **options):
        exact = dict(self.named_buffers(recurse=False))
        super()._apply(*args, **options)
        for name, before in exact.items():
            after = getattr(self, name)
            if after.dtype in (torch.float16, torch.bfloat16):
                setattr(self, name, before.to(after.device, torch.float32))
        return self

    def forward(self, query, key, value, tokens, cache=None):
        """query [B, H, n, d], key and value [B, H_kv, n, d] -> [B, H, n, d]."""
        dtype = query.dtype
        query, key, value = (widened(x) for x in (query, key, value))
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
        q, k = Features(query, *self.mapped(query, False)), Features(key, *self.mapped(key, True))
        k = replace(k, logs=k.logs + key_log, row=key_log)
        if mask is not None:
            k = k.masked(mask[:, None, :, None])
        if self.rotary_base is not None:
            m = (k.logs if k.values is None else k.values).shape[-1]
            cos, sin = rotation(positions, self.rotary_base, m, value.dtype)
            q, k = replace(q, cos=cos[:, :, first:], sin=sin[:, :, first:]), replace(k, cos=cos, sin=sin)
        if not self.causal and not self.window and not self.exact_window:  # every query sees every key
            state = State.of(k, value).changed(lambda x: x[:, :, None])
            return self.combined(q.changed(lambda x: x[:, :, None]), [state]), None
        return self.in_segments(q, k, value, first, state or State.empty(k, value))

    def in_segments(self, q, k, value, first, state):
        n, w = q.x.shape[2], k.x.shape[2]
        C = -(-n // -(-n // self.chunk_size))  # chunks of equal length, so that little is padding
        step = C * max(1, min(64, SEGMENT // C))  # the sums before T chunks cost T²
        segments = [(start, min(start + step, w)) for start in range(first, w, step)]
        padded = lambda start, stop: -(-(stop - start) // C) * C  # tokens of whole chunks

        def chunk_sums(begin, end, count):
            """States of the chunks of keys [begin, begin + count), without those from `end` on."""
            features = k.rows(begin, end).rows(0, count)
            return State.of(features.windows(C, C), windows_of(rows_of(value, begin, begin + count), C, C))

        flipped = lambda state: state.changed(lambda x: x.flip(2))
        later = {}  # encoders: the keys after each chunk that are out of reach of all of its queries
        if not self.causal and not self.window:
            after = State.empty(k, value)
            for start, stop in reversed(segments):
                sums = chunk_sums(start + self.reach, w, padded(start, stop))
                states, after = flipped(sums).before_each(after)
                later[start] = [flipped(states)]
        outputs = []
        for start, stop in segments:
            begin, count = start - self.reach, padded(start, stop)
            states = []
            if not self.window:
                earlier, state = chunk_sums(begin, stop - self.reach, count).before_each(state)
                states = [earlier, *later.get(start, [])]
            end = start + count + (0 if self.causal else self.reach)
            queries = q.rows(start - first, start - first + count).windows(C, C)
            near = k.rows(begin, end), rows_of(value, begin, end)
            outputs.append(self.combined(queries, states, *near)[:, :, : stop - start])
        return torch.cat(outputs, 2), state

    def prepared(self, query, key, value):
        """Queries and keys as the feature map takes them, and the logarithm that goes into each key's weight."""
        if self.learns_inputs:
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

    def combined(self, q, states, k=None, value=None):
        """
        Output [B, H, T C, d] of queries, Features of [B, H, T, C, m]: over the `states` of their chunks, and pair by
        pair over the keys k and values [B, H, T C + overlap, d], under one maximum for each query, `top`. The maxima
        are constants for autograd: they cancel.
        """
        tops = [(q.limits() + state.maximum[..., None, :]).amax(-1, keepdim=True) for state in states]
        if k is not None:
            weight, turned, log, size, bound = self.pairs(q, k)
            tops.append((log.detach() + size).amax(-1, keepdim=True))
        # [B, H, T, C, 1]. Above EMPTY, so that hidden pairs are 0 where nothing is visible
        top = torch.stack(tops).amax(0).clamp(min=EMPTY / 2)
        num = den = magnitude = 0
        if k is not None:
            scale = (log - top).exp()  # [B, H, T, C, w]
            weighted = weight * scale
            C, w = weight.shape[-2:]
            num = (weighted if turned is weight else turned * scale) @ windows_of(value, w, C)
            den, magnitude = weighted.sum(-1, keepdim=True), (bound * scale.detach()).sum(-1, keepdim=True)
        for state in states:
            a = q.relative_to(top - state.maximum[..., None, :])  # [B, H, T, C, m]
            num = num + q.rotated(a) @ state.sum
            den = den + a @ state.normalizer[..., None]
            magnitude = magnitude + a.detach().norm(dim=-1, keepdim=True) * state.magnitude[..., None]
        return self.normalized(*(x.flatten(2, 3) for x in (num, den, magnitude)))

    def pairs(self, q, k):
        """
        Of pairs [B, H, T, C, w]: w_ij = weight · exp(log); turned · exp(log), by which values are weighted; size, the
        logarithm of the larger factor; bound, |φ(q_i)| |φ(k_j)| exp(-log). log is EMPTY where query i of a chunk does
        not see key j of those near the chunk.
        """
        C = q.x.shape[-2]
        width = C + (self.reach if self.causal else 2 * self.reach)
        near = lambda x: windows_of(x, width, C)
        across = lambda x: near(x).transpose(-1, -2)  # [B, H, T, ., w]
        r, s = q.logs.detach().amax(-1, keepdim=True), k.logs.detach().amax(-1, keepdim=True)
        a, b = q.relative_to(r), k.relative_to(s)
        weight = a @ across(b)
        i = torch.arange(C, device=weight.device)[:, None] + self.reach
        j = torch.arange(width, device=weight.device)
        visible = across(s) > EMPTY / 2
        if self.causal:
            visible = visible & (j <= i)
        if self.window:
            visible = visible & ((i - j).abs() < self.window)
        turned = weight
        if k.cos is not None:  # a token and itself are at one position: no rotation, and no rounding of one
            turned = torch.where(i == j, weight, q.rotated(a) @ across(k.rotated(b)))
        log = r + across(s)
        exact = visible & ((i - j).abs() < self.exact_window)
        if self.exact_window:  # exp(q·k/√d + gate), relative to what the query's features leave out
            scores = (q.x * q.x.shape[-1] ** -0.5) @ across(k.x)
            scores = scores + self.gate.to(scores)[:, None, None, None] - q.row + across(k.row)
            log, weight = torch.where(exact, scores, log), weight.masked_fill(exact, 1)
            turned = weight
        size = bound = torch.zeros_like(r)
        if q.values is None:
            lost = visible & ~exact & (weight < UNDERFLOW)
            if lost.any():
                weight, turned, log = self.summed_again(q, k, weight, turned, log, lost)
            size = torch.maximum(weight, turned.abs()).detach().clamp(min=UNDERFLOW).log()
        if self.feature_map.signed:
            bound = (a.norm(dim=-1, keepdim=True) * across(b.norm(dim=-1, keepdim=True))).detach().masked_fill(exact, 1)
        return weight, turned, log.masked_fill(~visible, EMPTY), size, bound

    @staticmethod
    def summed_again(q, k, weight, turned, log, lost):
        """Pairs that share no large feature: log Σ_f exp(log φ_f(q) + log φ_f(k)), pair by pair."""
        C, m = q.logs.shape[-2:]
        heads = lambda x: x.expand(-1, q.logs.shape[1], *x.shape[2:])
        where, found = lost.nonzero(as_tuple=True), []
        for b, h, t, i, j in zip(*(index.split(max(1, 2**22 // m)) for index in where)):  # in bounded memory
            x = q.changed(lambda part: heads(part)[b, h, t, i])  # [pairs, m]
            y = k.changed(lambda part: heads(part)[b, h, t * C + j])
            total = torch.logsumexp(x.logs + y.logs, -1)
            rotated = torch.ones_like(total)
            if k.cos is not None:
                u, v = x.limits(), y.limits()
                rotated = x.rotated((x.logs - u).exp()) * y.rotated((y.logs - v).exp())
                rotated = (rotated * (u + v - total[:, None]).exp()).sum(-1)
            found.append((total, rotated))
        total, rotated = map(torch.cat, zip(*found))
        weight, log = weight.index_put(where, torch.ones_like(total)), log.index_put(where, total)
        return weight, weight if k.cos is None else turned.index_put(where, rotated), log

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
        if mask is None and not self.window and (n == w or n == 1):
            return softmax_attention(query, key, value, None, self.groups, self.causal and n > 1)
        outputs, step = [], max(self.window, 1024) if self.window else n  # a window's n² pairs are never stored
        for start in range(w - n, w, step):
            stop = min(start + step, w)
            first = max(start - self.window + 1, 0) if self.window else 0
            last = stop if self.causal else min(stop + self.window - 1, w) if self.window else w
            i, j = torch.arange(start, stop, device=key.device)[:, None], torch.arange(first, last, device=key.device)
            visible = (j <= i) if self.causal else torch.ones_like(j <= i)
            if self.window:
                visible = visible & ((i - j).abs() < self.window)
            visible = visible[None, None] if mask is None else visible & mask[:, None, None, first:last]
            queries = query[:, :, start - w + n : stop - w + n]
            outputs.append(
                softmax_attention(queries, key[:, :, first:last], value[:, :, first:last], visible, self.groups)
            )
        return torch.cat(outputs, 2)


def softmax_attention(query, key, value, visible, groups, causal=False):
    """visible [B or 1, 1, n, w]; None: all keys, or with `causal` those up to each query."""
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if visible is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)
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
