#include "trainers/settings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "datasets/vocabulary.h"
#include "framework/config/reader.h"
#include "framework/config/writer.h"
#include "framework/core/error.h"
#include "layers/attention/directions.h"
#include "layers/attention/linformer_mechanism.h"
#include "trainers/attention_config.h"

namespace furlong {
namespace {

// clang-format off
void add_run_keys(config::Table& t, Settings& s) {
  t.key("seed", &s.seed, "", "seed of every random number: weights, data order, dropout, directions of features").at_least(0);
  t.key("device", &s.device, "", "where to compute; auto takes a GPU if this build and this machine have one").like("auto|cpu|cuda(:[0-9]{1,3})?", {"auto", "cpu", "cuda", "cuda:N"});
  t.key("tf32", &s.tf32, "", "on a GPU: float32 matrix products of weights in TF32 (10 bits of each operand) on tensor cores, faster and less exact; without effect on the CPU and with model.dtype bfloat16").elsewhere({"allow_tf32"});
  t.key("threads", &s.threads, "threads", "CPU threads of this process").within(1, 4096).zero_means("all cores that it may use").elsewhere({"num_threads", "n_threads"});
  t.key("run_directory", &s.run_directory, "", "folder of the run (config.yaml, metrics.jsonl, checkpoints); empty: runs/ and the name of the config file").elsewhere({"output_dir", "run_dir", "out_dir", "save_dir"});
}

void add_model_keys(config::Table& t, ModelSettings& m) {
  t.section("model", "the transformer; GPT-2 and Llama are both combinations of these keys");
  t.key("model.architecture", &m.architecture, "", "decoder: causal language model; encoder: each token sees all others").one_of({"decoder", "encoder"});
  t.key("model.vocabulary_size", &m.vocabulary_size, "tokens", "number of token ids that the model knows").within(2, 1e7).zero_means("that of the data store").elsewhere({"vocab_size", "n_vocab"});
  t.key("model.n_layers", &m.n_layers, "blocks", "blocks of attention and feedforward").within(1, 4096).elsewhere({"num_hidden_layers", "num_layers", "n_layer", "depth"});
  t.key("model.d_model", &m.d_model, "numbers", "width of the residual stream").within(1, 131072).elsewhere({"hidden_size", "n_embd", "dim", "embedding_dim", "hidden_dim"});
  t.key("model.n_heads", &m.n_heads, "heads", "query heads of each attention").within(1, 4096).elsewhere({"num_attention_heads", "num_heads", "n_head", "heads"});
  t.key("model.n_key_value_heads", &m.n_key_value_heads, "heads", "key and value heads, each shared by n_heads / n_key_value_heads query heads").within(1, 4096).zero_means("n_heads").elsewhere({"num_key_value_heads", "n_kv_heads", "num_kv_heads"});
  t.key("model.d_head", &m.d_head, "numbers", "width of a head").within(1, 16384).zero_means("d_model / n_heads").elsewhere({"head_dim", "dim_head", "d_key"});
  t.key("model.d_feedforward", &m.d_feedforward, "numbers", "width inside the feedforward").within(1, 1e6).zero_means("4 × d_model").elsewhere({"intermediate_size", "n_inner", "d_ff", "ffn_dim", "d_inner"});
  t.key("model.activation", &m.activation, "", "nonlinearity of the feedforward; swiglu and geglu are gated, with a third matrix").one_of({"gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu"}).elsewhere({"hidden_act", "activation_function"});
  t.key("model.norm", &m.norm, "", "normalisation before attention, before the feedforward and at the end").one_of({"layernorm", "rmsnorm"}).elsewhere({"normalization", "norm_type"});
  t.key("model.norm_epsilon", &m.norm_epsilon, "", "added to the variance (layernorm) or mean square (rmsnorm)").above(0).below(1).elsewhere({"layer_norm_epsilon", "rms_norm_eps", "layer_norm_eps", "norm_eps"});
  t.key("model.bias", &m.bias, "", "whether linear maps and layernorm have biases").elsewhere({"use_bias"});
  t.key("model.tied_embeddings", &m.tied_embeddings, "", "whether the output layer uses the token embedding's matrix").only_with("objective.name", {"next_token", "masked_tokens"}).elsewhere({"tie_word_embeddings", "tie_embeddings", "weight_tying"});
  t.key("model.position", &m.position, "", "how the model knows positions; learned and sinusoidal are added to the embedding, rotary turns queries and keys").one_of({"none", "learned", "sinusoidal", "rotary"}).elsewhere({"position_embedding_type", "pos_emb"});
  t.key("model.rotary_base", &m.rotary_base, "", "base of the wavelengths of rotary positions: 2π × base^(2i / d_head) tokens (rotary_placement: numerator: 2i over the number of features)").above(1).only_with("model.position", {"rotary"}).elsewhere({"rope_theta", "rotary_emb_base"});
  t.key("model.rotary_placement", &m.rotary_placement, "", "before_features: queries and keys are turned, before softmax or a feature map; numerator: with linear attention, features are turned where they weigh values and not where weights are summed to divide by, so that the divisor of positive features stays positive").one_of({"before_features", "numerator"}).only_with("model.position", {"rotary"});
  t.key("model.max_sequence_length", &m.max_sequence_length, "tokens", "longest sequence that the model is made for; the number of learned positions").within(1, 1e12).zero_means("data.sequence_length").elsewhere({"max_position_embeddings", "n_positions", "block_size", "max_seq_len", "context_length", "n_ctx"});
  t.key("model.dropout", &m.dropout, "", "probability of dropping an activation in training").within(0, 1).below(1).elsewhere({"resid_pdrop", "hidden_dropout_prob", "embd_pdrop"});
  t.key("model.short_convolution", &m.short_convolution, "tokens", "width of a causal depthwise convolution on queries, keys and values; small linear models hardly learn text without one").within(2, 16).zero_means("off");
  t.key("model.initializer_range", &m.initializer_range, "", "standard deviation of the normal distribution of new weights").above(0).below(10).elsewhere({"init_std", "initializer_std"});
  t.key("model.dtype", &m.dtype, "", "type that activations and weights are computed in; with bfloat16 the optimizer keeps float32 weights").one_of({"float32", "bfloat16"}).elsewhere({"torch_dtype", "precision"});
}

// Conditions of the keys of attention: on mechanisms, which layers and heads may name too, and on feature maps.
config::Key& with_mechanisms(config::Key& key, std::vector<std::string> mechanisms) {
  return key.only_with("model.attention.mechanism", std::move(mechanisms)).or_in_lists({"model.attention.layers", "model.attention.heads"});
}
config::Key& with_features(config::Key& key) { return with_mechanisms(key, {"linear", "windowed"}); }
config::Key& with_maps(config::Key& key, std::vector<std::string> maps) { return with_features(key).only_with("model.attention.feature_map", std::move(maps)); }

template <class Wanted>
std::vector<std::string> maps_that(const Wanted& wanted) {
  std::vector<std::string> names;
  for (const ops::FeatureMapInfo& map : ops::feature_maps())
    if (wanted(map)) names.emplace_back(map.name);
  return names;
}

void add_attention_keys(config::Table& t, AttentionSettings& a) {
  const auto names = [](const auto& list) { std::vector<std::string> result; for (const auto& item : list) result.emplace_back(item.name); return result; };
  const auto random_maps = maps_that([](const ops::FeatureMapInfo& map) { return map.needs_directions; });
  std::vector<std::string> directions, sharings;
  for (const auto& [kind, name] : layers::directions_kinds()) directions.emplace_back(name);
  for (const auto& [kind, name] : layers::projection_sharings()) sharings.emplace_back(name);
  t.section("model.attention", "exact attention, or attention whose cost grows linearly with length; definitions and measured errors are in docs/numerics.md");
  t.key("model.attention.mechanism", &a.mechanism, "", "softmax: exact; linear: through a feature map of queries and keys; windowed: softmax for the nearest tokens and a feature map for all before them; linformer: softmax over a projected sequence, encoders only").one_of(names(layers::attention_mechanisms())).elsewhere({"attention_type", "attn_type", "kind"});
  t.key("model.attention.layers", &a.layers, "", "the mechanism of each layer, in the place of mechanism: [softmax, linear, linear, ...]").elsewhere({"layer_types", "attention_layers", "attn_layers"});
  t.key("model.attention.heads", &a.heads, "", "the mechanism of each head, the same in every layer, in the place of mechanism: [softmax, linear, ...]");
  with_mechanisms(t.key("model.attention.window", &a.window, "tokens", "softmax, linear: keys so far away are not seen, so that a token sees this many, itself included (encoders: on either side)").within(1, 1e12).zero_means("all are seen"), {"softmax", "linear"}).elsewhere({"sliding_window", "window_size", "attention_window"});
  with_mechanisms(t.key("model.attention.softmax_window", &a.softmax_window, "tokens", "windowed: how many of the nearest tokens, itself included, get softmax's exact weights; those before them get the feature map's").within(1, 1e12).zero_means("none; windowed needs some"), {"windowed"}).elsewhere({"local_window", "local_window_size"});
  with_features(t.key("model.attention.feature_map", &a.feature_map, "", "elu1: elu(x) + 1 (Linear Transformer); relu, exp: element by element; random features of softmax: favor_positive (Performer, FAVOR+), favor_hyperbolic (exp(±u)), favor_trig (signed), oprf (FAVOR++: variance from the data); favor_relu: random features of a ReLU kernel; polynomials of q·k: taylor, limit ((1 + q·k/order)^order); cosine: 1 + cosine of q and k; hedgehog: learned").one_of(names(ops::feature_maps()))).elsewhere({"kernel", "kernel_fn"});
  with_features(t.key("model.attention.n_features", &a.n_features, "features", "features of each head; more approximate softmax better and cost more").within(1, 65536).zero_means("2 × d_head with random features, else what the feature map has")).elsewhere({"nb_features", "num_features", "n_random_features"});
  with_maps(t.key("model.attention.order", &a.order, "", "degree of the polynomial, 1 to 3 for taylor, 1 to 4 for limit; weights can be negative with odd ones").within(1, 4), {"taylor", "limit"});
  with_features(t.key("model.attention.kernel_epsilon", &a.kernel_epsilon, "", "added to every feature, part of the kernel's definition: of favor_relu without compat, and of both maps of compat: performer_pytorch").above(0).within(0, 1).zero_means("the map's or the library's own: 0.001 with favor_relu, 0.0001 with performer_pytorch's favor_positive"));
  with_maps(t.key("model.attention.most_features", &a.most_features, "features", "polynomials that have more are refused").within(1, 1e6), {"taylor", "limit"});
  with_mechanisms(t.key("model.attention.normalizer", &a.normalizer, "", "sum: outputs are weighted means of values; none: weighted sums, of which each head is divided by its root mean square and multiplied by a learned gain").one_of({"sum", "none"}), {"linear"});
  with_features(t.key("model.attention.centering", &a.centering, "", "take the mean query and the mean key of each head away, of earlier optimizer steps; softmax is unchanged by it, and random features have less variance"));
  with_features(t.key("model.attention.scaling", &a.scaling, "", "saderf: scale dimensions of queries up and of keys down, or the reverse, until both have the same mean square, that of earlier optimizer steps; q·k is unchanged by it, and random features have less variance").one_of({"none", "saderf"}));
  with_maps(t.key("model.attention.denominator_guard", &a.denominator_guard, "", "with features of both signs: an output is zero where the sum of its weights is smaller than this share of the sum of magnitudes").within(0, 1).below(1), maps_that([](const ops::FeatureMapInfo& map) { return ops::can_cancel(map.map); })).only_with("model.attention.normalizer", {"sum"}).only_with("model.attention.compat", {"none"});
  with_maps(t.key("model.attention.directions", &a.directions, "", "random directions of the features: orthogonal in blocks (smaller variance) with norms as of Gaussian rows; orthogonal_fixed_norm: norms √d_head; norm_stratified: norms at the quantiles; structured: random signs and Hadamard transforms; iid: independent").one_of(directions), random_maps);
  with_maps(t.key("model.attention.redraw_every", &a.redraw_every, "steps", "optimizer steps after which new directions are drawn").within(1, 1e12).zero_means("never"), random_maps).elsewhere({"feature_redraw_interval"});
  with_features(t.key("model.attention.chunk_size", &a.chunk_size, "tokens", "length of a chunk, inside which the causal form is computed directly").within(16, 256)).only_with("model.attention.compat", {"none"}).elsewhere({"chunk_len", "chunk_length"});
  with_mechanisms(t.key("model.attention.compat", &a.compat, "", "compute linear attention as this library does, its epsilons and stabilisers included, for models that were trained with it; slower, and without generation").one_of({"none", "performer_pytorch", "fast_transformers"}), {"linear"});
  with_mechanisms(t.key("model.attention.compat_stabilize", &a.compat_stabilize, "", "that library's argument stabilize: features are divided by exp of the sequence's greatest |x|²/√d"), {"linear"}).only_with("model.attention.compat", {"fast_transformers"}).only_with("model.attention.feature_map", {"favor_hyperbolic"});
  with_mechanisms(t.key("model.attention.projected_length", &a.projected_length, "rows", "length that keys and values are projected to (k in the paper)").within(1, 1e9).zero_means("a quarter of max_sequence_length, at most 256"), {"linformer"}).elsewhere({"linformer_k", "proj_k", "compressed"});
  with_mechanisms(t.key("model.attention.projection", &a.projection, "", "along the sequence: a learned matrix, means of neighbouring tokens, or a learned strided convolution").one_of({"linear", "mean", "convolution"}), {"linformer"});
  with_mechanisms(t.key("model.attention.sharing", &a.sharing, "", "who shares a projection: none: each head has its own for keys and for values; heads: the heads of a layer; key_value: keys and values too; layers: all layers too").one_of(sharings), {"linformer"}).only_with("model.attention.projection", {"linear", "convolution"});
}

void add_data_keys(config::Table& t, DataSettings& d) {
  t.section("data", "the tokens to train on; unless packing separates them, windows cross the borders of documents, and attention and convolution see across them: only targets at breaks of a split are left out of the loss");
  t.key("data.task", &d.task, "", "none: data.store; copy: no store, but sequences made as they are needed: <, random symbols, =, the same symbols again, the second time as targets (with objective.name: masked_tokens: hidden, and to be filled in)").one_of({"none", "copy"});
  t.key("data.task_symbols", &d.task_symbols, "symbols", "how many different symbols there are to copy").within(1, static_cast<double>(Vocabulary::most_copy_symbols)).only_with("data.task", {"copy"});
  t.key("data.task_shortest", &d.task_shortest, "symbols", "copies to train on are of all lengths from this one to what sequence_length has room for, equally often").within(1, 1e9).zero_means("all have the full length").only_with("data.task", {"copy"});
  t.key("data.store", &d.store, "", "HDF5 token store that furlong prepare has written").required().only_with("data.task", {"none"}).elsewhere({"dataset", "data_dir", "train_file", "file"});
  t.key("data.sequence_length", &d.sequence_length, "tokens", "length of a training sequence").within(1, 1e9).elsewhere({"seq_len", "seq_length", "max_length"});
  t.key("data.batch_size", &d.batch_size, "sequences", "sequences (matching: pairs of them) in one forward and backward pass").within(1, 1e6).elsewhere({"per_device_train_batch_size", "micro_batch_size", "train_batch_size"});
  t.key("data.sampler", &d.sampler, "", "random: windows from anywhere in the split; sequential: one after another, from the start; stream: documents in consecutive segments, each row of the batch walking through a stretch of its own").one_of({"random", "sequential", "stream"}).only_with("data.task", {"none"});
  t.key("data.carry_state", &d.carry_state, "", "whether the recurrent state of each layer goes on from segment to segment, so that a token sees all of its document before it; gradients end at the segment. A row begins its stretch of the split with an empty state, in training wherever that is; for validation and evaluate stretches begin with a document where the documents allow rows of similar length, otherwise inside one, so that the loss then depends on the batch size (1: whole documents)").only_with("data.sampler", {"stream"}).elsewhere({"stateful", "tbptt"});
  t.key("data.packing", &d.packing, "", "documents: documents that share a window do not see each other, in attention, convolution or targets, and positions, rotary ones too, begin again with each; none: they do").one_of({"none", "documents"}).only_with("data.sampler", {"random", "sequential"}).only_with("objective.name", {"next_token", "masked_tokens"}).only_with("data.task", {"none"}).elsewhere({"pack_sequences", "sample_packing"});
  t.key("data.ignore_tokens", &d.ignore_tokens, "", "symbols of the store's alphabet that are left out of the loss, such as [N] for unknown bases").only_with("objective.name", {"next_token", "masked_tokens"}).only_with("data.task", {"none"}).elsewhere({"ignore_index"});
  t.key("data.padding", &d.padding, "", "how long rows of labelled documents are: longest: as the longest of the batch, rounded up to 64; sequence_length: always that").one_of({"longest", "sequence_length"}).only_with("objective.name", {"classification", "matching"});
}

void add_objective_keys(config::Table& t, ObjectiveSettings& o) {
  t.section("objective", "what is learned");
  t.key("objective.name", &o.name, "", "next_token: the token that follows (decoder); encoders: masked_tokens: tokens that were hidden (BERT); classification: a document's label; matching: the label of a pair of documents").one_of({"next_token", "masked_tokens", "classification", "matching"}).elsewhere({"task", "loss"});
  t.key("objective.mask_probability", &o.mask_probability, "", "share of tokens that are to be predicted").above(0).below(1).only_with("objective.name", {"masked_tokens"}).only_with("data.task", {"none"}).elsewhere({"mlm_probability", "mask_prob"});
  t.key("objective.mask_token_share", &o.mask_token_share, "", "share of those that the model sees as <mask>").within(0, 1).only_with("objective.name", {"masked_tokens"}).only_with("data.task", {"none"});
  t.key("objective.random_token_share", &o.random_token_share, "", "share of those that the model sees as another token, drawn at random; the rest stay as they are").within(0, 1).only_with("objective.name", {"masked_tokens"}).only_with("data.task", {"none"});
  t.key("objective.pooling", &o.pooling, "", "what stands for a document: the mean of its hidden states, or that of a <class> token in front of it").one_of({"mean", "class_token"}).only_with("objective.name", {"classification", "matching"}).elsewhere({"pool", "pooling_mode"});
}

void add_optimizer_keys(config::Table& t, OptimizerSettings& o, ScheduleSettings& s) {
  t.section("optimizer", "how gradients change weights");
  t.key("optimizer.name", &o.name, "", "adamw: Adam with decoupled weight decay").one_of({"adamw"}).elsewhere({"optim"});
  t.key("optimizer.learning_rate", &o.learning_rate, "", "highest learning rate, reached at the end of the warm-up").above(0).below(100).elsewhere({"lr", "max_lr", "peak_lr"});
  t.key("optimizer.beta1", &o.beta1, "", "decay per step of the mean of gradients").within(0, 1).below(1).elsewhere({"adam_beta1", "betas", "momentum"});
  t.key("optimizer.beta2", &o.beta2, "", "decay per step of the mean of squared gradients").within(0, 1).below(1).elsewhere({"adam_beta2"});
  t.key("optimizer.epsilon", &o.epsilon, "", "added to the root of the mean squared gradient").above(0).below(1).elsewhere({"adam_epsilon", "eps"});
  t.key("optimizer.weight_decay", &o.weight_decay, "", "share of a weight taken away per step, times the learning rate; not on norms and biases").within(0, 100).elsewhere({"wd"});
  t.key("optimizer.gradient_clip", &o.gradient_clip, "", "largest norm of the whole gradient; a longer one is scaled down to it").above(0).zero_means("off").elsewhere({"max_grad_norm", "grad_clip", "clip_grad_norm"});
  t.key("optimizer.ema_decay", &o.ema_decay, "", "decay per step of a moving average of the weights, which validation then uses").above(0).below(1).zero_means("off").elsewhere({"ema"});

  t.section("schedule", "the learning rate over time; every schedule starts with a linear warm-up");
  t.key("schedule.name", &s.name, "", "shape after the warm-up").one_of({"constant", "linear", "cosine", "inverse_square_root", "warmup_stable_decay"}).elsewhere({"lr_scheduler_type", "scheduler"});
  t.key("schedule.warmup_steps", &s.warmup_steps, "steps", "optimizer steps from zero to the highest learning rate").within(0, 1e12).elsewhere({"num_warmup_steps", "warmup_iters", "warmup"});
  t.key("schedule.final_fraction", &s.final_fraction, "", "learning rate at the end, as a share of the highest").within(0, 1).only_with("schedule.name", {"linear", "cosine", "warmup_stable_decay"}).elsewhere({"min_lr", "min_lr_ratio"});
  t.key("schedule.decay_steps", &s.decay_steps, "steps", "length of the fall: from the end of the warm-up (linear, cosine), or at the end of training (warmup_stable_decay)").within(1, 1e12).zero_means("all steps after the warm-up; for warmup_stable_decay a tenth of max_steps").only_with("schedule.name", {"linear", "cosine", "warmup_stable_decay"}).elsewhere({"lr_decay_iters", "lr_decay_steps"});
}

void add_trainer_keys(config::Table& t, TrainerSettings& r) {
  t.section("trainer", "how long to train, and what else happens");
  t.key("trainer.max_steps", &r.max_steps, "steps", "optimizer steps of the whole run").within(1, 1e12).elsewhere({"steps", "max_iters", "num_train_steps", "total_steps"});
  t.key("trainer.validate_every", &r.validate_every, "steps", "optimizer steps between validations").within(1, 1e12).zero_means("only at the end").elsewhere({"eval_interval", "eval_steps", "val_check_interval", "evaluate_every"});
  t.key("trainer.validation_batches", &r.validation_batches, "batches", "batches of the validation split in each validation").within(1, 1e12).zero_means("the whole split").elsewhere({"eval_iters", "limit_val_batches"});
  t.key("trainer.gradient_accumulation", &r.gradient_accumulation, "passes", "forward and backward passes whose gradients make one optimizer step").within(1, 1e6).elsewhere({"gradient_accumulation_steps", "accumulate_grad_batches"});
  t.key("trainer.recompute", &r.recompute, "", "what backward computes again instead of keeping it, for the same bits; elementwise: norms and activations (a third less memory, a few percent more time); blocks: everything but the inputs of blocks (least memory, about a third more time)").one_of({"none", "elementwise", "blocks"}).elsewhere({"gradient_checkpointing", "activation_checkpointing"});
  t.key("trainer.cuda_graph", &r.cuda_graph, "", "on a GPU: record a training step once its shapes are steady and replay it, for the same bits and less waiting; without effect on the CPU, with data.carry_state, and for feature maps whose denominators are counted");
  t.key("trainer.early_stopping_patience", &r.early_stopping_patience, "validations", "stop after this many validations without a lower loss").within(1, 1e12).zero_means("off").only_with("trainer.validate_every").elsewhere({"patience"});
  t.key("trainer.skip_outlier_factor", &r.skip_outlier_factor, "", "skip a step whose gradient norm is above this many times the median of the last 64 steps, skipped ones included").above(1).zero_means("off");
  t.key("trainer.sample_tokens", &r.sample_tokens, "tokens", "length of a sample printed after training").within(1, 1e9).zero_means("none").only_with("model.architecture", {"decoder"}).elsewhere({"max_new_tokens"});
  t.key("trainer.sample_prompt", &r.sample_prompt, "", "text that the sample continues").only_with("trainer.sample_tokens").elsewhere({"prompt"});
}

void add_output_keys(config::Table& t, CheckpointSettings& c, LogSettings& l, ParallelSettings& p) {
  t.section("checkpoint", "saving the run; a later start of the same command resumes from the newest whole checkpoint");
  t.key("checkpoint.every", &c.every, "steps", "optimizer steps between checkpoints").within(1, 1e12).zero_means("only at the end").elsewhere({"save_steps", "save_every", "checkpoint_every", "save_interval"});
  t.key("checkpoint.keep_last", &c.keep_last, "checkpoints", "how many of the newest to keep").within(1, 1e6).elsewhere({"save_total_limit", "keep"});
  t.key("checkpoint.keep_best", &c.keep_best, "", "whether to keep the one with the lowest validation loss as well").elsewhere({"load_best_model_at_end", "save_best"});

  t.section("log", "what a run tells");
  t.key("log.every", &l.every, "steps", "optimizer steps between lines of metrics").within(1, 1e12).elsewhere({"logging_steps", "log_every", "log_interval"});
  t.key("log.level", &l.level, "", "least severe message that is shown").one_of({"debug", "info", "warning", "error", "quiet"}).elsewhere({"log_level", "verbosity"});
  t.key("log.progress", &l.progress, "", "auto: a bar on a terminal, lines elsewhere").one_of({"auto", "bar", "lines", "none"});

  t.section("parallel", "training in several processes");
  t.key("parallel.engine", &p.engine, "", "what carries gradients between processes; none: there is one process").one_of({"none"}).elsewhere({"backend", "strategy"});
}
// clang-format on

// How a file is composed: what the tables of keys cannot say.
constexpr const char* introduction = R"(# Configuration

One YAML file says everything about a run. This page is written by `furlong config reference`; a JSON Schema for editors is written by
`furlong config schema`. `furlong config check FILE` checks a file, `furlong config show FILE` prints it complete, with every default
and derived value.

- **Order.** Defaults, then files named by `include:`, then the file itself, then `--set a.b=c` of the command line. What comes later wins,
  key by key; a list is replaced as a whole. `include:` stands at the top level and takes a path or a list of paths (of which later ones win),
  relative to the including file.
- **Strictness.** Unknown and repeated keys, wrong types, values out of range, impossible combinations and keys that would do nothing are errors
  with file, line and column.
- **Null** (`key: null`, `--set a.b=null`) takes away what an included file or the file itself has set, and brings the default back.
- **Paths** are relative to the current directory. In paths, and only there, `${NAME}` and `${NAME:-default}` are environment
  variables (an empty one counts as not set), a leading `~/` is the home directory, and `$$` is a dollar sign.
- **Numbers** are decimal: `3`, `0.1`, `1e-3`; an integer may be written `1e6`. Booleans are `true` and `false`.
- **Derived values.** Where 0 stands for a value that follows from other keys, a run's own `config.yaml` has that value written out. To change
  the key that it follows from, start from the original file.

)";

LoadedSettings finish(Settings settings, config::Reading reading) {
  check(settings, reading.origins);
  return {resolve(std::move(settings)), std::move(reading.origins), std::move(reading.files)};
}

}  // namespace

