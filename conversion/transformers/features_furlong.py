"""Feature maps φ of linear attention in log space, and rotations by position. `furlong export` writes this file."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn

EMPTY = -1e30  # the logarithm of nothing. Finite: -inf - -inf is NaN


def widened(x):
    """x in float32; in float64 if it is."""
    return x if x.dtype == torch.float64 else x.float()


def angles_of(positions, frequencies):
    """Positions [B, n] times frequencies, a list [c], in float64 [B, n, c]; on the CPU for devices without it."""
    device = torch.device("cpu") if positions.device.type == "mps" else positions.device
    return positions.to(device)[..., None].double() * torch.tensor(frequencies, dtype=torch.float64, device=device)


def rows_of(x, begin, end, fill=0.0):
    """Rows [begin, end) of x [..., n, c]. Those before 0 and from n on are `fill`."""
    n, count = x.shape[-2], max(end - begin, 0)
    inside = x[..., min(max(begin, 0), n) : min(max(end, 0), n), :]
    before = min(max(-begin, 0), count)
    return F.pad(inside, (0, 0, before, count - before - inside.shape[-2]), value=fill)


def windows_of(x, width, step):
    """[..., n, c] -> [..., windows, width, c]: rows [0, width), [step, step + width), ..."""
    return x.unflatten(-2, (-1, step)) if width == step else x.unfold(-2, width, step).transpose(-1, -2)


@dataclass
class Features:
    """φ = values · exp(logs). Maps with positive features have no values: φ = exp(logs)."""

    x: torch.Tensor  # [..., n, d]: what they are features of
    logs: torch.Tensor  # [..., n, m]; with values [..., n, 1]
    values: Optional[torch.Tensor]  # [..., n, m]
    row: torch.Tensor  # [..., n, 1]. Of a query: left out of its logs, where it cancels. Of a key: added to them
    cos: Optional[torch.Tensor] = None  # [..., n, m/2]: a rotation of features that weight values
    sin: Optional[torch.Tensor] = None

    def changed(self, change, logs=None):
        others = (None if part is None else change(part) for part in (self.values, self.row, self.cos, self.sin))
        return Features(change(self.x), (logs or change)(self.logs), *others)

    def rows(self, begin, end):
        """Rows outside the sequence are hidden keys."""
        return self.changed(lambda x: rows_of(x, begin, end), lambda logs: rows_of(logs, begin, end, EMPTY))

    def windows(self, width, step):
        return self.changed(lambda x: windows_of(x, width, step))

    def masked(self, mask):
        """mask [B, 1, n, 1]: False makes φ zero."""
        values = None if self.values is None else self.values.masked_fill(~mask, 0)
        return replace(self, logs=self.logs.masked_fill(~mask, EMPTY), values=values)

    def relative_to(self, maximum):
        """φ · exp(-maximum)."""
        scaled = (self.logs - maximum).clamp(max=1).exp()  # 0 at most, but for rounding and sums over nothing
        return scaled if self.values is None else scaled * self.values

    def rotated(self, x):
        """Rotates the pair of features (f, f + ⌊m/2⌋); the last of an odd number stays."""
        if self.cos is None:
            return x
        h = x.shape[-1] // 2
        a, b, rest = x[..., :h], x[..., h : 2 * h], x[..., 2 * h :]
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos, rest], -1)

    def limits(self):
        """Logarithms that bound the features, one for both features of a rotated pair. Constants for autograd."""
        logs = self.logs.detach()
        return logs if self.cos is None or self.values is not None else larger_of_pairs(logs)


def larger_of_pairs(x):
    h = x.shape[-1] // 2
    larger = torch.maximum(x[..., :h], x[..., h : 2 * h])
    return torch.cat([larger, larger, x[..., 2 * h :]], -1)


def rotation(positions, base, m, dtype):
    """Cosines and sines [B, 1, n, m/2] of position · base^(-2f/m)."""
    angles = angles_of(positions, [base ** (-2 * f / m) for f in range(m // 2)])[:, None]
    return tuple(part.to(dtype).to(positions.device) for part in (angles.cos(), angles.sin()))


def rotated(x, rotary):
    """x [B, H, n, d]: rotates the pair of dimensions (i, i + d/2)."""
    cos, sin = (part.to(x.dtype) for part in rotary)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class FeatureMap(nn.Module):
    """φ by name; definitions are in Furlong's docs/internals/numerics.md. x' = x d^(-1/4), so q'·k' = q·k/√d."""

    def __init__(self, config):
        super().__init__()
        self.name, self.order, self.epsilon = config.feature_map, config.order, config.kernel_epsilon
        self.signed = config.signed_features  # sums of weights can cancel

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
        if self.name not in ("favor_positive", "favor_hyperbolic", "favor_trig", "favor_relu", "oprf"):
            raise ValueError(f"feature map {self.name} is unknown to this version of features_furlong.py")
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
        # What remains is favor_positive: exp(u - half).
        return u - half if is_key else u, None, row

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
