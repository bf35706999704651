"""Speed and memory of generation: the recurrent state of linear attention against the key-value cache of softmax. A
model continues prompts of growing length, then many samples of one prompt at the same time (furlong generate)."""

import json
import re

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


def attentions(arguments):
    """Name -> keys of model.attention."""
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


def trained(arguments, folder, name, keys):
    """A model and its costs to measure: after prompts of several lengths for one sample, and after the prompt of
    --batch-prompt for several."""

    def cost(prompt_tokens, batch):
        return {"prompt_tokens": prompt_tokens, "batch": batch, "seconds": []}

    run = re.sub(r"\W+", "_", name)
    settings = {f"model__attention__{key}": value for key, value in keys.items()}
    reproduction.train(folder, run, arguments.threads, CONFIG, "--resume", "never", **settings)
    return {
        "attention": name,
        "run": run,
        "by_prompt": [cost(n, 1) for n in arguments.prompts],
        "by_batch": [cost(arguments.batch_prompt, batch) for batch in arguments.batches],
    }


def add_sample(arguments, folder, run, cost):
    """Measures the seconds of a step, without the prompt."""
    prompt, n, batch = folder / "prompt.txt", cost["prompt_tokens"], cost["batch"]

    def generate(tokens):
        return reproduction.processor_seconds(
            *("generate", folder / run, "--prompt-file", prompt, "--max-tokens", tokens),
            *("--samples", batch, "--batch-size", batch),
            *("--temperature", 0, "--threads", arguments.threads, "--json"),
        )

    prompt.write_text(("<" + "0123456789" * (n // 10 + 1))[:n])
    tokens = 1 + arguments.tokens  # the first token costs no step: it follows from the prompt
    output, spent = generate(tokens)
    result = json.loads(output)
    counts = [len(sample["tokens"]) for sample in result["samples"]]
    if result["prompt_tokens"] != n or counts != [tokens] * batch:
        raise SystemExit(f"{result['prompt_tokens']} and {counts} tokens, expected {n} and {tokens}")
    seconds = arguments.tokens * batch / result["tokens_per_second"]
    if arguments.processor_time:
        seconds = reproduction.difference([generate(1)[1], spent])
    cost["seconds"].append(seconds / arguments.tokens)
    cost["state_bytes"] = result["state_bytes"] * batch


def measure(arguments, folder, result):
    """The repeats of one number alternate with all others."""
    models = [trained(arguments, folder, name, keys) for name, keys in attentions(arguments).items()]
    for _ in range(arguments.repeats):
        for model in models:
            for cost in model["by_prompt"] + model["by_batch"]:
                add_sample(arguments, folder, model["run"], cost)
    for model in models:
        del model["run"]
        for cost in model["by_prompt"] + model["by_batch"]:
            cost["seconds"] = reproduction.spread(cost["seconds"])
    result["costs"] = models


def rate(cost):
    """Tokens per second, all samples together."""
    return cost["batch"] / cost["seconds"]["median"]


def rates(cost):
    return reproduction.with_spread(cost["seconds"], lambda seconds: cost["batch"] / seconds)


def size(bytes, unit):
    return int(bytes / unit) if bytes % unit == 0 else bytes / unit


def tables(result):
    settings = result["settings"]
    prompts, batches = settings["prompts"], settings["batches"]
    chosen = sorted({0, len(prompts) // 2, len(prompts) - 1})
    shown = [prompts[i] for i in chosen]
    time = f"tokens per second of {reproduction.kind_of_time(result)}, {reproduction.samples_text(settings['repeats'])}"
    yield {
        "title": f"Model of 4 layers, d_model 256, 4 heads, float32: {settings['tokens']} tokens after a prompt, one "
        f"sample; {time}. State: allocated at the end of prompt and generated tokens.",
        "columns": [
            "attention",
            *(f"tokens/s after {n:,}" for n in shown),
            *(f"state at {n + settings['tokens']:,}, KiB" for n in shown),
        ],
        "rows": [
            [
                one["attention"],
                *(rates(one["by_prompt"][i]) for i in chosen),
                *(size(one["by_prompt"][i]["state_bytes"], 1024) for i in chosen),
            ]
            for one in result["costs"]
        ],
    }
    yield {
        "title": f"The same model: samples of one prompt of {settings['batch_prompt']:,} tokens, computed at the same "
        f"time; {time}, all samples together.",
        "columns": [
            "attention",
            *(f"tokens/s, {batch} {'sample' if batch == 1 else 'samples'}" for batch in batches),
            f"state of {batches[-1]}, MiB",
        ],
        "rows": [
            [one["attention"], *map(rates, one["by_batch"]), size(one["by_batch"][-1]["state_bytes"], 2**20)]
            for one in result["costs"]
        ],
    }


def draw(result, folder):
    figure, axes = plot.panels(4, rows=2, height=5.6)
    settings = result["settings"]
    after = [n + settings["tokens"] for n in settings["prompts"]]
    rate_label = f"tokens per s of {reproduction.kind_of_time(result)}"
    for index, one in enumerate(result["costs"]):
        style = plot.style(index - 1 if index else None)
        states = {key: [cost["state_bytes"] / 2**20 for cost in one[key]] for key in ("by_prompt", "by_batch")}
        axes[0].plot(settings["prompts"], list(map(rate, one["by_prompt"])), label=one["attention"], **style)
        axes[1].plot(after, states["by_prompt"], **style)
        axes[2].plot(settings["batches"], list(map(rate, one["by_batch"])), **style)
        axes[3].plot(settings["batches"], states["by_batch"], **style)
    for panel, label in zip(axes, (rate_label, "state, MiB", rate_label, "state, MiB")):
        plot.logarithmic(panel, label)
    plot.lengths_axis(axes[0], settings["prompts"], "tokens of the prompt")
    plot.lengths_axis(axes[1], after, "tokens in all")
    for panel in axes[:2]:
        panel.set_title("one sample")
    for panel in axes[2:]:
        plot.lengths_axis(panel, settings["batches"], "samples")
        panel.set_title(f"all samples, {settings['batch_prompt']:,} tokens of prompt")
    plot.legend_below(figure, axes[0], 3)
    plot.save(figure, folder / f"{NAME}.svg")


def more(parser):
    parser.add_argument("--prompts", type=reproduction.integers, default="256,1024,4096,16384")
    parser.add_argument("--tokens", type=int, default=256, help="tokens to generate after a prompt")
    parser.add_argument("--batches", type=reproduction.integers, default="1,4,16", help="samples at the same time")
    parser.add_argument("--batch-prompt", type=int, default=2048, help="tokens of the prompt of several samples")
    parser.add_argument("--repeats", type=int, default=5, help="the median counts")
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--window", type=int, default=256)
    reproduction.processor_time_option(parser)


if __name__ == "__main__":
    small = {"prompts": "16,32", "tokens": 4, "batches": "1,2", "batch_prompt": 16, "repeats": 1, "features": 16}
    small["window"] = 4
    reproduction.reproduce(
        NAME, reproduction.options(NAME, __doc__, more, small), measure, draw, lambda result: list(tables(result))
    )
