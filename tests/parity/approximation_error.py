#!/usr/bin/env python3
"""Computes errors of linear attention compared with exact softmax, from the definitions, with numpy alone. The figures
in tests/evaluation/analyze/test_analyze.cpp and the table in docs/internals/numerics.md ("Measured approximation
error") are checked against them.

Prints, for each standard deviation of the entries of Gaussian q and k (n = 512, d = 64, bidirectional, 256 features;
values of deviation 1), the median over draws of |output - softmax output| / |softmax output|. Every draw has its own
queries, keys, values and random projection. 80 draws take under a minute on two cores.
"""

import argparse

import numpy as np

N, D, FEATURES = 512, 64, 256
DEVIATIONS = (0.25, 0.5, 0.7, 1.0)


def orthogonal_directions(random, count, fixed_norm):
    """Blocks of d orthonormal rows, uniform over rotations; norms those of Gaussian vectors, or all sqrt(d)."""
    blocks = []
    for _ in range(-(-count // D)):
        q, r = np.linalg.qr(random.standard_normal((D, D)))
        blocks.append((q * np.sign(np.diag(r))).T)
    norms = np.sqrt(D) if fixed_norm else np.sqrt(random.chisquare(D, (count, 1)))
    return np.concatenate(blocks)[:count] * norms


def positive(x, directions):
    """exp(w.x - |x|^2 / 2) (Choromanski et al. 2021, lemma 1), without the factor that all features share."""
    return np.exp(x @ directions.T - (x * x).sum(1, keepdims=True) / 2)


def hyperbolic(x, directions):
    return np.concatenate([positive(x, directions), positive(x, -directions)], axis=1)


def oprf_weights(q, k, directions, scale):
    """Likhosherstov et al. 2022 (FAVOR++, theorem 3.1): A from the mean of |q + k|^2; `scale` multiplies q and divides
    k (SADERF)."""
    q, k = q * scale, k / scale
    phi = ((q * q).sum(1).mean() + (k * k).sum(1).mean() + 2 * q.mean(0) @ k.mean(0)) / D
    a = (1 - 2 * phi - np.sqrt((2 * phi + 1) ** 2 + 8 * phi)) / 16
    b = np.sqrt(1 - 4 * a)

    def features(x):
        squares = (directions * directions).sum(1)
        return np.exp(a * squares + b * (x @ directions.T) - (x * x).sum(1, keepdims=True) / 2)

    return features(q) @ features(k).T


def errors_of_a_draw(random, deviation):
    q, k = (random.standard_normal((N, D)) * deviation * D**-0.25 for _ in range(2))
    v = random.standard_normal((N, D))

    def output(weights):
        return weights / weights.sum(1, keepdims=True) @ v

    scores = q @ k.T
    exact = output(np.exp(scores))
    directions = orthogonal_directions(random, FEATURES, False)
    fixed = orthogonal_directions(random, FEATURES, True)
    half = directions[: FEATURES // 2]
    saderf = ((k * k).sum(0) / (q * q).sum(0)) ** 0.25
    weights = {
        "uniform": np.ones((N, N)),
        "favor_positive orthogonal": positive(q, directions) @ positive(k, directions).T,
        "favor_positive orthogonal_fixed_norm": positive(q, fixed) @ positive(k, fixed).T,
        "favor_hyperbolic orthogonal": hyperbolic(q, half) @ hyperbolic(k, half).T,
        "oprf orthogonal": oprf_weights(q, k, directions, np.ones(D)),
        "oprf+saderf orthogonal": oprf_weights(q, k, directions, saderf),
        "taylor:1": 1 + scores,
        "taylor:2": 1 + scores + scores**2 / 2,
    }
    return {name: np.linalg.norm(output(w) - exact) / np.linalg.norm(exact) for name, w in weights.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    columns = []
    for deviation in DEVIATIONS:
        draws = [errors_of_a_draw(random, deviation) for _ in range(arguments.draws)]
        columns.append({name: float(np.median([draw[name] for draw in draws])) for name in draws[0]})
    print(f"{'attention':38}" + "".join(f"{deviation:>10}" for deviation in DEVIATIONS))
    for name in columns[0]:
        print(f"{name:38}" + "".join(f"{column[name]:10.3g}" for column in columns))


if __name__ == "__main__":
    main()
