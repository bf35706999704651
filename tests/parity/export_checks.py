"""What tests/parity/transformers_export.py checks of one loaded model."""

import sys

import accelerate
import torch
import transformers
from safetensors.torch import load_file

DTYPE = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"


def loaded(folder, loader, dtype):
    return loader.from_pretrained(folder, trust_remote_code=True, **{DTYPE: dtype}).eval()


def of_transformers(model, inputs):
    with torch.no_grad():
        output = model(**inputs)
    return output.last_hidden_state if "last_hidden_state" in output else output.logits


def cache_name(model):
    return sys.modules[type(model).__module__].CACHE


def check_generation(model):
    """200 greedy tokens with and without a cache, and after padding on the left."""
    prompt = torch.tensor([[5, 17, 3, 44, 8, 21, 9]])
    options = dict(do_sample=False, max_new_tokens=200, eos_token_id=None, pad_token_id=0)
    widths = {}
    count = lambda module, inputs: widths.setdefault(module, []).append(inputs[0].shape[1])
    hooks = [part.register_forward_pre_hook(count) for part in (model.get_input_embeddings(), model.lm_head)]
    cached = model.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=True, **options)
    for hook in hooks:
        hook.remove()
    tokens, logits = (widths[part] for part in (model.get_input_embeddings(), model.lm_head))
    assert tokens == [prompt.shape[1]] + [1] * 199, "generation with a cache computes earlier tokens again"
    assert logits == [1] * 200, "generation computes the logits of the whole prompt"
    plain = model.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=False, **options)
    assert cached.shape[1] == prompt.shape[1] + 200, f"{cached.shape[1]} tokens"
    assert torch.equal(cached, plain), f"{int((cached != plain).sum())} tokens differ without a cache"
    padded = torch.cat([torch.full((1, 4), 11), prompt], 1)
    both = torch.cat([padded, torch.cat([cached[:, :4], padded[:, 4:]], 1)])
    mask = torch.ones_like(both)
    mask[0, :4] = 0
    options["max_new_tokens"] = 30
    found = model.generate(both, attention_mask=mask, use_cache=True, **options)
    assert torch.equal(found[0, 4:], cached[0, : found.shape[1] - 4]), "other tokens after left padding"
    beams = model.generate(prompt, attention_mask=mask[:1, 4:], num_beams=3, use_cache=True, **options)
    assert torch.equal(
        beams, model.generate(prompt, attention_mask=mask[:1, 4:], num_beams=3, use_cache=False, **options)
    ), "other beams without a cache"
    with torch.no_grad():
        past = model(prompt, use_cache=True)[1]  # of logits and cache
        model._is_replica = True  # as nn.DataParallel marks its copies
        assert len(model(prompt)) == 1, "a replica returns a cache, which nn.DataParallel cannot gather"
        del model._is_replica
    assert len(list(past)) == model.config.num_hidden_layers, "the cache is no sequence of layers"
    options["max_new_tokens"] = 5
    again = model.generate(cached[:, :12], attention_mask=torch.ones(1, 12), **{cache_name(model): past}, **options)
    assert torch.equal(again, cached[:, :17]), "other tokens from a given cache"


def check_types(folder, loader):
    """Weights in 16 bits, loaded so and converted: what is float32 in the file stays as it is."""
    for dtype in (torch.float16, torch.bfloat16):
        for model in (loaded(folder, loader, dtype), loaded(folder, loader, torch.float32).to(dtype)):
            found = model.state_dict()
            exact = sys.modules[type(model).__module__].EXACT
            for name, tensor in load_file(folder / "model.safetensors").items():
                if name.split(".")[-1] in exact:
                    name = name if name in found else name.removeprefix("model.")
                    assert torch.equal(found[name], tensor), f"{name}: other values in {dtype}"
            assert next(model.parameters()).dtype == dtype


