"""Pooling, scales and losses of labels. `furlong export` writes this file."""

import torch
import torch.nn.functional as F

from .features_furlong import widened


def cross_entropy(logits, labels, count=None):
    """Over labels other than -100: the mean, or the sum divided by `count`, those of all accumulated batches."""
    reduction = "mean" if count is None else "sum"
    loss = F.cross_entropy(widened(logits).flatten(0, -2), labels.flatten().to(logits.device), reduction=reduction)
    return loss if count is None else loss / count


def pooled(states, attention_mask, pooling):
    """States [B, n, d] -> [B, d]: those of the class token, or the mean over all tokens but padding."""
    if pooling == "class_token":
        return states[:, 0]
    wide = widened(states)  # the sum over a long text is beyond float16
    if attention_mask is None:
        return wide.mean(1).to(states.dtype)
    mask = attention_mask.to(wide)
    return ((wide * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)).to(states.dtype)


def pair_features(x):
    """Pooled states [2 · pairs, d], rows 2i and 2i + 1 a pair u, v -> u, v, u v, u - v [pairs, 4 d]."""
    u, v = x[0::2], x[1::2]
    return torch.cat([u, v, u * v, u - v], -1)


def mean_and_scale(scales, like):
    """[[mean, scale], ...] of each label -> two tensors [labels] of the dtype and device of `like`; (0, 1) of none."""
    return torch.tensor(scales, dtype=like.dtype, device=like.device).unbind(-1) if scales else (0, 1)


def label_loss(x, labels, problem_type, mean, scale, count=None):
    """
    Of outputs x [B, labels]. Labels: the numbers [B, labels] of regression, 0 or 1 [B, labels] of
    multi_label_classification, otherwise a class [B]. Without a problem_type, the number of labels and their type
    decide, as in transformers. `count`: as in cross_entropy.
    """
    regression = problem_type == "regression" or (problem_type is None and x.shape[-1] == 1)
    sets = problem_type == "multi_label_classification" or (problem_type is None and labels.is_floating_point())
    if not regression and not sets:
        return cross_entropy(x, labels, count)
    x = widened(x)
    labels = labels.to(x.device, x.dtype).reshape(x.shape)
    if regression:
        losses = F.mse_loss(x, (labels - mean) / scale, reduction="none")
    else:
        losses = F.binary_cross_entropy_with_logits(x, labels, reduction="none")
    return losses.mean() if count is None else losses.sum() / count
