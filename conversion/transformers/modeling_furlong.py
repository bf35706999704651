"""Models of Furlong for Hugging Face transformers, in plain PyTorch. `furlong export` writes this file."""

import os
import shutil
from dataclasses import dataclass, fields
from typing import Optional

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import cached_file

from .attention_furlong import EXACT, make_mechanism, projection_weight
from .cache_furlong import CACHE, FurlongCache, LayerCache
from .configuration_furlong import FurlongConfig
from .features_furlong import angles_of, rotated, widened
from .labels_furlong import cross_entropy, label_loss, mean_and_scale, pair_features, pooled

VOCABULARY_FILE = "furlong_vocabulary.json"  # what token ids mean to Furlong

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": F.silu,  # of the gate
    "geglu": F.gelu,
}


@dataclass
class Tokens:
    """What all layers know of the tokens."""

    mask: Optional[torch.Tensor]  # bool [B, n]: False at padding; None: no padding
    positions: torch.Tensor  # [B, n]
    rotary: Optional[tuple]  # cosines and sines [B, 1, n, d_head / 2]
    shared_projection: Optional[torch.Tensor]  # Linformer's, if the model has only one

    def to(self, device, **options):
        """accelerate calls it where layers are on several devices."""
        moved = lambda part: tuple(map(moved, part)) if isinstance(part, tuple) else part.to(device, **options)
        parts = (getattr(self, field.name) for field in fields(self))
        return Tokens(*(None if part is None else moved(part) for part in parts))


