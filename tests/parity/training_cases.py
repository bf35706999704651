"""The runs that training.py repeats, and errors of the reference that it must notice."""

import copy
STEPS = 24


def merged(*parts):
    result = {}
    for part in parts:
        for key, value in part.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def small(**keys):
    """A decoder of two layers."""
    return {"model": {"n_layers": 2, "d_model": 32, "n_heads": 2, "initializer_range": 0.1, **keys}}


def encoder(**keys):
    return small(architecture="encoder", **keys)


def data(name, n=32, size=3, **keys):
    return {"data": {"dataset": name, "sequence_length": n, "batch_size": size, **keys}}


COMMON = {
    "seed": 5,
    "device": "cpu",
    "threads": 1,
    "optimizer": {"learning_rate": 3e-3, "epsilon": 1e-5, "weight_decay": 0.5, "gradient_clip": 1},
    "schedule": {"name": "cosine", "warmup_steps": 5},
    "trainer": {"max_steps": STEPS, "validate_every": 9, "validation_batches": 0},
    "checkpoint": {"every": 0},
    "log": {"every": 1, "progress": "none"},
}
LINEAR = {"mechanism": "linear", "feature_map": "elu1"}
FAVOR = {"feature_map": "favor_positive", "n_features": 16}
BERT = {"norm_placement": "post", "embedding_norm": True, "position": "learned", "n_segments": 2}


