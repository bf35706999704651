#include "trainers/settings/keys.h"

namespace furlong {

void add_run_keys(config::Table& t, Settings& s) {
  t.key("seed", &s.seed, "", "seed of every random number: weights, data order, dropout, directions of features")
      .at_least(0);
  t.key("device", &s.device, "", "where to compute; auto takes a GPU if this build and this machine have one")
      .like("auto|cpu|cuda(:[0-9]{1,3})?", {"auto", "cpu", "cuda", "cuda:N"});
  t.key("tf32", &s.tf32, "",
        "on a GPU: float32 matrix products of weights in TF32 (10 bits of each operand) on tensor cores, faster and "
        "less exact; without effect on the CPU and with model.dtype bfloat16")
      .elsewhere({"allow_tf32"});
  t.key("threads", &s.threads, "threads", "CPU threads of this process")
      .within(1, 4096)
      .zero_means("all cores that it may use")
      .elsewhere({"num_threads", "n_threads"});
  t.key("run_directory", &s.run_directory, "",
        "folder of the run (config.yaml, metrics.jsonl, checkpoints); empty: runs/ and the name of the config file")
      .elsewhere({"output_dir", "run_dir", "out_dir", "save_dir"});
}

void add_model_keys(config::Table& t, layers::ModelConfig& m) {
  t.section("model", "the transformer; GPT-2, Llama, BERT and ALBERT are all combinations of these keys");
  t.key("model.architecture", &m.architecture, "",
        "decoder: causal language model; encoder: each token sees all others");
  t.key("model.vocabulary_size", &m.vocabulary_size, "tokens", "number of token ids that the model knows")
      .within(2, 1e7)
      .zero_means("that of the data store")
      .elsewhere({"vocab_size", "n_vocab"});
  t.key("model.n_layers", &m.n_layers, "blocks", "blocks of attention and feedforward")
      .within(1, 4096)
      .elsewhere({"num_hidden_layers", "num_layers", "n_layer", "depth"});
  t.key("model.d_model", &m.d_model, "numbers", "width of the residual stream")
      .within(1, 131072)
      .elsewhere({"hidden_size", "n_embd", "dim", "embedding_dim", "hidden_dim"});
  t.key("model.n_heads", &m.attention.n_heads, "heads", "query heads of each attention")
      .within(1, 4096)
      .elsewhere({"num_attention_heads", "num_heads", "n_head", "heads"});
  t.key("model.n_key_value_heads", &m.attention.n_kv_heads, "heads",
        "key and value heads, each shared by n_heads / n_key_value_heads query heads")
      .within(1, 4096)
      .zero_means("n_heads")
      .elsewhere({"num_key_value_heads", "n_kv_heads", "num_kv_heads"});
  t.key("model.d_head", &m.attention.d_head, "numbers", "width of a head")
      .within(1, 16384)
      .zero_means("d_model / n_heads")
      .elsewhere({"head_dim", "dim_head", "d_key"});
  t.key("model.d_feedforward", &m.d_feedforward, "numbers", "width inside the feedforward")
      .within(1, 1e6)
      .zero_means("4 × d_model")
      .elsewhere({"intermediate_size", "n_inner", "d_ff", "ffn_dim", "d_inner"});
  t.key("model.activation", &m.activation, "",
        "nonlinearity of the feedforward; swiglu and geglu are gated, with a third matrix")
      .elsewhere({"hidden_act", "activation_function"});
  t.key("model.norm", &m.norm, "", "normalisation of the residual stream, at the places that norm_placement names")
      .elsewhere({"normalization", "norm_type"});
  t.key("model.norm_epsilon", &m.norm_epsilon, "", "added to the variance (layernorm) or mean square (rmsnorm)")
      .above(0)
      .below(1)
      .elsewhere({"layer_norm_epsilon", "rms_norm_eps", "layer_norm_eps", "norm_eps"});
  t.key("model.norm_placement", &m.norm_placement, "",
        "before: of what goes into attention and feedforward, and once more at the end (GPT-2, Llama); after: of the "
        "stream after each of the two was added, without one at the end (BERT)")
      .elsewhere({"prenorm", "pre_norm", "post_norm", "norm_first"});
  t.key("model.embedding_norm", &m.embedding_norm, "",
        "whether the sum of token, position and segment embeddings is normalised too (BERT)")
      .elsewhere({"embedding_layernorm", "embed_norm"});
  t.key("model.query_key_norm", &m.query_key_norm, "",
        "rmsnorm: each head's query and key are normalised, with a learned gain, before they are rotated; it bounds "
        "the scores, and with them the variance of random features")
      .elsewhere({"qk_norm", "qk_layernorm", "use_qk_norm"});
  t.key("model.bias", &m.bias, "", "whether linear maps and layernorm have biases").elsewhere({"use_bias"});
  t.key("model.shared_layers", &m.shared_layers, "",
        "whether all layers are one block, run n_layers times (ALBERT): its weights, its attention's random directions "
        "and measured constants are those of each layer; dropout and state are a layer's own")
      .elsewhere({"share_layers", "num_hidden_groups", "tie_layers"});
  t.key("model.d_embedding", &m.d_embedding, "numbers",
        "width of token, position and segment embeddings, which a linear map then brings to d_model (ALBERT)")
      .within(1, 131072)
      .zero_means("d_model, without a map")
      .elsewhere({"embedding_size", "d_embed"});
  t.key("model.n_segments", &m.n_segments, "segments",
        "rows of a table that is added to the token embeddings, one for each kind of segment (BERT's token types); in "
        "training all tokens are of the first")
      .within(1, 1e6)
      .zero_means("no such table")
      .elsewhere({"type_vocab_size", "num_token_types"});
  t.key("model.tied_embeddings", &m.tied_embeddings, "", "whether the output layer uses the token embedding's matrix")
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("model.prediction_head", {"linear", "transform"})
      .elsewhere({"tie_word_embeddings", "tie_embeddings", "weight_tying"});
  t.key("model.prediction_head", &m.prediction_head, "",
        "what stands in front of the output layer; linear: nothing; transform: a linear map to the width of the "
        "embeddings, the activation and a norm (BERT's masked language model); none: there is no output layer, hidden "
        "states are all that the model gives, and teacher.loss: transfer the only training (models of sentence "
        "embeddings); an objective over labels has a head of its own, and this key is left out")
      .only_with("objective.name", {"next_token", "masked_tokens"});
  t.key("model.output_bias", &m.output_bias, "", "whether the output layer has a bias for each token")
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("model.prediction_head", {"linear", "transform"})
      .elsewhere({"lm_head_bias"});
  t.key("model.position", &m.position, "",
        "how the model knows positions; learned and sinusoidal are added to the embedding, rotary turns queries and "
        "keys")
      .elsewhere({"position_embedding_type", "pos_emb"});
  t.key("model.rotary_base", &m.rotary_base, "",
        "base of the wavelengths of rotary positions: 2π × base^(2i / d_head) tokens (rotary_placement: numerator: 2i "
        "over the number of features)")
      .above(1)
      .only_with("model.position", {"rotary"})
      .elsewhere({"rope_theta", "rotary_emb_base"});
  t.key("model.rotary_placement", &m.rotary_placement, "",
        "before_features: queries and keys are turned, before softmax or a feature map; numerator: with linear "
        "attention, features are turned where they weigh values and not where weights are summed to divide by, so that "
        "the divisor of positive features stays positive")
      .only_with("model.position", {"rotary"});
  const auto rotary = [&t](config::Key& key) -> config::Key& {
    return key.only_with("model.position", {"rotary"}).only_with("model.rotary_placement", {"before_features"});
  };
  const auto scaled = [&](config::Key& key, std::vector<std::string> kinds) -> config::Key& {
    return rotary(key).only_with("model.rotary_scaling", std::move(kinds));
  };
  rotary(t.key("model.rotary_scaling", &m.rotary_scaling.kind, "",
               "how a model that was trained on shorter texts reads longer ones, by slower rotation; linear: all "
               "wavelengths times the factor; llama3: long ones, short ones not, a blend between; yarn: a ramp over "
               "the wavelengths, and larger scores; arithmetic as in Hugging Face transformers"))
      .elsewhere({"rope_scaling", "rope_type", "rope_parameters"});
  scaled(t.key("model.rotary_scaling_factor", &m.rotary_scaling.factor, "", "how many times longer the texts are")
             .at_least(1),
         {"linear", "llama3", "yarn"})
      .elsewhere({"rope_factor", "rope_scaling_factor"});
  scaled(
      t.key("model.rotary_original_length", &m.rotary_scaling.original_length, "tokens", "length of the texts before")
          .within(1, 1e12)
          .zero_means("max_sequence_length"),
      {"llama3", "yarn"})
      .elsewhere({"original_max_position_embeddings"});
  scaled(t.key("model.rotary_low_frequency_factor", &m.rotary_scaling.low_frequency_factor, "turns",
               "pairs that turn less often than this in the original length are slowed by the whole factor")
             .above(0),
         {"llama3"})
      .elsewhere({"low_freq_factor"});
  scaled(t.key("model.rotary_high_frequency_factor", &m.rotary_scaling.high_frequency_factor, "turns",
               "pairs that turn more often than this in the original length are left as they are")
             .above(0),
         {"llama3"})
      .elsewhere({"high_freq_factor"});
  scaled(t.key("model.rotary_beta_fast", &m.rotary_scaling.beta_fast, "turns",
               "pairs that turn more often than this in the original length are left as they are")
             .above(0),
         {"yarn"})
      .elsewhere({"beta_fast"});
  scaled(t.key("model.rotary_beta_slow", &m.rotary_scaling.beta_slow, "turns",
               "pairs that turn less often than this in the original length are slowed by the whole factor")
             .above(0),
         {"yarn"})
      .elsewhere({"beta_slow"});
  scaled(t.key("model.rotary_attention_factor", &m.rotary_scaling.attention_factor, "",
               "what rotated queries and keys are multiplied by")
             .above(0)
             .zero_means("0.1 ln(rotary_scaling_factor) + 1"),
         {"yarn"})
      .elsewhere({"attention_factor"});
  t.key("model.max_sequence_length", &m.max_sequence_length, "tokens",
        "longest sequence that the model is made for; the number of learned positions")
      .within(1, 1e12)
      .zero_means("data.sequence_length")
      .elsewhere({"max_position_embeddings", "n_positions", "block_size", "max_seq_len", "context_length", "n_ctx"});
  t.key("model.dropout", &m.dropout, "",
        "probability of dropping an activation in training: of the embeddings, and of what attention and feedforward "
        "add; weights of attention are never dropped")
      .within(0, 1)
      .below(1)
      .elsewhere({"resid_pdrop", "hidden_dropout_prob", "embd_pdrop"});
  t.key("model.short_convolution", &m.short_convolution, "tokens",
        "width of a causal depthwise convolution on queries, keys and values; small linear models hardly learn text "
        "without one")
      .within(2, 16)
      .zero_means("off");
  t.key("model.initializer_range", &m.initializer_range, "",
        "standard deviation of the normal distribution of new weights")
      .above(0)
      .below(10)
      .elsewhere({"init_std", "initializer_std"});
  t.key("model.lora_rank", &m.adapter.rank, "",
        "rank r of adapters beside the linear maps of attention and feedforward (LoRA), W + lora_alpha / r · B A, "
        "where B begins as zero; these maps and all other weights are then frozen, but for what attention has besides "
        "its maps, which is trained as well: feature maps, gates, norms of queries and keys, gains, convolutions, "
        "projections along the sequence; and for the classifier of labels")
      .within(1, 65536)
      .zero_means("no adapters, all weights are trained")
      .elsewhere({"lora_r", "r"});
  t.key("model.lora_alpha", &m.adapter.alpha, "",
        "scale of the adapters: they are multiplied by lora_alpha / lora_rank")
      .above(0)
      .only_with("model.lora_rank")
      .elsewhere({"lora_scaling"});
  t.key("model.dtype", config::Choice(&m.dtype, std::vector{DType::float32, DType::bfloat16}), "",
        "type that activations and weights are computed in; with bfloat16 the optimizer keeps float32 weights")
      .elsewhere({"torch_dtype", "precision"});
  t.key("model.weights", &m.weights, "",
        "a checkpoint, or a run directory (its best checkpoint), whose weights the run begins from; what it lacks "
        "begins as in a new model, and a longer table of learned positions repeats the checkpoint's; a run that is "
        "resumed goes on from its own")
      .elsewhere({"init_from", "pretrained", "pretrained_model_name_or_path", "init_checkpoint"});
}

}  // namespace furlong
