#include "trainers/settings/keys.h"

namespace furlong {

void add_run_keys(config::Table& t, Settings& s) {
  t.key("seed", &s.seed, "", "seed of all random numbers: initial weights, data order, dropout, random projections")
      .at_least(0);
  t.key("device", &s.device, "", "compute device; auto: a GPU if the build and the machine have one, otherwise the CPU")
      .like("auto|cpu|cuda(:[0-9]{1,3})?", {"auto", "cpu", "cuda", "cuda:N"});
  t.key("tf32", &s.tf32, "",
        "on a GPU: compute float32 matrix products of weights in TF32, which is faster and less precise (10-bit "
        "mantissa); no effect on the CPU or with model.dtype: bfloat16")
      .elsewhere({"allow_tf32"});
  t.key("threads", &s.threads, "", "CPU threads of this process")
      .within(1, 4096)
      .zero_means("OMP_NUM_THREADS if it is set, otherwise all cores available to the process")
      .elsewhere({"num_threads", "n_threads"});
  t.key("run_directory", &s.run_directory, "",
        "directory for config.yaml, metrics.jsonl and checkpoints; empty: runs/ followed by the config file's name "
        "without .yaml")
      .elsewhere({"output_dir", "run_dir", "out_dir", "save_dir"});
}

void add_model_keys(config::Table& t, layers::ModelConfig& m) {
  t.section("model", "the transformer; combinations of these keys give GPT-2, Llama, BERT, ESM-2 and others");
  t.key("model.architecture", &m.architecture, "", "decoder: causal language model; encoder: bidirectional attention");
  t.key("model.vocabulary_size", &m.vocabulary_size, "", "number of token ids")
      .within(2, 1e7)
      .zero_means("the vocabulary size of the data")
      .elsewhere({"vocab_size", "n_vocab"});
  t.key("model.n_layers", &m.n_layers, "", "number of transformer blocks")
      .within(1, 4096)
      .elsewhere({"num_hidden_layers", "num_layers", "n_layer", "layers", "depth"});
  t.key("model.d_model", &m.d_model, "", "hidden size (width of the residual stream)")
      .within(1, 131072)
      .elsewhere({"hidden_size", "n_embd", "dim", "embedding_dim", "hidden_dim"});
  t.key("model.n_heads", &m.attention.n_heads, "", "query heads per layer")
      .within(1, 4096)
      .elsewhere({"num_attention_heads", "num_heads", "n_head", "heads"});
  t.key("model.n_key_value_heads", &m.attention.n_kv_heads, "",
        "key and value heads per layer (grouped-query attention); each serves n_heads / n_key_value_heads query heads")
      .within(1, 4096)
      .zero_means("n_heads")
      .elsewhere({"num_key_value_heads", "n_kv_heads", "num_kv_heads"});
  t.key("model.d_head", &m.attention.d_head, "", "width of each head")
      .within(1, 16384)
      .zero_means("d_model / n_heads")
      .elsewhere({"head_dim", "dim_head", "d_key"});
  t.key("model.d_feedforward", &m.d_feedforward, "", "hidden width of the feedforward layer")
      .within(1, 1e6)
      .zero_means("4 × d_model")
      .elsewhere({"intermediate_size", "n_inner", "d_ff", "ffn_dim", "d_inner"});
  t.key("model.activation", &m.activation, "",
        "activation function of the feedforward layer; swiglu and geglu are gated and add a third weight matrix")
      .elsewhere({"hidden_act", "activation_function"});
  t.key("model.norm", &m.norm, "", "normalization layer; norm_placement sets where it is applied")
      .elsewhere({"normalization", "norm_type"});
  t.key("model.norm_epsilon", &m.norm_epsilon, "", "epsilon added to the variance (layernorm) or mean square (rmsnorm)")
      .above(0)
      .below(1)
      .elsewhere({"layer_norm_epsilon", "rms_norm_eps", "layer_norm_eps", "norm_eps"});
  t.key("model.norm_placement", &m.norm_placement, "",
        "pre: on the inputs of attention and feedforward, with a final norm (GPT-2, Llama); post: "
        "after each residual addition, without a final norm (BERT)")
      .elsewhere({"prenorm", "pre_norm", "post_norm", "norm_first"});
  t.key("model.embedding_norm", &m.embedding_norm, "",
        "normalize the sum of token, position and segment embeddings (BERT)")
      .elsewhere({"embedding_layernorm", "embed_norm"});
  t.key("model.query_key_norm", &m.query_key_norm, "",
        "none: off; rmsnorm: normalize each head's queries and keys with a learned gain before rotary positions, which "
        "bounds the scores and the variance of random features")
      .elsewhere({"qk_norm", "qk_layernorm", "use_qk_norm"});
  t.key("model.bias", &m.bias, "", "add biases to linear layers and layernorm").elsewhere({"use_bias"});
  t.key("model.query_key_value_bias", &m.query_key_value_bias, "",
        "with bias: false: add biases to the projections of queries, keys and values alone (Qwen2)")
      .only_with("model.bias", {"false"})
      .elsewhere({"qkv_bias", "add_qkv_bias"});
  t.key("model.token_dropout", &m.token_dropout, "",
        "zero the embeddings of mask tokens and scale all others by 0.88 / (1 - fraction of mask tokens in the "
        "sequence), as in ESM-2")
      .only_with("model.architecture", {"encoder"});
  t.key("model.shared_layers", &m.shared_layers, "",
        "use one block for all layers (ALBERT): they share weights, random projection and measured constants; dropout "
        "and state stay separate")
      .elsewhere({"share_layers", "num_hidden_groups", "tie_layers"});
  t.key("model.d_embedding", &m.d_embedding, "",
        "width of token, position and segment embeddings, which a linear layer maps to d_model (ALBERT)")
      .within(1, 131072)
      .zero_means("d_model, without a linear layer")
      .elsewhere({"embedding_size", "d_embed"});
  t.key("model.n_segments", &m.n_segments, "",
        "rows of the segment embedding table (BERT's token types); training uses only the first row")
      .within(1, 1e6)
      .zero_means("no segment embeddings")
      .elsewhere({"type_vocab_size", "num_token_types"});
  t.key("model.tied_embeddings", &m.tied_embeddings, "", "use the token embedding matrix as the output layer's weights")
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("model.prediction_head", {"linear", "transform"})
      .elsewhere({"tie_word_embeddings", "tie_embeddings", "weight_tying"});
  t.key("model.prediction_head", &m.prediction_head, "",
        "linear: output layer only; transform: linear layer, activation and norm before the output layer (BERT's "
        "masked language model); none: hidden states only, such as sentence embeddings, which train only with "
        "teacher.loss: attention_transfer")
      .only_with("objective.name", {"next_token", "masked_tokens"});
  t.key("model.output_bias", &m.output_bias, "", "add a bias per token to the output layer")
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("model.prediction_head", {"linear", "transform"})
      .elsewhere({"lm_head_bias"});
  t.key("model.position", &m.position, "",
        "position encoding; none: no positions; learned, sinusoidal: added to the token embedding; rotary: rotates "
        "queries and keys")
      .elsewhere({"position_embedding_type", "pos_emb"});
  t.key("model.rotary_base", &m.rotary_base, "",
        "base of the rotary wavelengths, 2π × base^(2i / d_head) tokens; with rotary_placement: numerator the number "
        "of features replaces d_head")
      .above(1)
      .only_with("model.position", {"rotary"})
      .elsewhere({"rope_theta", "rotary_emb_base"});
  t.key("model.rotary_placement", &m.rotary_placement, "",
        "before_features: rotate queries and keys before softmax or the feature map; numerator: rotate features of "
        "linear attention in the numerator only, which keeps the denominator of positive features positive")
      .only_with("model.position", {"rotary"});
  const auto rotary = [&t](config::Key& key) -> config::Key& {
    return key.only_with("model.position", {"rotary"}).only_with("model.rotary_placement", {"before_features"});
  };
  const auto scaled = [&](config::Key& key, std::vector<std::string> kinds) -> config::Key& {
    return rotary(key).only_with("model.rotary_scaling", std::move(kinds));
  };
  rotary(t.key("model.rotary_scaling", &m.rotary_scaling.kind, "",
               "context extension of a trained model by slower rotation, as in Hugging Face transformers; none: off; "
               "linear: scale all wavelengths; llama3: scale long wavelengths, blend medium ones, keep short ones; "
               "yarn: ramp over the wavelengths, with larger scores"))
      .elsewhere({"rope_scaling", "rope_type", "rope_parameters"});
  scaled(t.key("model.rotary_scaling_factor", &m.rotary_scaling.factor, "",
               "ratio of the extended to the original context length")
             .at_least(1),
         {"linear", "llama3", "yarn"})
      .elsewhere({"rope_factor", "rope_scaling_factor"});
  scaled(t.key("model.rotary_original_length", &m.rotary_scaling.original_length, "tokens",
               "context length before the extension")
             .within(1, 1e12)
             .zero_means("max_sequence_length"),
         {"llama3", "yarn"})
      .elsewhere({"original_max_position_embeddings"});
  scaled(t.key("model.rotary_low_frequency_factor", &m.rotary_scaling.low_frequency_factor, "rotations",
               "pairs with fewer rotations than this within the original length are slowed by the full factor")
             .above(0),
         {"llama3"})
      .elsewhere({"low_freq_factor"});
  scaled(t.key("model.rotary_high_frequency_factor", &m.rotary_scaling.high_frequency_factor, "rotations",
               "pairs with more rotations than this within the original length stay unchanged")
             .above(0),
         {"llama3"})
      .elsewhere({"high_freq_factor"});
  scaled(t.key("model.rotary_beta_fast", &m.rotary_scaling.beta_fast, "rotations",
               "pairs with more rotations than this within the original length stay unchanged")
             .above(0),
         {"yarn"})
      .elsewhere({"beta_fast"});
  scaled(t.key("model.rotary_beta_slow", &m.rotary_scaling.beta_slow, "rotations",
               "pairs with fewer rotations than this within the original length are slowed by the full factor")
             .above(0),
         {"yarn"})
      .elsewhere({"beta_slow"});
  scaled(t.key("model.rotary_attention_factor", &m.rotary_scaling.attention_factor, "",
               "factor applied to rotated queries and keys")
             .above(0)
             .zero_means("0.1 ln(rotary_scaling_factor) + 1"),
         {"yarn"})
      .elsewhere({"attention_factor"});
  t.key("model.max_sequence_length", &m.max_sequence_length, "tokens",
        "longest sequence that the model is trained with: the number of learned positions, the length of a Linformer "
        "projection, and max_position_embeddings of an export; with other positions a model also reads longer ones")
      .within(1, 1e12)
      .zero_means("data.sequence_length")
      .elsewhere({"max_position_embeddings", "n_positions", "block_size", "max_seq_len", "context_length", "n_ctx"});
  t.key("model.dropout", &m.dropout, "",
        "dropout probability in training, for embeddings, for the outputs of attention and feedforward, and for the "
        "input of the classifier of labels; attention weights have no dropout")
      .within(0, 1)
      .below(1)
      .elsewhere({"resid_pdrop", "hidden_dropout_prob", "embd_pdrop"});
  t.key("model.short_convolution", &m.short_convolution, "tokens",
        "width of a causal depthwise convolution on queries, keys and values; small models with linear attention "
        "hardly learn text without it")
      .within(2, 16)
      .zero_means("off");
  t.key("model.initializer_range", &m.initializer_range, "",
        "standard deviation of the normal distribution of initial weights; divided by √(2 n_layers) in the output "
        "layers of attention and feedforward; with model.position: sinusoidal that of token embeddings is 1, unless "
        "they are tied to the output layer")
      .above(0)
      .below(10)
      .elsewhere({"init_std", "initializer_std"});
  t.key("model.lora_rank", &m.adapter.rank, "",
        "rank r of LoRA adapters W + lora_alpha / r · B A on the linear layers of attention and feedforward; most "
        "other weights are frozen (docs/config.md: LoRA)")
      .within(1, 65536)
      .zero_means("no adapters; all weights are trained")
      .elsewhere({"lora_r", "r"});
  t.key("model.lora_alpha", &m.adapter.alpha, "", "LoRA scaling; adapters are multiplied by lora_alpha / lora_rank")
      .above(0)
      .only_with("model.lora_rank")
      .elsewhere({"lora_scaling"});
  t.key("model.dtype", config::Choice(&m.dtype, std::vector{DType::float32, DType::bfloat16}), "",
        "data type of weights and activations; float32: single precision; bfloat16: mixed precision, with float32 "
        "master weights in the optimizer")
      .elsewhere({"torch_dtype", "precision", "bf16", "fp16"});
  t.key("model.weights", &m.weights, "",
        "checkpoint, or run directory (its best checkpoint), of the initial weights; see docs/config.md: Initial "
        "weights")
      .elsewhere({"init_from", "pretrained", "pretrained_model_name_or_path", "init_checkpoint"});
}

}  // namespace furlong