def check_devices(model):
    """What layers share follows them to another device, as accelerate moves it."""
    trunk = getattr(model, "model", model)
    x = trunk.get_input_embeddings()(torch.tensor([[1, 2, 3]]))
    moved = trunk.tokens(x, torch.ones(1, 3).bool(), None, 0).to("meta", non_blocking=True)
    for part in (moved.mask, moved.positions, *(moved.rotary or ())):
        assert part.device.type == "meta", "what layers share stays on its device"


def check_hooks(model):
    """Generation with the hooks of several devices, which copy what they pass on."""
    prompt = torch.tensor([[5, 17, 3, 44, 8, 21, 9]])
    options = dict(attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=30, eos_token_id=None)
    plain = model.generate(prompt, pad_token_id=0, **options)
    parts = [f"model.{name}" for name, _ in model.model.named_children() if name != "blocks"]
    parts += [f"model.blocks.{i}" for i in range(len(model.model.blocks))] + ["lm_head"]
    parts += ["prediction"] if model.prediction is not None else []
    hooked = accelerate.dispatch_model(model, {part: "cpu" for part in parts}, main_device="cpu", force_hooks=True)
    found = hooked.generate(prompt, pad_token_id=0, **options)
    accelerate.hooks.remove_hook_from_submodules(hooked)
    assert torch.equal(found, plain), "other tokens with layers on several devices"


def in_short_segments(model, inputs):
    """Outputs with linear attention in segments of 64 tokens."""
    module = sys.modules[type(model).__module__.replace("modeling_", "attention_")]
    before, module.SEGMENT = module.SEGMENT, 64
    result = of_transformers(model, inputs)
    module.SEGMENT = before
    return result


def check_rows_alone(model, inputs, exact):
    """Each row without padding: some are shorter than a window, or end with a segment that is."""
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        one = {name: value[row : row + 1, :length] for name, value in inputs.items()}
        for outputs in (of_transformers(model, one), in_short_segments(model, one)):
            far = float((outputs[0] - exact[row, :length]).abs().max())
            assert far <= 1e-6, f"float64 of {length} tokens alone differs by {far}"


def check_padding(model, inputs):
    """A row without a token: finite, and nothing changes in the other rows."""
    mask = inputs["attention_mask"].clone()
    mask[1] = 0
    found, plain = of_transformers(model, {**inputs, "attention_mask": mask}), of_transformers(model, inputs)
    assert bool(found.isfinite().all()), "a row of padding alone is not finite"
    if len(found) == len(mask):
        others = [row for row in range(len(mask)) if row != 1]
        far = float(((found - plain).abs().amax(-1) * inputs["attention_mask"])[others].max()) if found.dim() > 2 else 0
        assert far < 1e-9, f"a row of padding moves others by {far}"


def gradients(model, batch):
    model.train()
    model.zero_grad()
    model(**batch).loss.backward()
    model.eval()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_accumulation(model, batch):
    """Two halves of a batch, as Trainer accumulates them: losses are divided by the labels of both."""
    if type(model).__name__ == "FurlongForSequenceClassification" and model.config.pair_classification:
        return
    labels = batch["labels"][:, 1:] if type(model).__name__ == "FurlongForCausalLM" else batch["labels"]
    count = int((labels != -100).sum())  # as Trainer counts them
    whole, halves = gradients(model, batch), None
    for part in (slice(0, 1), slice(1, None)):
        half = {name: value[part] for name, value in batch.items()}
        found = gradients(model, {**half, "num_items_in_batch": torch.tensor(count)})
        halves = found if halves is None else {name: halves[name] + found[name] for name in found}
    far = max(float((whole[name] - halves[name]).abs().max()) for name in whole)
    assert far < 1e-9, f"gradients differ by {far} over accumulated batches"


def check_checkpointing(model, batch):
    plain = gradients(model, batch)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again = gradients(model, batch)
    model.gradient_checkpointing_disable()
    assert set(plain) == set(again) == {name for name, _ in model.named_parameters()}, "parameters without gradients"
    far = max(float((plain[name] - again[name]).abs().max()) for name in plain)
    assert far < 1e-9, f"gradients differ by {far} with checkpointing"