class Norm(nn.Module):
    def __init__(self, config, width, kind=None, bias=None):
        super().__init__()
        self.kind, self.epsilon = kind or config.norm, config.norm_epsilon
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if (config.use_bias if bias is None else bias) else None

    def forward(self, x):
        if self.kind == "layernorm":
            return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.epsilon)
        wide = widened(x)
        wide = wide * (wide.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        x = wide.to(x.dtype) * self.gain
        return x if self.bias is None else x + self.bias


class ShortConvolution(nn.Module):
    """y_t = Σ_j weight[:, j] x_(t - width + 1 + j), channel by channel. What lies before the first token is zero."""

    def __init__(self, channels, width):
        super().__init__()
        self.weight = nn.Parameter(F.pad(torch.ones(channels, 1), (width - 1, 0)))  # [channels, width]

    def forward(self, x, mask, cache):
        """x [B, n, channels]"""
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        before = self.weight.shape[1] - 1
        past = x.new_zeros(len(x), before, x.shape[2]) if not cache else cache["convolution"]
        x = torch.cat([past, x], 1)
        if cache is not None:
            cache["convolution"] = x[:, x.shape[1] - before :]
        return F.conv1d(x.transpose(1, 2), self.weight.to(x.dtype)[:, None], groups=x.shape[2]).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.head_dim, self.widths = d, [H * d, K * d, K * d]
        biased = config.use_bias or config.query_key_value_bias
        self.query_key_value = nn.Linear(config.hidden_size, sum(self.widths), biased)
        self.output = nn.Linear(H * d, config.hidden_size, config.use_bias)
        self.short_convolution = None
        if config.short_convolution > 0:
            self.short_convolution = ShortConvolution(sum(self.widths), config.short_convolution)
        self.query_norm = self.key_norm = None
        if config.query_key_norm:
            self.query_norm, self.key_norm = (Norm(config, d, "rmsnorm", bias=False) for _ in range(2))
        # Neighboring heads of one mechanism are computed together: `mechanism` of all, or `heads_FIRST_LAST`.
        self.runs, runs = [], config.heads_of_layer(layer)
        for kind, first, count in runs:
            name = "mechanism" if len(runs) == 1 else f"heads_{first}_{first + count - 1}"
            self.add_module(name, make_mechanism(config, kind, count, count * K // H))
            self.runs.append((name, slice(first, first + count), slice(first * K // H, (first + count) * K // H)))

    def forward(self, x, tokens, cache=None):
        """x [B, n, hidden_size]; `cache` is a dict, empty before the first tokens."""
        fused = self.query_key_value(x)
        if self.short_convolution is not None:
            fused = self.short_convolution(fused, tokens.mask, cache)
        heads = lambda part: part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, H, n, d]
        query, key, value = (heads(part) for part in fused.split(self.widths, -1))
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if tokens.rotary is not None:
            query, key = rotated(query, tokens.rotary), rotated(key, tokens.rotary)
        outputs = []
        for name, q, k in self.runs:
            part = None if cache is None else cache.setdefault(name, LayerCache())
            outputs.append(getattr(self, name)(query[:, q], key[:, k], value[:, k], tokens, part))
        return self.output(torch.cat(outputs, 1).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gated, self.activation = config.hidden_act in ("swiglu", "geglu"), ACTIVATIONS[config.hidden_act]
        inner = config.intermediate_size
        self.input = nn.Linear(config.hidden_size, 2 * inner if self.gated else inner, config.use_bias)
        self.output = nn.Linear(inner, config.hidden_size, config.use_bias)

    def forward(self, x):
        x = self.input(x)
        if not self.gated:
            return self.output(self.activation(x))
        gate, up = x.chunk(2, -1)
        return self.output(self.activation(gate) * up)


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.post_norm = config.norm_placement == "post"
        self.attention_norm = Norm(config, config.hidden_size)
        self.attention = Attention(config, layer)
        self.feedforward_norm = Norm(config, config.hidden_size)
        self.feedforward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, tokens, cache=None):
        if self.post_norm:
            x = self.attention_norm(x + self.dropout(self.attention(x, tokens, cache)))
            return self.feedforward_norm(x + self.dropout(self.feedforward(x)))
        x = x + self.dropout(self.attention(self.attention_norm(x), tokens, cache))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class FurlongPreTrainedModel(PreTrainedModel):
    config_class = FurlongConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]
    _supports_sdpa = True
    _is_stateful = True  # a state cannot take tokens back
    if int(transformers.__version__.split(".")[0]) >= 5:  # 4.51 to 4.57 reject names of buffers
        _keep_in_fp32_modules_strict = EXACT
    _keys_to_ignore_on_load_unexpected = [r"^carried\."]  # tensors of the original model, for `furlong convert`

    def _init_weights(self, module):
        """New parts of a model, such as a classifier."""
        for name, parameter in module.named_parameters(recurse=False):
            if "gain" in name or name == "output_norm":
                nn.init.ones_(parameter)
            elif name in ("bias", "gate"):
                nn.init.zeros_(parameter)
            elif isinstance(module, (nn.Linear, nn.Embedding)) or "projection" in name:
                nn.init.normal_(parameter, std=self.config.initializer_range)

    def save_pretrained(self, save_directory, *args, **kwargs):
        """Also copies the code and the vocabulary: transformers and `furlong convert` load what was saved."""
        super().save_pretrained(save_directory, *args, **kwargs)
        folder = os.path.dirname(__file__)
        files = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith("_furlong.py")]
        for file in files + [vocabulary_file(self.config.name_or_path)]:
            target = os.path.join(save_directory, os.path.basename(file or ""))
            if file and os.path.isdir(save_directory) and os.path.realpath(file) != os.path.realpath(target):
                shutil.copyfile(file, target)


def vocabulary_file(name_or_path):
    """That of a directory or a repository; None for a new model, and if it no longer exists."""
    local = os.path.join(name_or_path, VOCABULARY_FILE)
    if os.path.isfile(local):
        return local
    try:
        return cached_file(name_or_path, VOCABULARY_FILE) if name_or_path else None
    except OSError:
        return None


class FurlongModel(FurlongPreTrainedModel):
    """Embeddings, blocks and the final norm: hidden states [B, n, hidden_size]."""

    def __init__(self, config):
        super().__init__(config)
        width = config.embedding_size or config.hidden_size
        table = lambda rows: nn.Embedding(rows, width)
        self.token_embedding = table(config.vocab_size)
        self.position_embedding = table(config.max_position_embeddings) if config.position == "learned" else None
        self.segment_embedding = table(config.type_vocab_size) if config.type_vocab_size > 0 else None
        self.embedding_norm = Norm(config, width) if config.embedding_norm else None
        self.embedding_projection = None
        if config.embedding_size > 0:
            self.embedding_projection = nn.Linear(width, config.hidden_size, config.use_bias)
        self.dropout = nn.Dropout(config.dropout)
        self.attention = None
        projects = "linformer" in " ".join(config.attention_layers) and config.projection != "mean"
        if projects and config.sharing == "layers":
            self.attention = nn.ParameterDict({"sequence_projection": projection_weight(config, None)})
        blocks = 1 if config.shared_layers else config.num_hidden_layers
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(blocks))
        self.final_norm = Norm(config, config.hidden_size) if config.norm_placement == "pre" else None
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self):
        return self.token_embedding

    def set_input_embeddings(self, value):
        self.token_embedding = value

    def forward(
        self,
        input_ids=None,
        attention_mask=None,  # [B, tokens seen + n]: 0 at padding
        position_ids=None,
        token_type_ids=None,
        inputs_embeds=None,
        past_key_values=None,  # the earlier name of cache
        cache=None,  # FurlongCache
        use_cache=None,
        output_hidden_states=None,
        return_dict=None,
    ):
        config = self.config
        x = self.token_embedding(input_ids) if inputs_embeds is None else inputs_embeds
        n = x.shape[1]
        if n == 0:
            raise ValueError("the input has no tokens; expected at least one")
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError(f"attention_mask has {attention_mask.dim()} dimensions; expected 2, [batch, tokens]")
        use_cache = config.causal and not self.training and (config.use_cache if use_cache is None else use_cache)
        cache = past_key_values if cache is None else cache
        if use_cache and not isinstance(cache, FurlongCache):
            cache = FurlongCache(config)
        mask = None if attention_mask is None else attention_mask[:, -n:].bool()
        if mask is not None and mask.all():
            mask = None  # nothing is hidden: softmax needs no n × n mask
        if config.token_dropout and input_ids is not None:
            hidden = input_ids == config.mask_token_id
            shown = 1 - hidden.sum(-1).to(x.dtype) / (n if mask is None else mask.sum(-1).clamp(min=1))  # [B]
            x = (x * (0.88 / shown.clamp(min=1e-6))[:, None, None]).masked_fill(hidden[..., None], 0)
        tokens = self.tokens(x, mask, position_ids, 0 if cache is None else cache.seen)
        x = self.embedded(x, tokens.positions, token_type_ids)
        wanted = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states = [x]
        for layer in range(config.num_hidden_layers):
            block = self.blocks[0 if config.shared_layers else layer]
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(block.__call__, x, tokens)
            else:
                x = block(x, tokens, None if cache is None else cache.layers[layer])
            if wanted:
                states.append(x)
        if cache is not None:
            cache.seen += n
        if self.final_norm is not None:
            x = self.final_norm(x)
        output = BaseModelOutputWithPast(x, cache, (*states[:-1], x) if wanted else None)
        return output if return_dict is None or return_dict else output.to_tuple()

    def tokens(self, x, mask, positions, seen):
        config = self.config
        if positions is None:
            positions = torch.arange(seen, seen + x.shape[1], device=x.device)[None]
            if self.position_embedding is not None and seen + x.shape[1] > config.max_position_embeddings:
                longest = config.max_position_embeddings
                raise ValueError(f"{seen + x.shape[1]} tokens; the model has learned positions for {longest}")
        positions = positions.expand(len(x), -1)
        rotary = None
        if config.position == "rotary" and config.rotary_placement == "before_features":
            angles = angles_of(positions, config.rotary_frequencies)[:, None]
            factor, dtype = config.rotary_attention_factor, torch.promote_types(x.dtype, torch.float32)
            rotary = tuple((factor * part).to(dtype).to(x.device) for part in (angles.cos(), angles.sin()))
        shared = None if self.attention is None else self.attention["sequence_projection"]
        return Tokens(mask, positions, rotary, shared)

    def embedded(self, x, positions, segments):
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions)
        if self.config.position == "sinusoidal":
            width = x.shape[-1]
            angles = angles_of(positions, [10000 ** (-i / width) for i in range(0, width, 2)])
            table = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :width]
            x = x + table.to(x.dtype).to(x.device)
        if self.segment_embedding is not None:
            x = x + self.segment_embedding(torch.zeros_like(positions) if segments is None else segments)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = self.dropout(x)
        return x if self.embedding_projection is None else self.embedding_projection(x)


