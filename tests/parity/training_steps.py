"""Losses, schedules, optimizer steps and validation in PyTorch, for training.py."""

import math
import statistics

import numpy as np
import torch

from training_batches import Source
from training_model import Model

def learning_rate(case, step, late=0):
    """Of optimizer step `step`, counted from 0: the schedules of docs/config.md."""
    schedule, steps = case["schedule"], case["trainer"]["max_steps"]
    peak, warmup, name = case["optimizer"]["learning_rate"], schedule["warmup_steps"], schedule["name"]
    final = schedule.get("final_fraction", 0.1)
    step -= late
    if step < warmup:
        return peak * (step + 1) / warmup
    if name == "constant":
        return peak
    if name == "inverse_square_root":
        return peak * math.sqrt(warmup / (step + 1))
    if name == "warmup_stable_decay":
        length = schedule.get("decay_steps", 0) or max(1, steps // 10)
        return peak * (1 - (1 - final) * min(max((step + 1 - (steps - length)) / length, 0), 1))
    length = schedule.get("decay_steps", 0) or steps - warmup
    done = min((step - warmup) / (length - 1), 1)  # 0 at the first step after the warm-up, 1 at the decay's last step
    if name == "linear":
        return peak * (1 - (1 - final) * done)
    return peak * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)


def decays(name, tensor):
    """Weight matrices and embeddings; not norms, biases, gates and convolutions."""
    return tensor.dim() >= 2 and "convolution" not in name


def is_trained(name, settings):
    attention = ".attention." in name
    if settings["teacher"]["loss"] == "attention_transfer":
        return attention
    if settings["model"]["lora_rank"] > 0:
        inside = attention and ".query_key_value." not in name and ".attention.output." not in name
        label = name.startswith(("classifier.", "matching.")) and settings["objective"]["name"] != "next_token"
        return "lora_" in name or inside or label
    return True


class PlainAdamW:
    """AdamW in few lines, for mutations."""

    def __init__(self, groups, betas, eps, mutation):
        self.groups, self.betas, self.eps, self.mutation = groups, betas, eps, mutation
        self.state, self.t = {}, 0

    def step(self, lr):
        self.t += 1
        beta1, beta2 = self.betas
        first, second = 1 - beta1**self.t, 1 - beta2**self.t
        if self.mutation == "no bias correction":
            first = second = 1
        for tensors, decay in self.groups:
            for p in tensors:
                m, v = self.state.setdefault(id(p), [torch.zeros_like(p), torch.zeros_like(p)])
                gradient = p.grad
                if self.mutation == "coupled decay":
                    gradient, decay = gradient + decay * p.data, 0
                m.mul_(beta1).add_((1 - beta1) * gradient)
                v.mul_(beta2).add_((1 - beta2) * gradient.square())
                root = (v / second).sqrt() + self.eps
                if self.mutation == "ε under the root":
                    root = (v / second + self.eps**2).sqrt()
                if self.mutation == "ε before the correction":
                    root = (v.sqrt() + self.eps) / math.sqrt(second)
                p.data.mul_(1 - lr * decay).sub_(lr * m / first / root)


