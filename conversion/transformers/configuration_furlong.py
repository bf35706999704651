"""Configuration of a Furlong model for Hugging Face transformers. `furlong export` writes this file."""

from transformers import PretrainedConfig


class FurlongConfig(PretrainedConfig):
    """
    Sizes:
        vocab_size, hidden_size, intermediate_size, num_hidden_layers, head_dim: as in Llama.
        num_attention_heads, num_key_value_heads: query heads, and the key-value heads that they share.
        embedding_size: width of the embeddings, which a linear map brings to hidden_size (ALBERT). 0: no map.
        type_vocab_size: rows of the table of token types. 0: no table.
        max_position_embeddings: longest sequence. Only learned positions and Linformer are bound to it.
    Blocks:
        causal: True for a decoder, False for an encoder.
        hidden_act: gelu, gelu_tanh, relu, silu, swiglu or geglu. The last two are gated.
        norm: layernorm or rmsnorm, with norm_epsilon. norm_placement: pre or post.
        embedding_norm, query_key_norm, use_bias: whether the model has them.
        query_key_value_bias: biases of queries, keys and values, also without use_bias (Qwen2).
        token_dropout: zeroes embeddings of mask_token_id and scales the others by how many they are (ESM-2).
        shared_layers: all layers are one block (ALBERT).
        short_convolution: width of a causal depthwise convolution over queries, keys and values. 0: none.
        dropout: of the embeddings and of the output of attention and feedforward.
    Positions:
        position: none, learned, sinusoidal or rotary.
        rotary_placement: before_features rotates queries and keys; numerator rotates features that weight values.
        rotary_frequencies: radians per token of each pair of dimensions, scaled for long context if the model is.
        rotary_attention_factor: factor of cosines and sines (YaRN).
        rotary_base: base of the wavelengths of rotary_placement numerator.
    Attention (attention_furlong.py):
        attention_layers: for each layer a mechanism, or one for each head, separated by spaces:
            softmax, linear, windowed (softmax for the nearest tokens, linear for the others), linformer.
        window: softmax, linear: a query sees keys at a distance below this. 0: all.
        softmax_window: windowed: the distance below which weights are exact.
        feature_map: elu1, relu, exp, favor_positive, favor_hyperbolic, favor_trig, favor_relu, oprf, taylor, limit,
            cosine or hedgehog. random_features: rows of the random projection, order: degree of a polynomial,
            kernel_epsilon: added to the features of favor_relu.
        signed_features, needs_oprf_a, learns_inputs: properties of feature_map: its features have both signs, so that
            sums of their weights can cancel; it has a constant A for each head; its rows come from a learned matrix.
        normalizer: sum divides by the sum of weights; none divides each head by its root mean square.
        denominator_guard: rows whose denominator is below this share of its magnitude are zero (maps that can cancel).
        centering, scaling: constants of queries and keys, measured by Furlong, that leave softmax unchanged.
        chunk_size: tokens of a chunk of causal linear attention.
        projected_length, projection (linear, mean, convolution), sharing (none, heads, key_value, layers): Linformer.
    Heads:
        prediction_head: linear, transform (a linear map, activation and norm before the output layer) or none.
        output_bias: whether the output layer has a bias.
        pooling: class_token or mean, for classification.
        pair_classification: rows 2i and 2i + 1 of a batch are a pair, which has one label.
        problem_type: of a sequence: regression, multi_label_classification, or None for one of several classes.
        label_scales: regression: [mean, scale] of each number; the classifier predicts (number - mean) / scale.
    furlong: what `furlong convert` reads to get the model back.
    """

    model_type = "furlong"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]

    def __init__(
        self,
        vocab_size=256,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=None,
        head_dim=None,
        embedding_size=0,
        type_vocab_size=0,
        max_position_embeddings=1024,
        causal=True,
        hidden_act="gelu",
        norm="layernorm",
        norm_epsilon=1e-5,
        norm_placement="pre",
        embedding_norm=False,
        query_key_norm=False,
        use_bias=True,
        query_key_value_bias=False,
        token_dropout=False,
        mask_token_id=None,
        shared_layers=False,
        short_convolution=0,
        dropout=0.0,
        initializer_range=0.02,
        position="none",
        rotary_placement="before_features",
        rotary_frequencies=(),
        rotary_attention_factor=1.0,
        rotary_base=10000.0,
        attention_layers=None,
        window=0,
        softmax_window=0,
        feature_map="elu1",
        signed_features=None,
        needs_oprf_a=None,
        learns_inputs=None,
        random_features=0,
        order=2,
        kernel_epsilon=1e-3,
        normalizer="sum",
        denominator_guard=2.0**-20,
        centering=False,
        scaling="none",
        chunk_size=64,
        projected_length=0,
        projection="linear",
        sharing="key_value",
        prediction_head="linear",
        output_bias=False,
        pooling="mean",
        pair_classification=False,
        label_scales=(),
        furlong=None,
        tie_word_embeddings=True,
        use_cache=True,
        **kwargs,
    ):
        properties = {"signed_features": signed_features, "needs_oprf_a": needs_oprf_a, "learns_inputs": learns_inputs}
        missing = [name for name, value in properties.items() if value is None]
        if missing and feature_map != "elu1":  # the default map has none of them
            raise ValueError(f"feature map {feature_map} needs {', '.join(missing)}, which furlong export writes")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.embedding_size = embedding_size
        self.type_vocab_size = type_vocab_size
        self.max_position_embeddings = max_position_embeddings
        self.causal = causal
        self.hidden_act = hidden_act
        self.norm = norm
        self.norm_epsilon = norm_epsilon
        self.norm_placement = norm_placement
        self.embedding_norm = embedding_norm
        self.query_key_norm = query_key_norm
        self.use_bias = use_bias
        self.query_key_value_bias = query_key_value_bias
        self.token_dropout = token_dropout
        self.mask_token_id = mask_token_id
        self.shared_layers = shared_layers
        self.short_convolution = short_convolution
        self.dropout = dropout
        self.initializer_range = initializer_range
        self.position = position
        self.rotary_placement = rotary_placement
        self.rotary_frequencies = list(rotary_frequencies)
        self.rotary_attention_factor = rotary_attention_factor
        self.rotary_base = rotary_base
        self.attention_layers = list(attention_layers or ["linear"] * num_hidden_layers)
        self.window = window
        self.softmax_window = softmax_window
        self.feature_map = feature_map
        self.signed_features = bool(signed_features)
        self.needs_oprf_a = bool(needs_oprf_a)
        self.learns_inputs = bool(learns_inputs)
        self.random_features = random_features
        self.order = order
        self.kernel_epsilon = kernel_epsilon
        self.normalizer = normalizer
        self.denominator_guard = denominator_guard
        self.centering = centering
        self.scaling = scaling
        self.chunk_size = chunk_size
        self.projected_length = projected_length
        self.projection = projection
        self.sharing = sharing
        self.prediction_head = prediction_head
        self.output_bias = output_bias
        self.pooling = pooling
        self.pair_classification = pair_classification
        self.label_scales = [list(pair) for pair in label_scales]
        self.furlong = furlong or {}
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    def heads_of_layer(self, layer):
        """[(mechanism, first head, number of heads)]: neighboring heads of one mechanism are computed together."""
        names = self.attention_layers[layer].split()
        if len(names) == 1:
            return [(names[0], 0, self.num_attention_heads)]
        starts = [head for head in range(len(names)) if head == 0 or names[head] != names[head - 1]]
        return [(names[a], a, b - a) for a, b in zip(starts, starts[1:] + [len(names)])]
