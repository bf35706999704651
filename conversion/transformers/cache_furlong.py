"""What generation keeps between tokens. `furlong export` writes this file."""

from dataclasses import fields

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from .attention_furlong import State

# What outputs call the cache: `cache` in later versions of transformers, which warn of the earlier name.
CACHE = next(field.name for field in fields(BaseModelOutputWithPast) if field.name in ("cache", "past_key_values"))


class LayerCache(dict):
    """What one layer keeps. Its modules fill it, so accelerate must not pass them a copy on their device."""

    def to(self, *args, **options):
        return self


class FurlongCache:
    """
    What generation keeps of each layer: of linear attention its state and the keys within
    reach, of softmax all keys and values (with a window those within it), of the short convolution its last inputs. A
    linear model's cache does not grow.
    """

    is_compileable = False
    is_linear = (False,)  # generate of 5.24 continues a cache after its tokens unless all layers are linear

    def __init__(self, config):
        self.layers = [LayerCache() for _ in range(config.num_hidden_layers)]
        self.seen = 0  # tokens

    def get_seq_length(self, layer_idx=0):
        return self.seen

    def __getitem__(self, layer):
        """generate of 4.x continues a cache after the tokens of its first key, [0][0].shape[2]."""
        if layer >= len(self.layers):
            raise IndexError(layer)  # ends iteration
        return (torch.empty(1, 1, self.seen, 0),)

    def reorder_cache(self, beams):
        self.layers = reordered(self.layers, beams)


def reordered(part, beams):
    """Rows `beams` of each tensor in nested lists, dicts and states."""
    if isinstance(part, torch.Tensor):
        return part.index_select(0, beams.to(part.device))
    if isinstance(part, State):
        return State(**reordered(vars(part), beams))
    if isinstance(part, dict):
        return type(part)({name: reordered(value, beams) for name, value in part.items()})
    return [reordered(value, beams) for value in part] if isinstance(part, list) else part
