"""Speed and memory of generation: the recurrent state of linear attention against the key-value cache of softmax. First
a model that continues prompts of growing length (furlong generate), then attention alone that processes a batch of
whole sequences one token at a time (furlong attend --mode recurrent)."""

import json

import h5py
import numpy as np

import plot
import reproduction

NAME = "generation_cost"
# Speed does not depend on the weights, so one step of training makes the model.
CONFIG = """seed: 1
model: {n_layers: 4, d_model: 256, n_heads: 4}
data: {task: copy, sequence_length: 64, batch_size: 1}
schedule: {warmup_steps: 1}
trainer: {max_steps: 1, validate_every: 0, validation_batches: 1}
log: {progress: none, level: error}
"""
HEADS, WIDTH = 4, 64


def attentions(arguments):
    """Name -> keys of model.attention. The options of furlong attend have the same values."""
    return {
        "softmax": {"mechanism": "softmax"},
        f"softmax, window {arguments.window}": {"mechanism": "softmax", "window": arguments.window},
        f"windowed {arguments.window} + favor_positive": {
            "mechanism": "windowed",
            "softmax_window": arguments.window,
            "feature_map": "favor_positive",
            "n_features": arguments.features,
        },
        "favor_positive": {"mechanism": "linear", "feature_map": "favor_positive", "n_features": arguments.features},
        "elu1": {"mechanism": "linear", "feature_map": "elu1"},
    }


