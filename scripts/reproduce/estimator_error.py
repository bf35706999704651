"""Error of random-feature attention against the number m of features, for every random feature map and distribution of
the random projection, next to deterministic maps and to uniform attention. After figure 4 of Choromanski et al. 2021
(arXiv:2009.14794): Gaussian queries and keys of width 16, 15 samples with their own projections."""

import json

import h5py
import numpy as np

import plot
import reproduction

NAME = "estimator_error"


def inputs(arguments, path):
    """Writes query, key and value [1, samples, n, d], Gaussian of deviation 1; each head is one sample."""
    random = np.random.default_rng(arguments.seed)
    shape = (1, arguments.samples, arguments.length, arguments.width)
    tensors = [random.standard_normal(shape) for _ in range(3)]
    with h5py.File(path, "w") as file:
        for name, tensor in zip(("query", "key", "value"), tensors):
            file[name] = tensor
    return [tensor[0] for tensor in tensors]


def softmax(query, key, value):
    scores = query @ key.T / np.sqrt(query.shape[1])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ value


def favor_positive(query, key, value, projection):
    """FAVOR+ with the features exp(w.x - |x|^2 / 2) (Choromanski et al. 2021, lemma 1)."""

    def features(x):
        x = x * x.shape[1] ** -0.25
        return np.exp(x @ projection.T - (x * x).sum(1, keepdims=True) / 2)

    query, key = features(query), features(key)
    return query @ (key.T @ value) / (query @ key.sum(0))[:, None]


def distance(output, exact):
    return float(np.linalg.norm(output - exact) / np.linalg.norm(exact))


def attended(folder, *words):
    """Output [heads, n, d] of furlong attend in float64, and its random projection."""
    path = folder / "output.h5"
    reproduction.furlong(
        *("attend", "--input", folder / "input.h5", "--output", path, "--dtype", "float64", *words, "--json")
    )
    with h5py.File(path) as file:
        projection = file["random_projection"][()] if "random_projection" in file else None
        return file["output"][0], projection


def check(arguments, folder, tensors, settings):
    """Compares the program with numpy in float64: exact softmax, FAVOR+ with the program's own projection, and the
    errors of uniform attention. Ends the script if they differ."""
    samples = list(zip(*tensors))
    exact, _ = attended(folder, "--mechanism", "softmax")
    favor, projection = attended(folder, "--mechanism", "linear", "--features", min(arguments.features))
    ours = [favor_positive(*sample, projection) for sample in samples]
    found = {
        "softmax": max(distance(one, softmax(*sample)) for one, sample in zip(exact, samples)),
        "favor_positive": max(map(distance, favor, ours)),
        "uniform_error": 0.0,
    }
    for setting in settings:
        for error, (query, key, value) in zip(setting["uniform_error_of_heads"], samples):
            exact = softmax(query * setting["norm_scale"], key * setting["norm_scale"], value)
            uniform = distance(np.broadcast_to(value.mean(0), value.shape), exact)
            found["uniform_error"] = max(found["uniform_error"], abs(error - uniform))
    if max(found.values()) > 1e-10:
        raise SystemExit(f"furlong and numpy differ by {found}; expected at most 1e-10")
    return found


def measure(arguments, folder, result):
    tensors = inputs(arguments, folder / "input.h5")
    maps = reproduction.choices("model", "attention", "feature_map")
    kinds = reproduction.choices("model", "attention", "random_projection")
    file = folder / "analyze.json"
    reproduction.furlong(
        *("analyze", "attention", "--input", folder / "input.h5", "--feature-maps", ",".join(maps), "--draws", 1),
        *("--random-projection", ",".join(kinds), "--features", ",".join(map(str, arguments.features))),
        *("--norm-scale", ",".join(map(str, arguments.std))),
        *("--threads", arguments.threads, "--seed", arguments.seed, "--json-file", file),
    )
    settings = json.loads(file.read_text())["settings"]
    result["largest_difference_from_numpy"] = check(arguments, folder, tensors, settings)
    result["inputs"] = [
        {
            "std": setting["norm_scale"],
            "query_norm": setting["query_norm"],
            "key_norm": setting["key_norm"],
            "uniform": summary(setting["uniform_error_of_heads"]),
            "attention": [
                {
                    **{key: one[key] for key in ("map", "random_projection", "m")},
                    "error": summary(one["error_of_heads"]),
                }
                for one in setting["attention"]
            ],
        }
        for setting in settings
    ]


