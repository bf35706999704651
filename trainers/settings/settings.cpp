#include "trainers/settings/settings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "datasets/vocabulary.h"
#include "framework/config/reader.h"
#include "framework/config/writer.h"
#include "framework/core/error.h"
#include "layers/attention/linear/directions.h"
#include "layers/attention/linformer/linformer_mechanism.h"
#include "layers/blocks/block.h"
#include "trainers/settings/attention_config.h"

namespace furlong {
namespace {

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

void add_model_keys(config::Table& t, ModelSettings& m) {
  t.section("model", "the transformer; GPT-2, Llama, BERT and ALBERT are all combinations of these keys");
  t.key("model.architecture", &m.architecture, "",
        "decoder: causal language model; encoder: each token sees all others")
      .one_of({"decoder", "encoder"});
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
  t.key("model.n_heads", &m.n_heads, "heads", "query heads of each attention")
      .within(1, 4096)
      .elsewhere({"num_attention_heads", "num_heads", "n_head", "heads"});
  t.key("model.n_key_value_heads", &m.n_key_value_heads, "heads",
        "key and value heads, each shared by n_heads / n_key_value_heads query heads")
      .within(1, 4096)
      .zero_means("n_heads")
      .elsewhere({"num_key_value_heads", "n_kv_heads", "num_kv_heads"});
  t.key("model.d_head", &m.d_head, "numbers", "width of a head")
      .within(1, 16384)
      .zero_means("d_model / n_heads")
      .elsewhere({"head_dim", "dim_head", "d_key"});
  t.key("model.d_feedforward", &m.d_feedforward, "numbers", "width inside the feedforward")
      .within(1, 1e6)
      .zero_means("4 × d_model")
      .elsewhere({"intermediate_size", "n_inner", "d_ff", "ffn_dim", "d_inner"});
  t.key("model.activation", &m.activation, "",
        "nonlinearity of the feedforward; swiglu and geglu are gated, with a third matrix")
      .one_of({"gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu"})
      .elsewhere({"hidden_act", "activation_function"});
  t.key("model.norm", &m.norm, "", "normalisation of the residual stream, at the places that norm_placement names")
      .one_of({"layernorm", "rmsnorm"})
      .elsewhere({"normalization", "norm_type"});
  t.key("model.norm_epsilon", &m.norm_epsilon, "", "added to the variance (layernorm) or mean square (rmsnorm)")
      .above(0)
      .below(1)
      .elsewhere({"layer_norm_epsilon", "rms_norm_eps", "layer_norm_eps", "norm_eps"});
  t.key("model.norm_placement", &m.norm_placement, "",
        "before: of what goes into attention and feedforward, and once more at the end (GPT-2, Llama); after: of the "
        "stream after each of the two was added, without one at the end (BERT)")
      .one_of({"before", "after"})
      .elsewhere({"prenorm", "pre_norm", "post_norm", "norm_first"});
  t.key("model.embedding_norm", &m.embedding_norm, "",
        "whether the sum of token, position and segment embeddings is normalised too (BERT)")
      .elsewhere({"embedding_layernorm", "embed_norm"});
  t.key("model.query_key_norm", &m.query_key_norm, "",
        "rmsnorm: each head's query and key are normalised, with a learned gain, before they are rotated; it bounds "
        "the scores, and with them the variance of random features")
      .one_of({"none", "rmsnorm"})
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
      .one_of({"linear", "transform", "none"})
      .only_with("objective.name", {"next_token", "masked_tokens"});
  t.key("model.output_bias", &m.output_bias, "", "whether the output layer has a bias for each token")
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("model.prediction_head", {"linear", "transform"})
      .elsewhere({"lm_head_bias"});
  t.key("model.position", &m.position, "",
        "how the model knows positions; learned and sinusoidal are added to the embedding, rotary turns queries and "
        "keys")
      .one_of({"none", "learned", "sinusoidal", "rotary"})
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
      .one_of({"before_features", "numerator"})
      .only_with("model.position", {"rotary"});
  const auto rotary = [&t](config::Key& key) -> config::Key& {
    return key.only_with("model.position", {"rotary"}).only_with("model.rotary_placement", {"before_features"});
  };
  const auto scaled = [&](config::Key& key, std::vector<std::string> kinds) -> config::Key& {
    return rotary(key).only_with("model.rotary_scaling", std::move(kinds));
  };
  rotary(t.key("model.rotary_scaling", &m.rotary_scaling, "",
               "how a model that was trained on shorter texts reads longer ones, by slower rotation; linear: all "
               "wavelengths times the factor; llama3: long ones, short ones not, a blend between; yarn: a ramp over "
               "the wavelengths, and larger scores; arithmetic as in Hugging Face transformers")
             .one_of({"none", "linear", "llama3", "yarn"}))
      .elsewhere({"rope_scaling", "rope_type", "rope_parameters"});
  scaled(t.key("model.rotary_scaling_factor", &m.rotary_scaling_factor, "", "how many times longer the texts are")
             .at_least(1),
         {"linear", "llama3", "yarn"})
      .elsewhere({"rope_factor", "rope_scaling_factor"});
  scaled(t.key("model.rotary_original_length", &m.rotary_original_length, "tokens", "length of the texts before")
             .within(1, 1e12)
             .zero_means("max_sequence_length"),
         {"llama3", "yarn"})
      .elsewhere({"original_max_position_embeddings"});
  scaled(t.key("model.rotary_low_frequency_factor", &m.rotary_low_frequency_factor, "turns",
               "pairs that turn less often than this in the original length are slowed by the whole factor")
             .above(0),
         {"llama3"})
      .elsewhere({"low_freq_factor"});
  scaled(t.key("model.rotary_high_frequency_factor", &m.rotary_high_frequency_factor, "turns",
               "pairs that turn more often than this in the original length are left as they are")
             .above(0),
         {"llama3"})
      .elsewhere({"high_freq_factor"});
  scaled(t.key("model.rotary_beta_fast", &m.rotary_beta_fast, "turns",
               "pairs that turn more often than this in the original length are left as they are")
             .above(0),
         {"yarn"})
      .elsewhere({"beta_fast"});
  scaled(t.key("model.rotary_beta_slow", &m.rotary_beta_slow, "turns",
               "pairs that turn less often than this in the original length are slowed by the whole factor")
             .above(0),
         {"yarn"})
      .elsewhere({"beta_slow"});
  scaled(t.key("model.rotary_attention_factor", &m.rotary_attention_factor, "",
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
  t.key("model.lora_rank", &m.lora_rank, "",
        "rank r of adapters beside the linear maps of attention and feedforward (LoRA), W + lora_alpha / r · B A, "
        "where B begins as zero; these maps and all other weights are then frozen, but for what attention has besides "
        "its maps, which is trained as well: feature maps, gates, norms of queries and keys, gains, convolutions, "
        "projections along the sequence; and for the classifier of labels")
      .within(1, 65536)
      .zero_means("no adapters, all weights are trained")
      .elsewhere({"lora_r", "r"});
  t.key("model.lora_alpha", &m.lora_alpha, "", "scale of the adapters: they are multiplied by lora_alpha / lora_rank")
      .above(0)
      .only_with("model.lora_rank")
      .elsewhere({"lora_scaling"});
  t.key("model.dtype", &m.dtype, "",
        "type that activations and weights are computed in; with bfloat16 the optimizer keeps float32 weights")
      .one_of({"float32", "bfloat16"})
      .elsewhere({"torch_dtype", "precision"});
  t.key("model.weights", &m.weights, "",
        "a checkpoint, or a run directory (its best checkpoint), whose weights the run begins from; what it lacks "
        "begins as in a new model, and a longer table of learned positions repeats the checkpoint's; a run that is "
        "resumed goes on from its own")
      .elsewhere({"init_from", "pretrained", "pretrained_model_name_or_path", "init_checkpoint"});
}

// Conditions of the keys of attention: on mechanisms, which layers and heads may name too, and on feature maps.
config::Key& with_mechanisms(config::Key& key, std::vector<std::string> mechanisms) {
  return key.only_with("model.attention.mechanism", std::move(mechanisms))
      .or_in_lists({"model.attention.layers", "model.attention.heads"});
}
config::Key& with_features(config::Key& key) { return with_mechanisms(key, {"linear", "windowed"}); }
config::Key& with_maps(config::Key& key, std::vector<std::string> maps) {
  return with_features(key).only_with("model.attention.feature_map", std::move(maps));
}

template <class Wanted>
std::vector<std::string> maps_that(const Wanted& wanted) {
  std::vector<std::string> names;
  for (const ops::FeatureMapInfo& map : ops::feature_maps())
    if (wanted(map)) names.emplace_back(map.name);
  return names;
}

/// NAME: what it is; NAME: what it is.
std::string summaries(const std::vector<ops::FeatureMapInfo>& maps) {
  std::string text;
  for (const ops::FeatureMapInfo& map : maps)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", map.name, map.summary);
  return text;
}

void add_attention_keys(config::Table& t, AttentionSettings& a) {
  const auto names = [](const auto& list) {
    std::vector<std::string> result;
    for (const auto& item : list) result.emplace_back(item.name);
    return result;
  };
  const auto polynomials = maps_that([](const ops::FeatureMapInfo& map) { return map.highest_order > 0; });
  const auto random_maps = maps_that([](const ops::FeatureMapInfo& map) { return map.needs_directions; });
  std::vector<std::string> directions, sharings;
  for (const auto& [kind, name] : layers::directions_kinds()) directions.emplace_back(name);
  for (const auto& [kind, name] : layers::projection_sharings()) sharings.emplace_back(name);
  t.section("model.attention",
            "exact attention, or attention whose cost grows linearly with length; definitions and measured errors are "
            "in docs/numerics.md");
  t.key("model.attention.mechanism", &a.mechanism, "",
        "softmax: exact; linear: through a feature map of queries and keys; windowed: softmax for the nearest tokens "
        "and a feature map for all others; linformer: softmax over a projected sequence, encoders only")
      .one_of(names(layers::attention_mechanisms()))
      .elsewhere({"attention_type", "attn_type", "kind"});
  t.key("model.attention.layers", &a.layers, "",
        "the mechanism of each layer, in the place of mechanism: [softmax, linear, linear, ...]; where heads of a "
        "layer differ, one for each head of it, separated by spaces: [softmax linear linear softmax, linear, ...]")
      .elsewhere({"layer_types", "attention_layers", "attn_layers"});
  t.key("model.attention.heads", &a.heads, "",
        "the mechanism of each head, the same in every layer, in the place of mechanism: [softmax, linear, ...]");
  with_mechanisms(t.key("model.attention.window", &a.window, "tokens",
                        "softmax, linear: keys so far away are not seen, so that a token sees this many, itself "
                        "included (encoders: on either side)")
                      .within(1, 1e12)
                      .zero_means("all are seen"),
                  {"softmax", "linear"})
      .elsewhere({"sliding_window", "window_size", "attention_window"});
  with_mechanisms(t.key("model.attention.softmax_window", &a.softmax_window, "tokens",
                        "windowed: how many of the nearest tokens, itself included, get softmax's exact weights "
                        "(encoders: on either side); all others get the feature map's")
                      .within(1, 1e12)
                      .zero_means("none; windowed needs some"),
                  {"windowed"})
      .elsewhere({"local_window", "local_window_size"});
  with_features(t.key("model.attention.feature_map", &a.feature_map, "", summaries(ops::feature_maps()))
                    .one_of(names(ops::feature_maps())))
      .elsewhere({"kernel", "kernel_fn"});
  with_features(t.key("model.attention.n_features", &a.n_features, "features",
                      "features of each head; more approximate softmax better and cost more")
                    .within(1, 65536)
                    .zero_means("2 × d_head with random features, else what the feature map has"))
      .elsewhere({"nb_features", "num_features", "n_random_features"});
  with_maps(
      t.key("model.attention.order", &a.order, "",
            "degree of the polynomial, 1 to 3 for taylor, 1 to 4 for limit; weights can be negative with odd ones")
          .within(1, 4),
      polynomials);
  with_features(
      t.key("model.attention.kernel_epsilon", &a.kernel_epsilon, "",
            "added to every feature, part of the kernel's definition: of favor_relu without compat, and of both maps "
            "of compat: performer_pytorch")
          .above(0)
          .within(0, 1)
          .zero_means(
              "the map's or the library's own: 0.001 with favor_relu, 0.0001 with performer_pytorch's favor_positive"));
  with_maps(
      t.key("model.attention.most_features", &a.most_features, "features", "polynomials that have more are refused")
          .within(1, 1e6),
      polynomials);
  with_mechanisms(t.key("model.attention.normalizer", &a.normalizer, "",
                        "sum: outputs are weighted means of values; none: weighted sums, of which each head is divided "
                        "by its root mean square and multiplied by a learned gain")
                      .one_of({"sum", "none"}),
                  {"linear"});
  with_features(t.key("model.attention.centering", &a.centering, "",
                      "take the mean query and the mean key of each head away, of earlier optimizer steps; softmax is "
                      "unchanged by it, and random features have less variance"));
  with_features(
      t.key("model.attention.scaling", &a.scaling, "",
            "saderf: scale dimensions of queries up and of keys down, or the reverse, until both have the same mean "
            "square, that of earlier optimizer steps; q·k is unchanged by it, and random features have less variance")
          .one_of({"none", "saderf"}));
  with_maps(t.key("model.attention.denominator_guard", &a.denominator_guard, "",
                  "with features of both signs: an output is zero where the sum of its weights is smaller than this "
                  "share of the sum of magnitudes")
                .within(0, 1)
                .below(1),
            maps_that([](const ops::FeatureMapInfo& map) { return ops::can_cancel(map.map); }))
      .only_with("model.attention.normalizer", {"sum"})
      .only_with("model.attention.compat", {"none"});
  with_maps(t.key("model.attention.directions", &a.directions, "",
                  "random directions of the features: orthogonal in blocks (smaller variance) with norms as of "
                  "Gaussian rows; orthogonal_fixed_norm: norms √d_head; norm_stratified: norms at the quantiles; "
                  "structured: random signs and Hadamard transforms; iid: independent")
                .one_of(directions),
            random_maps);
  with_maps(t.key("model.attention.redraw_every", &a.redraw_every, "steps",
                  "optimizer steps after which new directions are drawn")
                .within(1, 1e12)
                .zero_means("never"),
            random_maps)
      .elsewhere({"feature_redraw_interval"});
  with_features(t.key("model.attention.chunk_size", &a.chunk_size, "tokens",
                      "length of a chunk, inside which the causal form is computed directly")
                    .within(16, 256))
      .only_with("model.attention.compat", {"none"})
      .elsewhere({"chunk_len", "chunk_length"});
  with_mechanisms(t.key("model.attention.compat", &a.compat, "",
                        "compute linear attention as this library does, its epsilons and stabilisers included, for "
                        "models that were trained with it; slower, and without generation")
                      .one_of({"none", "performer_pytorch", "fast_transformers"}),
                  {"linear"});
  with_mechanisms(
      t.key("model.attention.compat_stabilize", &a.compat_stabilize, "",
            "that library's argument stabilize: features are divided by exp of the sequence's greatest |x|²/√d"),
      {"linear"})
      .only_with("model.attention.compat", {"fast_transformers"})
      .only_with("model.attention.feature_map", {"favor_hyperbolic"});
  with_mechanisms(t.key("model.attention.projected_length", &a.projected_length, "rows",
                        "length that keys and values are projected to (k in the paper)")
                      .within(1, 1e9)
                      .zero_means("a quarter of max_sequence_length, at most 256"),
                  {"linformer"})
      .elsewhere({"linformer_k", "proj_k", "compressed"});
  with_mechanisms(
      t.key("model.attention.projection", &a.projection, "",
            "along the sequence: a learned matrix, means of neighbouring tokens, or a learned strided convolution")
          .one_of({"linear", "mean", "convolution"}),
      {"linformer"});
  with_mechanisms(t.key("model.attention.sharing", &a.sharing, "",
                        "who shares a projection: none: each head has its own for keys and for values; heads: the "
                        "heads of a layer; key_value: keys and values too; layers: all layers too")
                      .one_of(sharings),
                  {"linformer"})
      .only_with("model.attention.projection", {"linear", "convolution"});
}

void add_data_keys(config::Table& t, DataSettings& d, bool requires_store) {
  t.section("data",
            "the tokens to train on; unless packing separates them, windows cross the borders of documents, and "
            "attention and convolution see across them: only targets at breaks of a split are left out of the loss");
  t.key("data.task", &d.task, "",
        "none: data.store; copy: no store, but sequences made as they are needed: <, random symbols, =, the same "
        "symbols again, the second time as targets (with objective.name: masked_tokens: hidden, and to be filled in)")
      .one_of({"none", "copy"});
  t.key("data.task_symbols", &d.task_symbols, "symbols", "how many different symbols there are to copy")
      .within(1, static_cast<double>(Vocabulary::most_copy_symbols))
      .only_with("data.task", {"copy"});
  t.key("data.task_shortest", &d.task_shortest, "symbols",
        "copies to train on are of all lengths from this one to what sequence_length has room for, equally often")
      .within(1, 1e9)
      .zero_means("all have the full length")
      .only_with("data.task", {"copy"});
  auto& store = t.key("data.store", &d.store, "", "HDF5 token store that furlong prepare has written")
                    .only_with("data.task", {"none"})
                    .elsewhere({"dataset", "data_dir", "train_file", "file"});
  if (requires_store) store.required();
  t.key("data.sequence_length", &d.sequence_length, "tokens", "length of a training sequence")
      .within(1, 1e9)
      .elsewhere({"seq_len", "seq_length", "max_length"});
  t.key("data.batch_size", &d.batch_size, "sequences",
        "sequences (matching: pairs of them) in one forward and backward pass")
      .within(1, 1e6)
      .elsewhere({"per_device_train_batch_size", "micro_batch_size", "train_batch_size"});
  t.key("data.sampler", &d.sampler, "",
        "random: windows from anywhere in the split; sequential: one after another, from the start; stream: documents "
        "in consecutive segments, each row of the batch walking through a stretch of its own; documents: a row is one "
        "document, or as much of it as sequence_length has room for and the rest in further rows, padded behind, all "
        "of them once in an epoch")
      .one_of({"random", "sequential", "stream", "documents"})
      .only_with("data.task", {"none"});
  t.key("data.carry_state", &d.carry_state, "",
        "whether the recurrent state of each layer goes on from segment to segment, so that a token sees all of its "
        "document before it; gradients end at the segment. A row begins its stretch of the split with an empty state, "
        "in training wherever that is; for validation and evaluate stretches begin with a document where the documents "
        "allow rows of similar length, otherwise inside one, so that the loss then depends on the batch size (1: whole "
        "documents)")
      .only_with("data.sampler", {"stream"})
      .elsewhere({"stateful", "tbptt"});
  t.key("data.packing", &d.packing, "",
        "documents: documents that share a window do not see each other, in attention, convolution or targets, and "
        "positions, rotary ones too, begin again with each; none: they do")
      .one_of({"none", "documents"})
      .only_with("data.sampler", {"random", "sequential"})
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("data.task", {"none"})
      .elsewhere({"pack_sequences", "sample_packing"});
  t.key("data.ignore_tokens", &d.ignore_tokens, "",
        "symbols of the store's alphabet that are left out of the loss, such as [N] for unknown bases")
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("data.task", {"none"})
      .elsewhere({"ignore_index"});
  t.key("data.padding", &d.padding, "",
        "how long rows of one document are, with data.sampler: documents and where labels are learned: longest: as the "
        "longest of the batch, rounded up to 64; sequence_length: always that")
      .one_of({"longest", "sequence_length"})
      .only_with("data.sampler", {"documents"})
      .or_with("objective.name", {"classification", "matching"});
}

void add_objective_keys(config::Table& t, ObjectiveSettings& o) {
  t.section("objective", "what is learned");
  t.key("objective.name", &o.name, "",
        "next_token: the token that follows (decoder); encoders: masked_tokens: tokens that were hidden (BERT); "
        "classification: a document's label; matching: the label of a pair of documents")
      .one_of({"next_token", "masked_tokens", "classification", "matching"})
      .elsewhere({"task", "loss"});
  t.key("objective.mask_probability", &o.mask_probability, "", "share of tokens that are to be predicted")
      .above(0)
      .below(1)
      .only_with("objective.name", {"masked_tokens"})
      .only_with("data.task", {"none"})
      .elsewhere({"mlm_probability", "mask_prob"});
  t.key("objective.mask_token_share", &o.mask_token_share, "", "share of those that the model sees as <mask>")
      .within(0, 1)
      .only_with("objective.name", {"masked_tokens"})
      .only_with("data.task", {"none"});
  t.key("objective.random_token_share", &o.random_token_share, "",
        "share of those that the model sees as another token, drawn at random; the rest stay as they are")
      .within(0, 1)
      .only_with("objective.name", {"masked_tokens"})
      .only_with("data.task", {"none"});
  t.key("objective.pooling", &o.pooling, "",
        "what stands for a document: the mean of its hidden states, or that of a <class> token in front of it")
      .one_of({"mean", "class_token"})
      .only_with("objective.name", {"classification", "matching"})
      .elsewhere({"pool", "pooling_mode"});
}

// furlong finetune sets teacher.checkpoint and teacher.loss in each stage: there the keys count that any of its stages
// reads.
config::Key& with_teacher(config::Key& key, std::vector<std::string> losses) {
  return key.only_with("teacher.loss", std::move(losses)).or_in_lists({"finetune.stages"});
}

void add_teacher_keys(config::Table& t, TeacherSettings& r) {
  t.section("teacher",
            "a second model, not trained, that the model being trained learns to agree with (furlong finetune sets it "
            "in its stages)");
  t.key("teacher.loss", &r.loss, "",
        "none: objective alone; transfer: each layer's attention learns to give what the teacher's gives, and nothing "
        "else is trained: the loss is the mean over layers of |x - teacher's|² / |teacher's|²; distillation: the model "
        "learns to predict what the teacher predicts")
      .one_of({"none", "transfer", "distillation"});
  t.key("teacher.checkpoint", &r.checkpoint, "", "checkpoint, or run directory (its best checkpoint), of the teacher")
      .required()
      .only_with("teacher.loss", {"transfer", "distillation"});
  with_teacher(t.key("teacher.layers", &r.layers, "",
                     "joint: all layers learn in every step; in_turn: one after another, each for an equal share of "
                     "the steps and with a whole schedule of its own")
                   .one_of({"joint", "in_turn"}),
               {"transfer"});
  with_teacher(t.key("teacher.input", &r.input, "",
                     "whose hidden states go into the model's attention: teacher: each layer learns by itself, in the "
                     "memory of one; student: each learns to make up for those below it, for which the teacher's "
                     "outputs of all layers are kept")
                   .one_of({"teacher", "student"}),
               {"transfer"});
  with_teacher(t.key("teacher.temperature", &r.temperature, "",
                     "logits of both are divided by it before they are compared; higher ones show more of what the "
                     "teacher thinks improbable")
                   .above(0)
                   .within(0, 1000),
               {"distillation"});
  with_teacher(t.key("teacher.share", &r.share, "", "weight of the distillation loss; the objective's own has the rest")
                   .above(0)
                   .within(0, 1),
               {"distillation"})
      .elsewhere({"alpha", "distillation_weight"});
  with_teacher(t.key("teacher.positions", &r.positions, "",
                     "where the two are compared: targets: at the targets of the objective; all: at every token that "
                     "is not padding")
                   .one_of({"targets", "all"}),
               {"distillation"});
}

void add_stage_keys(config::Table& t, const std::string& stage, const std::string& what, StageSettings& s) {
  const std::string path = "finetune." + stage;
  t.section(path, what);
  const auto of_stage = [&](const char* name, config::Key::Target target, const char* unit,
                            const char* of_all) -> config::Key& {
    return t.key(path + "." + name, target, unit, std::string(of_all) + " in this stage")
        .zero_means(of_all)
        .only_with("finetune.source");
  };
  of_stage("max_steps", &s.max_steps, "steps", "trainer.max_steps").within(1, 1e12);
  of_stage("learning_rate", &s.learning_rate, "", "optimizer.learning_rate").above(0).below(100);
  of_stage("warmup_steps", &s.warmup_steps, "steps", "schedule.warmup_steps").within(1, 1e12);
  of_stage("sequence_length", &s.sequence_length, "tokens", "data.sequence_length").within(1, 1e9);
  of_stage("batch_size", &s.batch_size, "sequences", "data.batch_size").within(1, 1e6);
  of_stage("gradient_accumulation", &s.gradient_accumulation, "passes", "trainer.gradient_accumulation").within(1, 1e6);
}

void add_finetune_keys(config::Table& t, FinetuneSettings& f) {
  t.section("finetune",
            "furlong finetune: from a model with softmax attention to one with the attention of this config, in "
            "stages; the shape of the model is the source's, and need not be repeated");
  t.key("finetune.source", &f.source, "",
        "the model to begin from, which is the teacher too: a directory of Hugging Face, a GGUF file, or a checkpoint "
        "or run directory of Furlong");
  t.key("finetune.student", &f.student, "",
        "where the first stage begins: a checkpoint that furlong convert made of the source, whose attention is then "
        "the student's; without one the source's weights under the attention of this config, with constants of its "
        "feature map measured on the training split")
      .only_with("finetune.source");
  t.key("finetune.stages", &f.stages, "",
        "which, in order: transfer (attention by attention), distillation (on the teacher's predictions), task (the "
        "objective itself)")
      .required()
      .only_with("finetune.source");
  t.key("finetune.evaluation_batches", &f.evaluation_batches, "batches",
        "batches of the test split (without one: of the validation split) that teacher and student are compared on")
      .within(1, 1e12)
      .zero_means("the whole split")
      .only_with("finetune.source");
  t.key("finetune.lengths", &f.lengths, "tokens",
        "lengths at which speed and memory of a forward pass are measured, of teacher and student, such as [512, 2048, "
        "8192]")
      .only_with("finetune.source");
  add_stage_keys(t, "transfer", "the stage in which each attention learns to give what the teacher's gives",
                 f.transfer);
  add_stage_keys(t, "distillation", "the stage in which the model learns to predict what the teacher predicts",
                 f.distillation);
  add_stage_keys(t, "task", "the stage in which the model learns the objective, without a teacher", f.task);
}

void add_optimizer_keys(config::Table& t, OptimizerSettings& o, ScheduleSettings& s) {
  t.section("optimizer", "how gradients change weights");
  t.key("optimizer.name", &o.name, "", "adamw: Adam with decoupled weight decay")
      .one_of({"adamw"})
      .elsewhere({"optim"});
  t.key("optimizer.learning_rate", &o.learning_rate, "", "highest learning rate, reached at the end of the warm-up")
      .above(0)
      .below(100)
      .elsewhere({"lr", "max_lr", "peak_lr"});
  t.key("optimizer.beta1", &o.beta1, "", "decay per step of the mean of gradients")
      .within(0, 1)
      .below(1)
      .elsewhere({"adam_beta1", "betas", "momentum"});
  t.key("optimizer.beta2", &o.beta2, "", "decay per step of the mean of squared gradients")
      .within(0, 1)
      .below(1)
      .elsewhere({"adam_beta2"});
  t.key("optimizer.epsilon", &o.epsilon, "", "added to the root of the mean squared gradient")
      .above(0)
      .below(1)
      .elsewhere({"adam_epsilon", "eps"});
  t.key("optimizer.weight_decay", &o.weight_decay, "",
        "share of a weight taken away per step, times the learning rate; not on norms and biases")
      .within(0, 100)
      .elsewhere({"wd"});
  t.key("optimizer.gradient_clip", &o.gradient_clip, "",
        "largest norm of the whole gradient; a longer one is scaled down to it")
      .above(0)
      .zero_means("off")
      .elsewhere({"max_grad_norm", "grad_clip", "clip_grad_norm"});
  t.key("optimizer.ema_decay", &o.ema_decay, "",
        "decay per step of a moving average of the weights, which validation then uses")
      .above(0)
      .below(1)
      .zero_means("off")
      .elsewhere({"ema"});
  t.key("optimizer.stochastic_rounding", &o.stochastic_rounding, "",
        "whether steps round the bfloat16 weights that layers compute with, which they make of the float32 ones, up or "
        "down at random and right in the mean, not to the nearest: steps smaller than bfloat16's spacing then reach "
        "the layers on average at once; another program that reads the checkpoint rounds to the nearest")
      .only_with("model.dtype", {"bfloat16"})
      .elsewhere({"bf16_stochastic_round"});

  t.section("schedule", "the learning rate over time; every schedule starts with a linear warm-up");
  t.key("schedule.name", &s.name, "", "shape after the warm-up")
      .one_of({"constant", "linear", "cosine", "inverse_square_root", "warmup_stable_decay"})
      .elsewhere({"lr_scheduler_type", "scheduler"});
  t.key("schedule.warmup_steps", &s.warmup_steps, "steps", "optimizer steps from zero to the highest learning rate")
      .within(0, 1e12)
      .elsewhere({"num_warmup_steps", "warmup_iters", "warmup"});
  t.key("schedule.final_fraction", &s.final_fraction, "", "learning rate at the end, as a share of the highest")
      .within(0, 1)
      .only_with("schedule.name", {"linear", "cosine", "warmup_stable_decay"})
      .elsewhere({"min_lr", "min_lr_ratio"});
  t.key("schedule.decay_steps", &s.decay_steps, "steps",
        "length of the fall: from the end of the warm-up (linear, cosine), or at the end of training "
        "(warmup_stable_decay)")
      .within(1, 1e12)
      .zero_means("all steps after the warm-up; for warmup_stable_decay a tenth of max_steps")
      .only_with("schedule.name", {"linear", "cosine", "warmup_stable_decay"})
      .elsewhere({"lr_decay_iters", "lr_decay_steps"});
}

void add_trainer_keys(config::Table& t, TrainerSettings& r) {
  t.section("trainer", "how long to train, and what else happens");
  t.key("trainer.max_steps", &r.max_steps, "steps", "optimizer steps of the whole run")
      .within(1, 1e12)
      .elsewhere({"steps", "max_iters", "num_train_steps", "total_steps"});
  t.key("trainer.validate_every", &r.validate_every, "steps", "optimizer steps between validations")
      .within(1, 1e12)
      .zero_means("only at the end")
      .elsewhere({"eval_interval", "eval_steps", "val_check_interval", "evaluate_every"});
  t.key("trainer.validation_batches", &r.validation_batches, "batches",
        "batches of the validation split in each validation")
      .within(1, 1e12)
      .zero_means("the whole split")
      .elsewhere({"eval_iters", "limit_val_batches"});
  t.key("trainer.gradient_accumulation", &r.gradient_accumulation, "passes",
        "forward and backward passes whose gradients make one optimizer step")
      .within(1, 1e6)
      .elsewhere({"gradient_accumulation_steps", "accumulate_grad_batches"});
  t.key("trainer.recompute", &r.recompute, "",
        "what backward computes again instead of keeping it, for the same bits; elementwise: norms and activations (a "
        "third less memory, a few percent more time); blocks: everything but the inputs of blocks (least memory, about "
        "a third more time)")
      .one_of({"none", "elementwise", "blocks"})
      .elsewhere({"gradient_checkpointing", "activation_checkpointing"});
  t.key(
      "trainer.cuda_graph", &r.cuda_graph, "",
      "on a GPU: record a training step once its shapes are steady and replay it, for the same bits and less waiting; "
      "without effect on the CPU, with data.carry_state, and for feature maps whose denominators are counted");
  t.key("trainer.early_stopping_patience", &r.early_stopping_patience, "validations",
        "stop after this many validations without a lower loss")
      .within(1, 1e12)
      .zero_means("off")
      .only_with("trainer.validate_every")
      .elsewhere({"patience"});
  t.key("trainer.skip_outlier_factor", &r.skip_outlier_factor, "",
        "skip a step whose gradient norm is above this many times the median of the last 64 steps, skipped ones "
        "included")
      .above(1)
      .zero_means("off");
  t.key("trainer.sample_tokens", &r.sample_tokens, "tokens", "length of a sample printed after training")
      .within(1, 1e9)
      .zero_means("none")
      .only_with("model.architecture", {"decoder"})
      .elsewhere({"max_new_tokens"});
  t.key("trainer.sample_prompt", &r.sample_prompt, "", "text that the sample continues")
      .only_with("trainer.sample_tokens")
      .elsewhere({"prompt"});
}

void add_output_keys(config::Table& t, CheckpointSettings& c, LogSettings& l, ParallelSettings& p) {
  t.section("checkpoint", "saving the run; a later start of the same command resumes from the newest whole checkpoint");
  t.key("checkpoint.every", &c.every, "steps", "optimizer steps between checkpoints")
      .within(1, 1e12)
      .zero_means("only at the end")
      .elsewhere({"save_steps", "save_every", "checkpoint_every", "save_interval"});
  t.key("checkpoint.keep_last", &c.keep_last, "checkpoints", "how many of the newest to keep")
      .within(1, 1e6)
      .elsewhere({"save_total_limit", "keep"});
  t.key("checkpoint.keep_best", &c.keep_best, "", "whether to keep the one with the lowest validation loss as well")
      .elsewhere({"load_best_model_at_end", "save_best"});
  t.key("checkpoint.background", &c.background, "",
        "whether training goes on while a checkpoint is written, from a copy in the host's memory; where that has no "
        "room for the copy, training waits, which is told")
      .elsewhere({"async_save", "save_async"});

  t.section("log", "what a run tells");
  t.key("log.every", &l.every, "steps", "optimizer steps between lines of metrics")
      .within(1, 1e12)
      .elsewhere({"logging_steps", "log_every", "log_interval"});
  t.key("log.level", &l.level, "", "least severe message that is shown")
      .one_of({"debug", "info", "warning", "error", "quiet"})
      .elsewhere({"log_level", "verbosity"});
  t.key("log.progress", &l.progress, "", "auto: a bar on a terminal, lines elsewhere")
      .one_of({"auto", "bar", "lines", "none"});

  t.section(
      "parallel",
      "training in several processes, each a share of data.batch_size; how many there are is the launcher's to say");
  t.key("parallel.engine", &p.engine, "",
        "what carries gradients between processes; auto: nccl between GPUs, gloo between CPUs; none: there is one "
        "process")
      .one_of({"auto", "gloo", "nccl", "none"})
      .elsewhere({"backend", "strategy", "ddp_backend"});
  t.key("parallel.timeout", &p.timeout, "seconds", "from the fault of one process to the end of all others")
      .within(1, 86400)
      .elsewhere({"ddp_timeout", "nccl_timeout"});
  t.key("parallel.bucket_megabytes", &p.bucket_megabytes, "MB",
        "gradients that are sent at once, while backward goes on with others")
      .within(1, 1e6)
      .elsewhere({"bucket_cap_mb", "ddp_bucket_cap_mb"});
  t.key("parallel.gradient_dtype", &p.gradient_dtype, "",
        "what gradients are sent as; bfloat16 halves the traffic and rounds them at each process")
      .one_of({"float32", "bfloat16"})
      .elsewhere({"fp16_compression", "grad_reduce_dtype"});
  t.key("parallel.shard_optimizer", &p.shard_optimizer, "",
        "whether each process keeps moments and averages of its share of the weights alone (ZeRO stage 1)")
      .elsewhere({"zero_stage", "zero", "sharded_ddp", "use_distributed_optimizer"});
  t.key("parallel.sequence_processes", &p.sequence_processes, "processes",
        "how many share each sequence, each a segment of its tokens; linear attention alone, whose state is all that "
        "they exchange")
      .within(1, 1e6)
      .elsewhere({"sequence_parallel_size", "context_parallel_size", "sp_size"});
}

// How a file is composed: what the tables of keys cannot say.
constexpr const char* introduction = R"(# Configuration

One YAML file says everything about a run. This page is written by `furlong config reference`; a
JSON Schema for editors is written by `furlong config schema`. `furlong config check FILE` checks a
file, `furlong config show FILE` prints it complete, with every default and derived value.

- **Order.** Defaults, then files named by `include:`, then the file itself, then `--set a.b=c` of
  the command line. What comes later wins, key by key; a list is replaced as a whole. `include:`
  stands at the top level and takes a path or a list of paths (of which later ones win), relative to
  the including file.
- **Strictness.** Unknown and repeated keys, wrong types, values out of range, impossible
  combinations and keys that would do nothing are errors with file, line and column.
- **Null** (`key: null`, `--set a.b=null`) takes away what an included file or the file itself has
  set, and brings the default back.
- **Paths** are relative to the current directory. In paths, and only there, `${NAME}` and
  `${NAME:-default}` are environment variables (an empty one counts as not set), a leading `~/` is
  the home directory, and `$$` is a dollar sign.
- **Numbers** are decimal: `3`, `0.1`, `1e-3`; an integer may be written `1e6`. Booleans are `true`
  and `false`.
- **Derived values.** Where 0 stands for a value that follows from other keys, a run's own
  `config.yaml` has that value written out. To change the key that it follows from, start from the
  original file.

)";

}  // namespace

bool AttentionSettings::uses(const std::string& name) const {
  const auto& list = layers.empty() ? heads : layers;
  if (list.empty()) return mechanism == name;
  return std::any_of(list.begin(), list.end(), [&](const std::string& entry) {
    const std::vector<std::string> names = furlong::layers::mechanisms_in(entry);
    return std::find(names.begin(), names.end(), name) != names.end();
  });
}

ObjectiveSettings::Name ObjectiveSettings::which() const {
  if (name == "masked_tokens") return Name::masked_tokens;
  if (name == "classification") return Name::classification;
  if (name == "matching") return Name::matching;
  require(name == "next_token", "an objective '{}'", name);
  return Name::next_token;
}

const StageSettings& FinetuneSettings::stage(const std::string& name) const {
  if (name == "transfer") return transfer;
  if (name == "distillation") return distillation;
  require(name == "task", "a stage '{}'", name);
  return task;
}

config::Table settings_table(Settings& settings, bool requires_store) {
  config::Table table;
  add_run_keys(table, settings);
  add_model_keys(table, settings.model);
  add_attention_keys(table, settings.model.attention);
  add_data_keys(table, settings.data, requires_store);
  add_objective_keys(table, settings.objective);
  add_teacher_keys(table, settings.teacher);
  add_optimizer_keys(table, settings.optimizer, settings.schedule);
  add_trainer_keys(table, settings.trainer);
  add_output_keys(table, settings.checkpoint, settings.log, settings.parallel);
  add_finetune_keys(table, settings.finetune);
  return table;
}

LoadedSettings read_settings_file(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                                  const Settings& defaults) {
  Settings settings = defaults;
  auto reading = config::read_settings(settings_table(settings), file, overrides);
  if (settings.run_directory.empty()) settings.run_directory = std::filesystem::path("runs") / file.stem();
  return {std::move(settings), std::move(reading.origins), std::move(reading.files)};
}

LoadedSettings finish_settings(LoadedSettings read) {
  check(read.settings, read.origins);
  read.settings = resolve(std::move(read.settings));
  return read;
}

LoadedSettings load_settings(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  return finish_settings(read_settings_file(file, overrides, Settings()));
}

LoadedSettings from_yaml_text(const std::string& text, const std::string& name,
                              const std::vector<std::string>& overrides) {
  Settings settings;
  auto reading = config::read_settings_text(settings_table(settings), text, name, overrides);
  return finish_settings({std::move(settings), std::move(reading.origins), std::move(reading.files)});
}

LoadedSettings from_checkpoint_text(const std::string& text, const std::string& name) {
  Settings settings;
  auto reading = config::read_settings_text(settings_table(settings, false), text, name, {});
  return finish_settings({std::move(settings), std::move(reading.origins), std::move(reading.files)});
}

Settings resolve(Settings settings) {
  auto& model = settings.model;
  if (model.n_key_value_heads == 0) model.n_key_value_heads = model.n_heads;
  if (model.d_head == 0) model.d_head = model.d_model / model.n_heads;
  if (model.d_feedforward == 0) model.d_feedforward = 4 * model.d_model;
  if (model.max_sequence_length == 0) model.max_sequence_length = settings.data.sequence_length;
  const bool by_length =
      model.position == "rotary" && (model.rotary_scaling == "llama3" || model.rotary_scaling == "yarn");
  if (by_length && model.rotary_original_length == 0) model.rotary_original_length = model.max_sequence_length;
  auto& attention = model.attention;
  if (attention.n_features == 0 && (attention.uses("linear") || attention.uses("windowed"))) {
    const ops::FeatureMapInfo& map = ops::feature_map_info(attention.feature_map);
    attention.n_features = map.needs_directions
                               ? 2 * model.d_head
                               : ops::feature_count(map.map, attention_config(settings).map_options, model.d_head, 0);
  }
  if (attention.uses("linformer"))
    attention.projected_length = layers::resolved_projected_length(attention_config(settings));
  auto& schedule = settings.schedule;
  const std::int64_t max_steps = settings.trainer.max_steps;
  if (schedule.decay_steps == 0 && (schedule.name == "linear" || schedule.name == "cosine"))
    schedule.decay_steps = max_steps - schedule.warmup_steps;
  if (schedule.decay_steps == 0 && schedule.name == "warmup_stable_decay")
    schedule.decay_steps = std::max<std::int64_t>(1, max_steps / 10);
  return settings;
}

std::string to_yaml(const Settings& settings, bool comments) {
  Settings copy = settings;
  return "# Complete settings of a Furlong run, derived values written out. Keys without an effect in this combination "
         "are comments.\n" +
         config::to_yaml(settings_table(copy), comments);
}

nlohmann::ordered_json to_json(const Settings& settings) {
  Settings copy = settings;
  return config::to_json(settings_table(copy));
}

nlohmann::ordered_json json_schema() {
  Settings defaults;
  return config::json_schema(settings_table(defaults), "Furlong configuration");
}

std::string reference_markdown() {
  Settings defaults;
  return introduction + config::reference_markdown(settings_table(defaults));
}

}  // namespace furlong