bool AttentionSettings::uses(const std::string& name) const {
  const auto& list = layers.empty() ? heads : layers;
  return list.empty() ? mechanism == name : std::find(list.begin(), list.end(), name) != list.end();
}

ObjectiveSettings::Name ObjectiveSettings::which() const {
  if (name == "masked_tokens") return Name::masked_tokens;
  if (name == "classification") return Name::classification;
  if (name == "matching") return Name::matching;
  require(name == "next_token", "an objective '{}'", name);
  return Name::next_token;
}

config::Table settings_table(Settings& settings) {
  config::Table table;
  add_run_keys(table, settings);
  add_model_keys(table, settings.model);
  add_attention_keys(table, settings.model.attention);
  add_data_keys(table, settings.data);
  add_objective_keys(table, settings.objective);
  add_optimizer_keys(table, settings.optimizer, settings.schedule);
  add_trainer_keys(table, settings.trainer);
  add_output_keys(table, settings.checkpoint, settings.log, settings.parallel);
  return table;
}

LoadedSettings load_settings(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  Settings settings;
  auto reading = config::read_settings(settings_table(settings), file, overrides);
  if (settings.run_directory.empty()) settings.run_directory = std::filesystem::path("runs") / file.stem();
  return finish(std::move(settings), std::move(reading));
}