def train(case, start, run, teacher=None, mutation=None):
    """Repeats `run` from the weights `start`; returns metrics by kind and tensors by group."""
    settings = run.settings
    data = settings["data"]
    accumulation, size = case["trainer"].get("gradient_accumulation", 1), data["batch_size"]
    optimizer_settings = case["optimizer"]
    tensors = {name: value.clone() for name, value in start.items()}
    buffers = [name for name in tensors if name.endswith(".directions")]
    names = [name for name in tensors if name not in buffers and is_trained(name, settings)]
    trained = {name: tensors[name].requires_grad_() for name in names}
    decay = optimizer_settings.get("weight_decay", 0.1)
    everywhere = mutation == "decay of biases"
    groups = [
        ([p for name, p in trained.items() if everywhere or decays(name, p)], decay),
        ([p for name, p in trained.items() if not everywhere and not decays(name, p)], 0.0),
    ]
    betas = optimizer_settings.get("beta1", 0.9), optimizer_settings.get("beta2", 0.95)
    eps = optimizer_settings.get("epsilon", 1e-8)
    adamw = torch.optim.AdamW(
        [{"params": params, "weight_decay": value} for params, value in groups if params], lr=0, betas=betas, eps=eps
    )
    plain = PlainAdamW(groups, betas, eps, mutation) if mutation else None
    ema_decay = optimizer_settings.get("ema_decay", 0)
    ema = {name: p.detach().clone() for name, p in trained.items()}
    if mutation == "EMA from zero":
        ema = {name: torch.zeros_like(p) for name, p in ema.items()}
    model = Model(settings, tensors)
    teacher = Model(teacher.settings, teacher.groups["parameters"]) if teacher else None
    source = Source(settings, run.vocabulary, "train", size * accumulation)
    stateful = data["stateful"]
    states = [fresh_states(model, size) for _ in range(accumulation)] if stateful else None
    result = {"train": [], "validation": []}
    clip, factor = optimizer_settings.get("gradient_clip", 1), settings["trainer"]["skip_outlier_factor"]
    norms, tokens = [], 0
    for step in range(case["trainer"]["max_steps"]):
        batches = [source.batch((step * accumulation + i) * size, size) for i in range(accumulation)]
        count, tokens = sum(batch.count() for batch in batches), tokens + sum(batch.tokens for batch in batches)
        total = 0
        for p in trained.values():
            p.grad = torch.zeros_like(p)
        for i, batch in enumerate(batches):
            if mutation == "means of means":
                count = batch.count() * accumulation
            loss = loss_of(model, teacher, batch, batches, count, states and states[i])
            before = [p.grad.clone() for p in trained.values()]
            loss.backward()
            total += loss.item()
            if mutation == "clipping of single batches":
                own = math.sqrt(sum((p.grad - b).square().sum().item() for p, b in zip(trained.values(), before)))
                scale = min(1, clip / accumulation / own)
                for p, b in zip(trained.values(), before):
                    p.grad = b + scale * (p.grad - b)
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in trained.values()))
        lr = learning_rate(case, step, late=mutation == "late schedule")
        # Of at least 16 norms; of an even number the upper median.
        threshold = factor * statistics.median_high(norms[-64:]) if factor and len(norms) >= 16 else math.inf
        skipped = norm > threshold
        norms.append(norm)
        if not skipped:
            scale = clip / norm if 0 < clip < norm and mutation != "no clipping" else 1
            for p in trained.values():
                p.grad *= scale
            if plain:
                plain.step(lr)
            else:
                for group in adamw.param_groups:
                    group["lr"] = lr
                adamw.step()
            for name, p in trained.items():
                d = ema_decay if mutation != "EMA warm-up" else min(ema_decay, (2 + step) / (11 + step))
                ema[name].mul_(d).add_((1 - d) * p.detach())
        line = {"step": step + 1, "loss": total, "gradient_norm": norm, "learning_rate": lr, "tokens": tokens}
        if factor:
            line["skipped"] = int(skipped)
        result["train"].append(line)
        every = settings["trainer"]["validate_every"]
        if step + 1 == case["trainer"]["max_steps"] or (every and (step + 1) % every == 0):
            averaged = {**tensors, **ema} if ema_decay and mutation != "raw validation" else tensors
            found = validate(settings, run.vocabulary, averaged, teacher)
            result["validation"].append({"step": step + 1, **found})
    groups = {"parameters": {name: p.detach() for name, p in tensors.items()}, "ema": ema if ema_decay else {}}
    for group, key in (("first_moments", "exp_avg"), ("second_moments", "exp_avg_sq")):
        place = 0 if key == "exp_avg" else 1
        groups[group] = {
            name: plain.state[id(p)][place] if plain else adamw.state[p][key] for name, p in trained.items()
        }
    return result, groups


def fresh_states(model, rows):
    settings, attention = model.model, model.attention
    H, d = settings["n_heads"], settings["d_head"]
    m = d if attention["feature_map"] == "elu1" else attention["n_features"]
    width = (H + 2 * settings["n_key_value_heads"]) * d
    zeros = lambda *shape: torch.zeros(*shape, dtype=torch.float64)
    return [
        {
            "values": zeros(rows, H, m, d),
            "keys": zeros(rows, H, m, 1),
            "convolution": zeros(rows, max(settings["short_convolution"] - 1, 0), width),
            "positions": torch.zeros(rows, dtype=torch.long),
        }
        for _ in range(settings["n_layers"])
    ]