def cases():
    """name -> (what it covers, config)."""
    sequential, table = data("text", sampler="sequential"), {}

    def add(name, covers, *parts):
        table[name] = (covers, merged(COMMON, small(), sequential, *parts))

    def scheduled(name, **keys):
        return {"schedule": {"name": name, **keys}}

    add("adamw_cosine", "layernorm, biases, rotary, tied embeddings")
    add("adamw_constant", "no clipping", scheduled("constant"), {"optimizer": {"gradient_clip": 0}})
    add("adamw_linear", "rmsnorm, swiglu, grouped heads, untied, output bias", scheduled("linear", final_fraction=0),
        small(norm="rmsnorm", activation="swiglu", n_heads=4, n_key_value_heads=2, tied_embeddings=False),
        small(bias=False, query_key_value_bias=True, output_bias=True))
    add("decay_steps", "cosine that ends before the run", scheduled("cosine", decay_steps=10, final_fraction=0.2))
    add("linear_decay_steps", "linear that ends before the run", scheduled("linear", decay_steps=7))
    add("inverse_square_root", "random windows", scheduled("inverse_square_root"), data("text", sampler="random"))
    add("warmup_stable_decay", "default decay, betas", scheduled("warmup_stable_decay"),
        {"optimizer": {"beta1": 0.8, "beta2": 0.99}})
    add("stable_decay_steps", "decay_steps; no weight decay", scheduled("warmup_stable_decay", decay_steps=8),
        {"optimizer": {"weight_decay": 0}})
    add("no_warmup", "no warm-up", scheduled("cosine", warmup_steps=0))
    add("epsilon", "default ε and decay", {"optimizer": {"epsilon": 1e-8, "weight_decay": 0.1, "learning_rate": 1e-3}})
    add("clip", "every step clipped", {"optimizer": {"gradient_clip": 0.05}})
    add("accumulation", "documents, one a row; unequal numbers of targets", data("documents", sampler="documents"),
        {"trainer": {"gradient_accumulation": 3}, "optimizer": {"gradient_clip": 0.3}})
    add("ignored", "accumulation; targets that are ignored", data("dna", sampler="sequential", ignore_tokens=["N"]),
        {"trainer": {"gradient_accumulation": 2}})
    add("ema", "EMA, validated and evaluated", {"optimizer": {"ema_decay": 0.9}})
    add("packing", "packed documents, convolution, windowed hybrid with its gate",
        data("text", sampler="sequential", packing="documents"),
        small(short_convolution=3, attention={"mechanism": "windowed", "softmax_window": 4, **FAVOR}),
        {"trainer": {"gradient_accumulation": 2}})
    add("packing_learned", "packed documents, learned positions, gelu_tanh, norms of queries and keys",
        data("text", sampler="random", packing="documents"),
        small(position="learned", activation="gelu_tanh", query_key_norm="rmsnorm"))
    add("favor", "favor_positive, geglu, blocks recomputed",
        small(attention={"mechanism": "linear", **FAVOR}, activation="geglu"),
        {"trainer": {"activation_checkpointing": "blocks"}})
    add("stateful", "truncated BPTT, accumulation, convolution", data("text", n=16, sampler="stream", stateful=True),
        small(short_convolution=4, attention=LINEAR), {"trainer": {"gradient_accumulation": 2}})
    add("masked", "masked tokens, BERT's shape and head, accumulation, EMA", {"objective": {"name": "masked_tokens"}},
        encoder(**BERT, prediction_head="transform", output_bias=True), data("text", sampler="random"),
        {"trainer": {"gradient_accumulation": 2}, "optimizer": {"ema_decay": 0.8}})
    add("masked_documents", "masked tokens of padded documents", {"objective": {"name": "masked_tokens"}},
        encoder(attention=LINEAR), data("documents", sampler="documents"), {"trainer": {"gradient_accumulation": 2}})
    add("classes", "mean pooling, padding, accumulation", {"objective": {"name": "classification"}}, encoder(),
        data("classes", n=64), {"trainer": {"gradient_accumulation": 2}})
    add("class_token", "class token, post-norm, in order", {"objective": {"name": "classification",
        "pooling": "class_token"}}, encoder(**BERT), data("classes", n=64, sampler="sequential"))
    add("pairs", "pairs of documents", {"objective": {"name": "pair_classification"}}, encoder(), data("pairs", n=64))
    add("numbers", "regression of two numbers", {"objective": {"name": "regression"}}, encoder(), data("numbers", n=64),
        {"trainer": {"gradient_accumulation": 2}})
    add("sets", "sets of labels", {"objective": {"name": "multi_label_classification"}}, encoder(), data("sets", n=64))
    add("marks", "labels of tokens, unequal numbers of targets", {"objective": {"name": "token_classification"}},
        encoder(), data("marks", n=64), {"trainer": {"gradient_accumulation": 2}})
    add("shared_layers", "one block for all layers, silu", small(shared_layers=True, activation="silu", n_layers=3))
    add("lora", "adapters", small(lora_rank=4, lora_alpha=8))
    add("distillation", "temperature, both losses, accumulation", small(attention=LINEAR),
        data("documents", sampler="documents"), {"trainer": {"gradient_accumulation": 2},
        "teacher": {"loss": "distillation", "temperature": 2, "distillation_weight": 0.7}})
    add("distillation_all", "all positions", small(attention=LINEAR), data("documents", sampler="documents"),
        {"teacher": {"loss": "distillation", "positions": "all"}})
    add("transfer", "attention transfer, accumulation", small(attention=LINEAR),
        {"trainer": {"gradient_accumulation": 2}, "teacher": {"loss": "attention_transfer"}})
    add("transfer_own_input", "attention transfer, the student's input, padding", small(attention=LINEAR),
        data("documents", sampler="documents"), {"teacher": {"loss": "attention_transfer", "input": "student"}})
    add("outliers", "skipped steps; EMA", {"optimizer": {"ema_decay": 0.9}, "trainer": {"skip_outlier_factor": 1.02},
        "schedule": {"name": "constant"}})
    add("resumed", "continued after 10 steps, with accumulation and EMA", {"optimizer": {"ema_decay": 0.9},
        "trainer": {"gradient_accumulation": 2}})
    return table


MUTATIONS = {
    "adamw_cosine": ("decay of biases", "late schedule", "no bias correction", "coupled decay"),
    "epsilon": ("ε before the correction", "decay of biases"),
    "clip": ("no clipping",),
    "accumulation": ("means of means", "clipping of single batches", "ε under the root"),
    "masked": ("means of means", "EMA warm-up", "raw validation"),
    "marks": ("means of means",),
    "ema": ("EMA from zero", "EMA warm-up", "raw validation"),
}