LoadedSettings from_yaml_text(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  Settings settings;
  auto reading = config::read_settings_text(settings_table(settings), text, name, overrides);
  return finish(std::move(settings), std::move(reading));
}

Settings resolve(Settings settings) {
  auto& model = settings.model;
  if (model.n_key_value_heads == 0) model.n_key_value_heads = model.n_heads;
  if (model.d_head == 0) model.d_head = model.d_model / model.n_heads;
  if (model.d_feedforward == 0) model.d_feedforward = 4 * model.d_model;
  if (model.max_sequence_length == 0) model.max_sequence_length = settings.data.sequence_length;
  auto& attention = model.attention;
  if (attention.n_features == 0 && (attention.uses("linear") || attention.uses("windowed"))) {
    const ops::FeatureMapInfo& map = ops::feature_map_info(attention.feature_map);
    attention.n_features =
        map.needs_directions ? 2 * model.d_head : ops::feature_count(map.map, attention_config(settings).map_options, model.d_head, 0);
  }
  if (attention.uses("linformer")) attention.projected_length = layers::resolved_projected_length(attention_config(settings));
  auto& schedule = settings.schedule;
  const std::int64_t max_steps = settings.trainer.max_steps;
  if (schedule.decay_steps == 0 && (schedule.name == "linear" || schedule.name == "cosine"))
    schedule.decay_steps = max_steps - schedule.warmup_steps;
  if (schedule.decay_steps == 0 && schedule.name == "warmup_stable_decay") schedule.decay_steps = std::max<std::int64_t>(1, max_steps / 10);
  return settings;
}

std::string to_yaml(const Settings& settings, bool comments) {
  Settings copy = settings;
  return "# Complete settings of a Furlong run, derived values written out. Keys without an effect in this combination are comments.\n" +
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