def model_costs(arguments, folder, keys):
    """Seconds of a token after prompts of several lengths, without the prompt. The repeats of a length alternate with
    the other lengths."""
    settings = {f"model__attention__{key}": value for key, value in keys.items()}
    reproduction.train(folder, "model", arguments.threads, CONFIG, "--resume", "never", **settings)
    prompt = folder / "prompt.txt"

    def run(tokens):
        return reproduction.processor_seconds(
            *("generate", folder / "model", "--prompt-file", prompt, "--max-tokens", tokens),
            *("--temperature", 0, "--threads", arguments.threads, "--json"),
        )

    lengths = {n: {"prompt_tokens": n, "seconds": []} for n in arguments.prompts}
    for _ in range(arguments.repeats):
        for n, length in lengths.items():
            prompt.write_text(("<" + "0123456789" * (n // 10 + 1))[:n])
            output, spent = run(1 + arguments.tokens)  # the first token costs no step: it follows from the prompt
            found = json.loads(output)
            after = len(found["samples"][0]["tokens"])
            if found["prompt_tokens"] != n or after != 1 + arguments.tokens:
                expected = f"expected {n} and {1 + arguments.tokens}"
                raise SystemExit(f"{found['prompt_tokens']} and {after} tokens, {expected}")
            seconds = (1 + arguments.tokens) / found["tokens_per_second"]
            if arguments.processor_time:
                seconds = reproduction.difference([run(1)[1], spent])
            length["seconds"].append(seconds / arguments.tokens)
            length["state_bytes"] = found["state_bytes"]
    return list(lengths.values())


def write_inputs(path, batch, n):
    random = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        for name in ("query", "key", "value"):
            file[name] = random.standard_normal((batch, HEADS, n, WIDTH), dtype=np.float32)


def op_costs(arguments, folder, keys):
    words = ["--mechanism", keys["mechanism"]]
    for key, option in (("feature_map", "--feature-map"), ("n_features", "--features")):
        if key in keys:
            words += [option, keys[key]]
    if keys["mechanism"] == "windowed" or "window" in keys:
        words += ["--window", arguments.window]
    words += ["--mode", "recurrent", "--threads", arguments.threads, "--causal", "--json"]

    def run(batch, n):
        path = folder / f"input_{batch}_{n}.h5"
        if not path.exists():
            write_inputs(path, batch, n)
        return reproduction.processor_seconds("attend", "--input", path, "--output", folder / "output.h5", *words)

    for batch in arguments.batches:
        seconds = []
        for _ in range(arguments.repeats):
            output, spent = run(batch, arguments.length)
            found = json.loads(output)
            if arguments.processor_time:
                seconds.append(reproduction.difference([run(batch, 1)[1], spent]) / (arguments.length - 1))
            else:
                seconds.append(found["forward_seconds"] / arguments.length)
        yield {"batch": batch, "seconds": seconds, "peak_bytes": found["peak_bytes"]}


def measure(arguments, folder, result):
    result["model"], result["op"] = [], []
    for name, keys in attentions(arguments).items():
        for part, costs in (("model", model_costs), ("op", op_costs)):
            found = list(costs(arguments, folder, keys))
            for one in found:
                one["seconds"] = reproduction.spread(one["seconds"])
            result[part].append({"attention": name, "costs": found})


def rate(cost):
    """Tokens per second, all rows of the batch together."""
    return cost.get("batch", 1) / cost["seconds"]["median"]


def rates(cost):
    return reproduction.with_spread(cost["seconds"], lambda seconds: cost.get("batch", 1) / seconds)


def size(bytes, unit):
    return int(bytes / unit) if bytes % unit == 0 else bytes / unit


def tables(result):
    settings = result["settings"]
    prompts, batches = settings["prompts"], settings["batches"]
    chosen = sorted({0, len(prompts) // 2, len(prompts) - 1})
    shown = [prompts[i] for i in chosen]
    time = f"tokens per second of {reproduction.kind_of_time(result)}, {reproduction.samples_text(settings['repeats'])}"
    yield {
        "title": f"Model of 4 layers, d_model 256, 4 heads, float32: {settings['tokens']} tokens after a prompt, batch "
        f"1; {time}. State: allocated at the end of prompt and generated tokens.",
        "columns": [
            "attention",
            *(f"tokens/s after {n:,}" for n in shown),
            *(f"state at {n + settings['tokens']:,}, KiB" for n in shown),
        ],
        "rows": [
            [
                one["attention"],
                *(rates(one["costs"][i]) for i in chosen),
                *(size(one["costs"][i]["state_bytes"], 1024) for i in chosen),
            ]
            for one in result["model"]
        ],
    }
    yield {
        "title": f"Attention alone, {HEADS} heads of {WIDTH}, float32: sequences of {settings['length']:,} tokens, one "
        f"at a time; {time}.",
        "columns": [
            "attention",
            *(f"tokens/s, batch {batch}" for batch in batches),
            *(f"memory, batch {batch}, MiB" for batch in batches),
        ],
        "rows": [
            [one["attention"], *map(rates, one["costs"]), *(cost["peak_bytes"] / 2**20 for cost in one["costs"])]
            for one in result["op"]
        ],
    }


def draw(result, folder):
    figure, axes = plot.panels(4, rows=2, height=5.6)
    prompts, batches = result["settings"]["prompts"], result["settings"]["batches"]
    after = [n + result["settings"]["tokens"] for n in prompts]
    rate_label = f"tokens per s of {reproduction.kind_of_time(result)}"
    for index, (model, op) in enumerate(zip(result["model"], result["op"])):
        style = plot.style(index - 1 if index else None)
        axes[0].plot(prompts, list(map(rate, model["costs"])), label=model["attention"], **style)
        axes[1].plot(after, [cost["state_bytes"] / 2**20 for cost in model["costs"]], **style)
        axes[2].plot(batches, list(map(rate, op["costs"])), **style)
        axes[3].plot(batches, [cost["peak_bytes"] / 2**20 for cost in op["costs"]], **style)
    for panel, label in zip(axes, (rate_label, "state, MiB", rate_label, "memory, MiB")):
        plot.logarithmic(panel, label)
    for panel, tokens, label in ((axes[0], prompts, "tokens of the prompt"), (axes[1], after, "tokens in all")):
        plot.lengths_axis(panel, tokens, label)
        panel.set_title("model, batch 1")
    for panel in axes[2:]:
        plot.lengths_axis(panel, batches, "batch")
        panel.set_title(f"attention alone, all rows, {result['settings']['length']:,} tokens")
    plot.legend_below(figure, axes[0], 3)
    plot.save(figure, folder / f"{NAME}.svg")


def more(parser):
    parser.add_argument("--prompts", type=reproduction.integers, default="256,512,1024,2048,4096,8192,16384")
    parser.add_argument("--tokens", type=int, default=256, help="tokens to generate after a prompt")
    parser.add_argument("--batches", type=reproduction.integers, default="1,4,16")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence, attention alone")
    parser.add_argument("--repeats", type=int, default=5, help="the median counts")
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--window", type=int, default=256)
    reproduction.processor_time_option(parser)


if __name__ == "__main__":
    small = {"prompts": "16,32", "tokens": 4, "batches": "1,2", "length": 16, "repeats": 1, "features": 16}
    small["window"] = 4
    reproduction.reproduce(
        NAME, reproduction.options(NAME, __doc__, more, small), measure, draw, lambda result: list(tables(result))
    )