class FurlongTokenModel(FurlongPreTrainedModel):
    """A model with an output layer over tokens."""

    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = FurlongModel(config)
        width = config.hidden_size
        self.prediction = None
        if config.prediction_head == "transform":
            width = config.embedding_size or config.hidden_size
            transform = nn.Linear(config.hidden_size, width, config.use_bias)
            self.prediction = nn.ModuleDict({"transform": transform, "norm": Norm(config, width)})
        self.lm_head = nn.Linear(width, config.vocab_size, config.output_bias)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.token_embedding

    def set_input_embeddings(self, value):
        self.model.token_embedding = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def logits(self, x):
        if self.prediction is not None:
            x = self.prediction["norm"](ACTIVATIONS[self.config.hidden_act](self.prediction["transform"](x)))
        return self.lm_head(x)


class FurlongForCausalLM(FurlongTokenModel, GenerationMixin):
    _supports_cache_class = False  # 4.x: FurlongCache is no Cache of transformers

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        token_type_ids=None,
        labels=None,
        logits_to_keep=0,  # of the last tokens; 0: of all
        return_dict=None,
        num_items_in_batch=None,
        **inputs,  # of FurlongModel
    ):
        """labels [B, n] are the input ids themselves: token t is compared with what was predicted at t - 1."""
        if getattr(self, "_is_replica", False):
            inputs["use_cache"] = False  # nn.DataParallel cannot gather a cache
        outputs = self.model(input_ids, attention_mask, position_ids, token_type_ids, **inputs)
        logits = self.logits(outputs.last_hidden_state[:, -logits_to_keep:])
        loss = None if labels is None else cross_entropy(logits[:, :-1], labels[:, 1:], num_items_in_batch)
        output = CausalLMOutputWithPast(loss, logits, getattr(outputs, CACHE), outputs.hidden_states)
        return output if return_dict is None or return_dict else output.to_tuple()

    def prepare_inputs_for_generation(
        self,
        input_ids,
        past_key_values=None,
        attention_mask=None,
        inputs_embeds=None,
        use_cache=None,
        cache=None,
        **kwargs,
    ):
        """The tokens that the cache has not seen. Left padding moves positions: the first real token is at 0."""
        cache = past_key_values if cache is None else cache
        seen = cache.seen if isinstance(cache, FurlongCache) else 0
        inputs = {"cache": cache, "attention_mask": attention_mask, "use_cache": use_cache, "logits_to_keep": 1}
        if attention_mask is not None:
            inputs["position_ids"] = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, seen:]
        if inputs_embeds is not None and seen == 0:
            return {"inputs_embeds": inputs_embeds, **inputs}
        start = seen if inputs_embeds is None else seen - inputs_embeds.shape[1]
        return {"input_ids": input_ids[:, start:], **inputs}


