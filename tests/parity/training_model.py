"""The model of docs/config.md in PyTorch, for training.py."""

import math

import torch
import torch.nn.functional as F

from training_batches import IGNORED

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}


class Model:
    """The model of docs/config.md, as functions of named tensors."""

    def __init__(self, settings, tensors, training=True):
        self.training = training
        self.settings, self.model, self.attention = settings, settings["model"], settings["model"]["attention"]
        self.tensors = tensors

    def has(self, name):
        return name in self.tensors

    def linear(self, x, name):
        t = self.tensors
        y = F.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))
        if self.has(f"{name}.lora_a.weight"):
            scale = self.model["lora_alpha"] / self.model["lora_rank"]
            y = y + scale * (x @ t[f"{name}.lora_a.weight"].T @ t[f"{name}.lora_b.weight"].T)
        return y

    def norm(self, x, name, kind=None):
        gain, bias, epsilon = self.tensors[f"{name}.gain"], self.tensors.get(f"{name}.bias"), self.model["norm_epsilon"]
        if (kind or self.model["norm"]) == "layernorm":
            return F.layer_norm(x, gain.shape, gain, bias, epsilon)
        x = x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * gain
        return x if bias is None else x + bias

    def positions(self, batch, state):
        """The index of each token in its document."""
        rows, n = batch.inputs.shape
        index = torch.arange(n).expand(rows, n)
        change = torch.ones(rows, n, dtype=torch.bool)
        change[:, 1:] = batch.documents[:, 1:] != batch.documents[:, :-1]
        index = index - torch.where(change, index, 0).cummax(1).values
        return index if state is None else index + state["positions"][:, None]

    def rotated(self, x, positions):
        half = x.shape[-1] // 2
        frequencies = self.model["rotary_base"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = positions[:, None, :, None] * frequencies
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)

    def convolved(self, x, weight, batch, state):
        """Causal and depthwise, within a document."""
        width, rows, n = weight.shape[1], *x.shape[:2]
        before = x.new_zeros(rows, width - 1, x.shape[2])
        if state is not None:
            before = state["convolution"] * ~batch.fresh[:, None, None]
        if not batch.mask.all():
            x = x * batch.mask[..., None]
        wide = torch.cat([before, x], 1)
        numbers = torch.cat([batch.documents[:, :1].expand(rows, width - 1), batch.documents], 1)
        if state is not None:
            state["convolution"] = wide[:, n:].detach()
        y = 0
        for tap in range(width):
            same = numbers[:, tap : tap + n] == batch.documents
            y = y + weight[:, tap] * wide[:, tap : tap + n] * same[..., None]
        return y

    def features(self, x, name, is_query):
        """φ(x) of elu1, or of favor_positive with the estimate's scale 1 / m."""
        if self.attention["feature_map"] == "elu1":
            return F.elu(x) + 1
        x = x * x.shape[-1] ** -0.25
        omega = self.tensors[f"{name}.directions"]
        phi = (x @ omega.transpose(-1, -2) - x.square().sum(-1, keepdim=True) / 2).exp()
        return phi / omega.shape[-2] if is_query else phi

    def attend(self, q, k, v, name, batch, state):
        n, d = q.shape[-2:]
        i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
        allowed = batch.documents[:, :, None] == batch.documents[:, None, :]
        if self.model["architecture"] == "decoder":
            allowed = allowed & (j <= i)
        else:
            allowed = allowed & batch.mask[:, None, :]
        allowed = allowed[:, None]
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores, mechanism = q @ k.transpose(-1, -2) / math.sqrt(d), self.attention["mechanism"]
        if mechanism == "softmax":
            # A row of padding alone has no keys; its output is not used.
            lowest = torch.finfo(scores.dtype).min
            return scores.masked_fill(~allowed, lowest).softmax(-1) @ v
        phi_q, phi_k = self.features(q, name, True), self.features(k, name, False)
        weights = phi_q @ phi_k.transpose(-1, -2)
        if mechanism == "windowed":
            exact = (scores + self.tensors[f"{name}.gate"][None, :, None, None]).exp()
            weights = torch.where((i - j).abs() < self.attention["softmax_window"], exact, weights)
        weights = weights * allowed
        numerator, denominator = weights @ v, weights.sum(-1, keepdim=True)
        if state is not None:
            kept = ~batch.fresh[:, None, None, None]
            past, sums = state["values"] * kept, state["keys"] * kept
            numerator, denominator = numerator + phi_q @ past, denominator + phi_q @ sums
            counted = (phi_k * batch.mask[:, None, :, None]).detach()
            state["values"] = past + counted.transpose(-1, -2) @ v.detach()
            state["keys"] = sums + counted.sum(-2).unsqueeze(-1)
        return numerator / denominator.clamp(min=1e-300)

    def self_attention(self, x, name, batch, positions, state):
        H, K = self.model["n_heads"], self.model["n_key_value_heads"]
        d = self.model["d_head"]
        fused = self.linear(x, f"{name}.query_key_value")
        if self.has(f"{name}.short_convolution.weight"):
            fused = self.convolved(fused, self.tensors[f"{name}.short_convolution.weight"], batch, state)
        parts = fused.split([H * d, K * d, K * d], -1)
        q, k, v = (part.unflatten(-1, (-1, d)).transpose(1, 2) for part in parts)
        if self.model["query_key_norm"] == "rmsnorm":
            q, k = self.norm(q, f"{name}.query_norm", "rmsnorm"), self.norm(k, f"{name}.key_norm", "rmsnorm")
        if self.model["position"] == "rotary":
            q, k = self.rotated(q, positions), self.rotated(k, positions)
        attended = self.attend(q, k, v, name, batch, state)
        return self.linear(attended.transpose(1, 2).flatten(2), f"{name}.output")

    def feedforward(self, x, name):
        activation = ACTIVATIONS[self.model["activation"]]
        x = self.linear(x, f"{name}.input")
        if self.model["activation"] in ("swiglu", "geglu"):
            gate, up = x.chunk(2, -1)
            return self.linear(activation(gate) * up, f"{name}.output")
        return self.linear(activation(x), f"{name}.output")

    def hidden(self, batch, states=None, observe=None):
        """`states`: one for each layer; `observe` receives the input and output of each layer's attention."""
        t, model = self.tensors, self.model
        positions = self.positions(batch, states and states[0])
        x = t["token_embedding.weight"][batch.inputs]
        if model["position"] == "learned":
            x = x + t["position_embedding.weight"][positions]
        if model["n_segments"] > 0:
            x = x + t["segment_embedding.weight"][0]
        if model["embedding_norm"]:
            x = self.norm(x, "embedding_norm")
        for layer in range(model["n_layers"]):
            name, state = f"blocks.{0 if model['shared_layers'] else layer}", states and states[layer]

            def attention(x, name=name, state=state):
                y = self.self_attention(x, f"{name}.attention", batch, positions, state)
                if observe:
                    observe(x, y)
                return y

            if model["norm_placement"] == "post":
                x = self.norm(x + attention(x), f"{name}.attention_norm")
                x = self.norm(x + self.feedforward(x, f"{name}.feedforward"), f"{name}.feedforward_norm")
            else:
                x = x + attention(self.norm(x, f"{name}.attention_norm"))
                x = x + self.feedforward(self.norm(x, f"{name}.feedforward_norm"), f"{name}.feedforward")
        return self.norm(x, "final_norm") if model["norm_placement"] == "pre" else x

    def logits(self, x):
        if self.model["prediction_head"] == "transform":
            x = ACTIVATIONS[self.model["activation"]](self.linear(x, "prediction.transform"))
            x = self.norm(x, "prediction.norm")
        table = "token_embedding.weight" if self.model["tied_embeddings"] else "classifier.weight"
        return F.linear(x, self.tensors[table], self.tensors.get("output_bias"))

    def outputs(self, batch, states=None):
        """Logits of tokens [rows, n, …] or of samples [samples, …]."""
        x, objective = self.hidden(batch, states), self.settings["objective"]
        if objective["name"] in ("next_token", "masked_tokens"):
            return self.logits(x)
        if objective["name"] != "token_classification":
            if objective["pooling"] == "class_token":
                x = x[:, 0]
            else:
                x = (x * batch.mask[..., None]).sum(1) / batch.mask.sum(1, keepdim=True).clamp(min=1)
        if objective["name"] == "pair_classification":
            u, v = x[0::2], x[1::2]
            x = F.gelu(self.linear(torch.cat([u, v, u * v, u - v], -1), "matching"))
        return self.linear(x, "classifier")

    def loss(self, batch, states=None):
        """Sum of the losses of all targets, and number of correct predictions."""
        logits, objective = self.outputs(batch, states), self.settings["objective"]["name"]
        if batch.values is None:
            targets = batch.targets if batch.labels is None else batch.labels
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")
            return loss, int((logits.argmax(-1) == targets)[targets >= 0].sum()), logits
        counted = batch.labels >= 0
        if objective == "regression":
            return (logits - batch.values).square().mean(-1)[counted].sum(), 0, logits
        losses = F.binary_cross_entropy_with_logits(logits, batch.values, reduction="none").mean(-1)
        right = ((logits > 0) == (batch.values > 0.5)).all(-1)
        return losses[counted].sum(), int(right[counted].sum()), logits
