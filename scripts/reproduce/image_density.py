"""Autoregressive models of pictures, pixel by pixel (Fashion-MNIST, 28 x 28 gray pixels): held-out bits per dimension
during training, and pictures generated per second. After section 4.2 of Katharopoulos et al. 2020 (arXiv:2006.16236)
and figure 4 of Choromanski et al. 2021 (arXiv:2009.14794)."""

import json
import math
import os
import pathlib
import struct
import subprocess

import plot
import reproduction

NAME = "image_density"
ATTENTIONS = {
    "softmax": {"mechanism": "softmax"},
    "elu1": {"mechanism": "linear", "feature_map": "elu1"},
    "favor_positive": {"mechanism": "linear", "feature_map": "favor_positive"},
}
CONFIG = """seed: 1
model:
  n_layers: {layers}
  d_model: {d_model}
  n_heads: 4
  d_feedforward: {d_feedforward}
  position: learned
data: {{dataset: "{train}", sequence_length: {pixels}, batch_size: {batch}, sampler: documents}}
optimizer: {{learning_rate: {learning_rate}, weight_decay: 0.01}}
schedule: {{name: cosine, warmup_steps: {warmup}, final_fraction: 0.05}}
trainer: {{max_steps: {steps}, validate_every: {every}, validation_batches: {batches}}}
checkpoint: {{every: {steps}}}
log: {{every: {every}, progress: none, level: error}}
"""


def prepare(arguments, folder):
    """Returns the datasets of training and validation, and of the test. Their tokens are pixels, their documents
    pictures."""
    if arguments.side != 28:
        return [random_pictures(folder, name, arguments.side, count) for name, count in (("train", 64), ("test", 16))]
    data = pathlib.Path(os.environ.get("FURLONG_DATA", reproduction.ROOT / "data"))
    environment = {**os.environ, "FURLONG_DATA": str(data), "FURLONG": reproduction.FURLONG}
    for name in ("fashion_train", "fashion_test"):
        subprocess.run([reproduction.ROOT / "scripts/prepare_data.sh", name], check=True, env=environment)
    return data / "fashion_train.h5", data / "fashion_test.h5"


def random_pictures(folder, name, side, count):
    """A dataset of gradients, for tests."""
    pixels = bytes(4 * (i + x + y) % 256 for i in range(count) for y in range(side) for x in range(side))
    path = folder / f"{name}.idx"
    path.write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, count, side, side) + pixels)
    split = "train:0.7,validation:0.3" if name == "train" else "train:1"
    reproduction.furlong(*("prepare", "images", path, "--output", path.with_suffix(".h5"), "--split", split, "--force"))
    return path.with_suffix(".h5")


def generated(arguments, folder, run):
    """Pictures generated one after another, and seconds for each."""
    prompt = folder / "black_pixel"
    prompt.write_bytes(b"\0")  # pictures begin with a black pixel
    pixels = arguments.side**2
    found = []
    for seed in range(1, arguments.pictures + 1):
        words = ("generate", run, "--prompt-file", prompt, "--max-tokens", pixels - 1, "--seed", seed, "--json")
        output, processor = reproduction.processor_seconds(*words, "--threads", arguments.threads)
        one = json.loads(output)
        seconds = processor if arguments.processor_time else (pixels - 1) / one["tokens_per_second"]
        found.append({"seconds": seconds, "pixels": [0, *one["samples"][0]["tokens"]]})
    return found