def begin(states, batch):
    """Positions of a segment continue those of its document."""
    for state in states:
        state["positions"] = state["positions"] * ~batch.fresh


def end(states, batch):
    for state in states:
        state["positions"] = state["positions"] + batch.inputs.shape[1]


def divergence(student, teacher, temperature):
    """T² KL(teacher ‖ student) of each row."""
    ours, theirs = (x / temperature for x in (student, teacher))
    difference = theirs.log_softmax(-1) - ours.log_softmax(-1)
    return temperature**2 * (theirs.softmax(-1) * difference).sum(-1)


def real(batch, settings):
    """All tokens except padding; of a window for next_token, the tokens up to its last target."""
    if settings["objective"]["name"] != "next_token" or settings["data"]["sampler"] == "documents":
        return batch.mask
    return (batch.targets >= 0).flip(1).cummax(1).values.flip(1)


def compared(batch, settings):
    """Positions of the distillation loss."""
    return batch.targets >= 0 if settings["teacher"]["positions"] == "targets" else real(batch, settings)


def loss_of(model, teacher, batch, batches, count, states):
    """This batch's part of the step's loss."""
    settings = model.settings["teacher"]
    if teacher is None:
        if states:
            begin(states, batch)
        loss = model.loss(batch, states)[0] / max(count, 1)
        if states:
            end(states, batch)
        return loss
    if settings["loss"] == "attention_transfer":
        return sum(transfer_errors(model, teacher, batch)) / model.model["n_layers"] / len(batches)
    with torch.no_grad():
        theirs = teacher.outputs(batch)
    own, _, logits = model.loss(batch)
    where = compared(batch, model.settings)
    number = sum(int(compared(other, model.settings).sum()) for other in batches)
    kl = divergence(logits, theirs, settings["temperature"])[where].sum() / number
    weight = settings["distillation_weight"]
    return weight * kl + (1 - weight) * own / count


def transfer_errors(model, teacher, batch):
    """|x - t|² / |t|² of each layer, with the teacher's input of attention, or the student's own."""
    theirs, ours = [], []
    with torch.no_grad():
        teacher.hidden(batch, observe=lambda x, y: theirs.append((x, y)))
        model.hidden(batch, observe=lambda x, y: ours.append(x))
    positions, errors = model.positions(batch, None), []
    for layer, (x, t) in enumerate(theirs):
        given = x if model.settings["teacher"]["input"] == "teacher" else ours[layer]
        y = model.self_attention(given, f"blocks.{layer}.attention", batch, positions, None)
        rows = (batch.mask if model.training else real(batch, model.settings))[..., None]
        errors.append(((y - t) * rows).square().sum() / (t * rows).square().sum())
    return errors


@torch.no_grad()
def validate(settings, vocabulary, tensors, teacher=None):
    """The whole validation split, in order."""
    size, model = settings["data"]["batch_size"], Model(settings, tensors, training=False)
    source = Source(settings, vocabulary, "validation", size)
    states = fresh_states(model, size) if settings["data"]["stateful"] else None
    loss = correct = count = kl = positions = tokens = 0
    errors = []
    for first in range(0, source.samples, size):
        batch = source.batch(first, size, one_pass=True)
        if settings["objective"]["name"] == "masked_tokens" and batch.count() == 0:
            continue  # its tokens are not counted
        tokens = tokens + batch.tokens
        if teacher and settings["teacher"]["loss"] == "attention_transfer":
            errors.append([error.item() for error in transfer_errors(model, teacher, batch)])
            continue
        if states:
            begin(states, batch)
        part, right, logits = model.loss(batch, states)
        if states:
            end(states, batch)
        loss, correct, count = loss + part.item(), correct + right, count + batch.count()
        if teacher:
            where = compared(batch, settings)
            temperature = settings["teacher"]["temperature"]
            kl += divergence(logits, teacher.outputs(batch), temperature)[where].sum().item()
            positions += int(where.sum())
    if errors:
        layers = np.mean(errors, axis=0)
        return {"loss": layers.mean(), "tokens": tokens, **{f"layer_{i}": x for i, x in enumerate(layers)}}
    found = {"loss": loss / count, "tokens": tokens}
    if settings["objective"]["name"] != "regression":
        found["accuracy"] = correct / count
    if teacher:
        found["divergence"] = kl / positions
    return found