class FurlongForMaskedLM(FurlongTokenModel):
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        token_type_ids=None,
        labels=None,
        return_dict=None,
        num_items_in_batch=None,
        **inputs,  # of FurlongModel
    ):
        """labels [B, n]: the hidden tokens, -100 elsewhere."""
        outputs = self.model(input_ids, attention_mask, position_ids, token_type_ids, **inputs)
        logits = self.logits(outputs.last_hidden_state)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        output = MaskedLMOutput(loss, logits, outputs.hidden_states)
        return output if return_dict is None or return_dict else output.to_tuple()


class FurlongLabelModel(FurlongPreTrainedModel):
    """A model with a classifier over labels."""

    def __init__(self, config):
        super().__init__(config)
        self.model = FurlongModel(config)
        pairs = config.pair_classification and self.output_type is SequenceClassifierOutput
        self.matching = nn.Linear(4 * config.hidden_size, config.hidden_size) if pairs else None
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        token_type_ids=None,
        labels=None,
        return_dict=None,
        num_items_in_batch=None,
        **inputs,  # of FurlongModel
    ):
        outputs = self.model(input_ids, attention_mask, position_ids, token_type_ids, **inputs)
        loss, logits = self.predict(outputs.last_hidden_state, attention_mask, labels, num_items_in_batch)
        output = self.output_type(loss, logits, outputs.hidden_states)
        return output if return_dict is None or return_dict else output.to_tuple()


class FurlongForSequenceClassification(FurlongLabelModel):
    """
    Logits [B, labels]; of a model of pairs [B / 2, labels], rows 2i and 2i + 1 of the batch being a pair. With
    config.label_scales logits and labels are numbers in the units of the data, which the loss compares scaled. Such
    logits are in float32 at least: a year has too many digits for bfloat16.
    """

    output_type = SequenceClassifierOutput

    def predict(self, states, attention_mask, labels, count):
        x = pooled(states, attention_mask, self.config.pooling)
        if self.matching is not None:
            x = F.gelu(self.matching(pair_features(x)))
        logits = self.classifier(self.dropout(x))
        logits = widened(logits) if self.config.label_scales else logits
        mean, scale = mean_and_scale(self.config.label_scales, logits)
        loss = None if labels is None else label_loss(logits, labels, self.config.problem_type, mean, scale, count)
        return loss, logits * scale + mean


class FurlongForTokenClassification(FurlongLabelModel):
    """Logits [B, n, labels]. Labels [B, n]: -100 for tokens without one."""

    output_type = TokenClassifierOutput

    def predict(self, states, attention_mask, labels, count):
        logits = self.classifier(self.dropout(states))
        return None if labels is None else cross_entropy(logits, labels, count), logits