def measure(arguments, folder, result):
    train, test = prepare(arguments, folder)
    result["runs"] = []
    values = {**vars(arguments), "train": train, "pixels": arguments.side**2}
    values.update(d_feedforward=4 * arguments.d_model, warmup=max(1, arguments.steps // 20))
    for name, keys in ATTENTIONS.items():
        settings = {f"model__attention__{key}": value for key, value in keys.items()}
        if name == "favor_positive":
            settings["model__attention__n_features"] = arguments.features
        lines, seconds = reproduction.train_whole(folder, name, arguments.threads, CONFIG.format(**values), **settings)
        found = json.loads(
            reproduction.furlong(
                *("evaluate", folder / name, "--data", test, "--split", "train", "--json"),
                *("--max-batches", arguments.test_batches, "--threads", arguments.threads),
            )
        )
        pictures = generated(arguments, folder, folder / name)
        result["runs"].append(
            {
                "attention": name,
                "validation": [
                    {"step": line["step"], "bits": line["loss"] / math.log(2)}
                    for line in lines
                    if line["split"] == "validation"
                ],
                "test_bits": found["loss"] / math.log(2),
                "baseline_bits": found["baseline_loss"] / math.log(2),
                "test_pixels": found["targets"],
                "training_seconds": seconds,
                "picture_seconds": reproduction.spread([one["seconds"] for one in pictures]),
                "picture": pictures[0]["pixels"],
            }
        )


def tables(result):
    settings, runs = result["settings"], result["runs"]
    pixels = settings["side"] ** 2
    time = reproduction.kind_of_time(result)
    title = (
        f"{settings['layers']} layers, d_model {settings['d_model']}, 4 heads, float32, {settings['steps']:,} steps of "
        f"{settings['batch']} pictures of {settings['side']} x {settings['side']} pixels "
        f"({settings['steps'] * settings['batch'] * pixels / 1e6:.3g} M pixels). Bits per dimension: of "
        f"{runs[0]['test_pixels']:,} held-out pixels, all but the first of each picture; by the frequencies of "
        f"their own gray values alone {runs[0]['baseline_bits']:.3f}. Pictures per second of {time}, batch 1, "
        f"{reproduction.samples_text(settings['pictures'])}; training: minutes of processor time."
    )
    rows = [
        [
            run["attention"],
            run["test_bits"],
            run["training_seconds"] / 60,
            reproduction.with_spread(run["picture_seconds"], lambda seconds: 1 / seconds),
        ]
        for run in runs
    ]
    columns = ["attention", "bits per dimension", "training, min", "pictures/s"]
    return [{"title": title, "columns": columns, "rows": rows}]


def draw(result, folder):
    figure, axes = plot.panels(1 + len(result["runs"]), width=7.6, height=2.9)
    side = result["settings"]["side"]
    for index, (run, picture) in enumerate(zip(result["runs"], axes[1:])):
        curve = run["validation"]
        axes[0].plot(
            [point["step"] for point in curve],
            [point["bits"] for point in curve],
            label=run["attention"],
            **plot.style(index - 1 if index else None),
        )
        rows = [run["picture"][side * y : side * (y + 1)] for y in range(side)]
        picture.imshow(rows, cmap="gray", vmin=0, vmax=255)
        picture.set_title(f"sampled: {run['attention']}")
        picture.axis("off")
    axes[0].set_xlabel("steps")
    axes[0].set_ylabel("validation, bits per dimension")
    plot.legend_below(figure, axes[0], 3)
    plot.save(figure, folder / f"{NAME}.svg")


def more(parser):
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--every", type=int, default=100, help="steps between validations")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--features", type=int, default=64, help="of favor_positive, for each head")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batches", type=int, default=16, help="batches of a validation")
    parser.add_argument("--test-batches", type=int, default=64, help="batches of the test")
    parser.add_argument("--pictures", type=int, default=5, help="pictures to generate; the median time counts")
    parser.add_argument("--side", type=int, default=28, help="other than 28: gradients instead, for tests")
    reproduction.processor_time_option(parser)


if __name__ == "__main__":
    small = {"steps": 2, "batch": 2, "every": 1, "layers": 1, "d_model": 16, "features": 8, "batches": 1}
    small.update(test_batches=1, pictures=1, side=6)
    reproduction.reproduce(NAME, reproduction.options(NAME, __doc__, more, small), measure, draw, tables)