def summary(errors):
    """Median and quartiles: single draws of trigonometric features are a thousand times worse than the median."""
    low, median, high = (float(value) for value in np.quantile(errors, [0.25, 0.5, 0.75]))
    return {"median": median, "quartiles": [low, high], "samples": [float(f"{error:.6g}") for error in errors]}


def series(inputs):
    """Errors by map and projection: {(map, projection): {m: error}}; projection is empty for deterministic maps."""
    found = {}
    for one in inputs["attention"]:
        found.setdefault((one["map"], one["random_projection"]), {})[one["m"]] = one["error"]
    return found


def tables(result):
    features = result["settings"]["features"]
    for inputs in result["inputs"]:
        rows = [["uniform", "", *[inputs["uniform"]["median"]] * len(features)]]
        rows += [
            [name, kind, *(errors[m]["median"] for m in features)]
            for (name, kind), errors in series(inputs).items()
            if kind
        ]
        yield {
            "title": f"Relative error of the output, median of {result['settings']['samples']} samples; entries of "
            f"deviation {inputs['std']:g}, ‖q‖ = {inputs['query_norm']:.2g}.",
            "columns": ["feature map", "random projection", *(f"m = {m:,}" for m in features)],
            "rows": rows,
        }
    fixed = [[one["map"], one["m"]] for one in result["inputs"][0]["attention"] if not one["random_projection"]]
    for row in fixed:
        row += [series(inputs)[row[0], ""][row[1]]["median"] for inputs in result["inputs"]]
    yield {
        "title": "Deterministic feature maps.",
        "columns": ["feature map", "m", *(f"error, deviation {inputs['std']:g}" for inputs in result["inputs"])],
        "rows": fixed,
    }


def draw(result, folder):
    rows = len(result["inputs"])
    figure, axes = plot.panels(2 * rows, rows=rows, height=2 + 2.4 * rows)
    features = result["settings"]["features"]
    for row, inputs in enumerate(result["inputs"]):
        errors = {key: value for key, value in series(inputs).items() if key[1]}
        for panel, title, chosen in (
            (axes[2 * row], "orthogonal projections", [(key[0], key) for key in errors if key[1] == "orthogonal"]),
            (axes[2 * row + 1], "favor_positive", [(key[1], key) for key in errors if key[0] == "favor_positive"]),
        ):
            lowest = inputs["uniform"]["median"]
            for index, (name, key) in enumerate(chosen):
                style = plot.style(index, markers=False)
                found = [errors[key][m] for m in features]
                panel.plot(features, [error["median"] for error in found], label=name, **style)
                low, high = zip(*(error["quartiles"] for error in found))
                panel.fill_between(features, low, high, color=style["color"], alpha=0.2, linewidth=0)
                lowest = min(lowest, *low)
            panel.axhline(inputs["uniform"]["median"], color=plot.INK, linestyle="--", label="uniform attention")
            panel.set_ylim(0.8 * lowest, 5)  # trigonometric features can be far worse
            plot.lengths_axis(panel, features, "random features m")
            plot.logarithmic(panel, "relative error")
            panel.set_title(f"{title}, ‖q‖ = {inputs['query_norm']:.2g}")
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    for panel, side in zip(axes[-2:], (0.28, 0.78)):
        figure.legend(*panel.get_legend_handles_labels(), loc="lower center", ncol=2, bbox_to_anchor=(side, 0))
    plot.save(figure, folder / f"{NAME}.svg")


def more(parser):
    parser.add_argument("--length", type=int, default=1024, help="queries and keys of a sample")
    parser.add_argument("--width", type=int, default=16, help="of queries, keys and values")
    parser.add_argument("--std", type=numbers, default="0.5,1", help="standard deviations of the entries of q and k")
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--features", type=reproduction.integers, default="16,32,64,128,256")
    parser.add_argument("--seed", type=int, default=1)


def numbers(text):
    return [float(word) for word in text.split(",")]


if __name__ == "__main__":
    small = {"length": 64, "width": 4, "samples": 3, "features": "8,16"}
    options = reproduction.options(NAME, __doc__, more, small)
    reproduction.reproduce(NAME, options, measure, draw, lambda result: list(tables(result)))
