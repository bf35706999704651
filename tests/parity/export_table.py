"""The small models whose exports transformers_export.py compares with Furlong itself."""


def model_table():
    """name -> (model, attention, objective)."""
    table = {}

    def add(name, attention=None, objective="next_token", **model):
        if objective != "next_token":
            model.setdefault("architecture", "encoder")
        table[name] = (model, attention or {"mechanism": "linear", "feature_map": "elu1"}, objective)

    random_maps = ("favor_positive", "favor_hyperbolic", "favor_trig", "favor_relu", "oprf")
    maps = ("elu1", "relu", "exp", "taylor", "limit", "cosine", "hedgehog") + random_maps
    for name in maps:
        attention = {"mechanism": "linear", "feature_map": name, "chunk_size": 32}
        if name in random_maps:
            attention["n_features"] = 16
        add(name, attention)
        add(name + "_encoder", attention, "masked_tokens")
    favor = {"feature_map": "favor_positive", "n_features": 16, "chunk_size": 32}
    windowed = {"mechanism": "windowed", "softmax_window": 9, **favor}
    linformer = {"mechanism": "linformer", "projected_length": 12}
    add("windowed", windowed)
    add("windowed_encoder", windowed, "masked_tokens")
    add("windowed_signed", {**windowed, "feature_map": "favor_trig"})
    add("window_linear", {"mechanism": "linear", "window": 20, **favor})
    add("window_softmax", {"mechanism": "softmax", "window": 20}, position="rotary")
    add("constants", {"mechanism": "windowed", "softmax_window": 5, "centering": True, "scaling": "saderf", **favor})
    for projection in ("linear", "mean", "convolution"):
        add(f"linformer_{projection}", {**linformer, "projection": projection}, "masked_tokens")
    for sharing in ("none", "heads", "layers"):
        add(f"linformer_{sharing}", {**linformer, "sharing": sharing}, "masked_tokens", n_key_value_heads=2)
    add("mixed_layers", {"layers": ["softmax", "linear"], **favor})
    add("mixed_heads", {"heads": ["softmax", "linear", "linear", "softmax"], **favor})
    add("mixed_both", {"layers": ["windowed", "softmax windowed windowed linear"], "softmax_window": 6, **favor})
    add("normalizer_none", {"mechanism": "linear", "normalizer": "none", "feature_map": "taylor"})
    add("rotary_numerator", None, rotary_placement="numerator")
    add("rotary_numerator_favor", {"mechanism": "linear", **favor}, rotary_placement="numerator")
    add("rotary_numerator_signed", {"mechanism": "linear", "feature_map": "cosine"}, rotary_placement="numerator")
    scaled = dict(rotary_scaling_factor=4, rotary_original_length=64)
    add("rotary_linear", None, rotary_scaling="linear", rotary_scaling_factor=3)
    add("rotary_llama3", None, rotary_scaling="llama3", **scaled)
    add("rotary_yarn", None, rotary_scaling="yarn", **scaled)
    add("learned_untied", None, position="learned", tied_embeddings=False, output_bias=True)
    add("sinusoidal", None, position="sinusoidal", norm="rmsnorm", bias=False)
    add("no_positions", None, position="none", activation="gelu_tanh")
    add("post_norm", None, "masked_tokens", norm_placement="post", embedding_norm=True, n_segments=2)
    add("transform_head", None, "masked_tokens", prediction_head="transform", d_embedding=16, output_bias=True)
    add("shared_layers", windowed, shared_layers=True)
    llama = dict(n_key_value_heads=2, norm="rmsnorm", bias=False, activation="swiglu")
    add("llama_like", {"mechanism": "linear", **favor}, **llama)
    add("query_key_norm", {"mechanism": "linear", **favor}, query_key_norm="rmsnorm", activation="geglu")
    add("query_key_value_bias", None, bias=False, query_key_value_bias=True)
    add("token_dropout", {"mechanism": "linear", **favor}, "masked_tokens", token_dropout=True)
    add("short_convolution", windowed, short_convolution=4, n_key_value_heads=2)
    add("lora", {"mechanism": "linear", **favor}, lora_rank=4)
    add("classification", {"mechanism": "linear", **favor}, "classification")
    add("classification_class_token", linformer, "classification", pooling="class_token")
    add("pairs", {"mechanism": "linear", **favor}, "pair_classification", short_convolution=4)
    add("regression", windowed, "regression")
    add("multi_label", {"mechanism": "linear", **favor}, "multi_label_classification", pooling="class_token")
    add("token_labels", linformer, "token_classification")
    return table
