#include "evaluation/bench/bench_model.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "evaluation/generate.h"
#include "evaluation/plan/plan_work.h"
#include "evaluation/statistics.h"
#include "framework/core/arena.h"
#include "framework/core/clock.h"
#include "framework/core/random.h"
#include "framework/ops/loss/counted_rows.h"
#include "trainers/settings/process_checks.h"
#include "trainers/train/run/run_memory.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

/// Batches of random tokens in rows of full length, with targets or labels of the objective. Sources of different seeds
/// have different tokens.
class RandomTokens final : public BatchSource {
 public:
  /// `vocabulary` is the model's.
  RandomTokens(const Settings& settings, const Vocabulary& vocabulary, std::uint64_t seed)
      : settings_(settings),
        n_ids_(vocabulary_size(settings, vocabulary)),
        n_labels_(static_cast<std::int64_t>(vocabulary.labels().size())),
        mask_id_(vocabulary.mask_id()),
        seed_(seed) {}

  std::uint64_t n_samples() const override { return std::numeric_limits<std::uint64_t>::max(); }
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override { return batch(first, samples); }
  Batch batch(std::uint64_t first, std::int64_t samples) const override {
    const ObjectiveSettings& objective = settings_.objective;
    Batch made;
    made.batch = objective.name == Objective::pair_classification ? 2 * samples : samples;
    made.n = settings_.data.sequence_length;
    made.n_tokens = made.batch * made.n;
    made.inputs = draw("inputs", first, made.n_tokens, n_ids_);
    if (settings_.data.packing == "documents") made.documents.assign(made.inputs.size(), 0);
    if (settings_.data.sampler == "documents" || objective.learns_labels()) made.mask.assign(made.inputs.size(), 1);
    if (settings_.data.stateful) made.fresh.assign(static_cast<std::size_t>(made.batch), 1);
    if (objective.learns_labels()) {
      add_labels(first, samples, made);
    } else if (objective.name == Objective::masked_tokens) {
      mask(first, made);
    } else {
      made.targets = draw("targets", first, made.n_tokens, n_ids_);
      made.n_targets = made.n_tokens;
    }
    return made;
  }

 private:
  std::vector<std::int32_t> draw(const char* name, std::uint64_t first, std::int64_t count, std::int64_t bound) const {
    const RandomKey key{seed_, static_cast<std::uint32_t>(first), random_stream(name)};
    std::vector<std::int32_t> drawn(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < drawn.size(); i += 4) {
      const auto words = philox(key, i / 4);
      for (std::size_t k = i; k < std::min(i + 4, drawn.size()); ++k)
        drawn[k] = static_cast<std::int32_t>(words[k - i] % static_cast<std::uint64_t>(bound));
    }
    return drawn;
  }

  void mask(std::uint64_t first, Batch& batch) const {
    constexpr std::int64_t parts = 1 << 20;
    const std::vector<std::int32_t> drawn = draw("mask", first, batch.n_tokens, parts);
    batch.targets.assign(batch.inputs.size(), ignored_target);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      if (i > 0 && drawn[i] >= settings_.objective.mask_probability * parts) continue;  // at least one target
      batch.targets[i] = std::exchange(batch.inputs[i], mask_id_.value());
      ++batch.n_targets;
    }
  }

  void add_labels(std::uint64_t first, std::int64_t samples, Batch& batch) const {
    const LabelKind kind = settings_.objective.label_kind();
    batch.n_targets = kind == LabelKind::tokens ? batch.n_tokens : samples;
    (kind == LabelKind::tokens ? batch.targets : batch.labels) = draw("labels", first, batch.n_targets, n_labels_);
    if (kind != LabelKind::numbers && kind != LabelKind::sets) return;
    batch.labels.assign(batch.labels.size(), 0);
    batch.values = draw("values", first, samples * n_labels_, 2);
    for (std::int32_t& value : batch.values) value = std::bit_cast<std::int32_t>(static_cast<float>(value));
  }

  Settings settings_;
  std::int64_t n_ids_, n_labels_;
  std::optional<std::int32_t> mask_id_;
  std::uint64_t seed_;
};

/// The data of a trainer that reads random tokens.
class RandomData final : public Dataset {
 public:
  RandomData(const Settings& settings, const Vocabulary& vocabulary) : settings_(settings), vocabulary_(vocabulary) {}
  const std::string& path() const override { return path_; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::uint64_t size(Split) const override { return std::numeric_limits<std::uint64_t>::max(); }
  std::unique_ptr<BatchSource> own_samples() const override {
    return std::make_unique<RandomTokens>(settings_, model_vocabulary(settings_, vocabulary_), 0);
  }

 private:
  std::string path_ = "random tokens";
  Settings settings_;
  Vocabulary vocabulary_;
};

double flops_of_step(const Settings& settings, const Vocabulary& vocabulary, const Device& device) {
  const std::int64_t classes = vocabulary_size(settings, vocabulary);
  const bool masks = settings.objective.name == Objective::masked_tokens && device.is_cpu();
  const double share_of_logits = masks ? ops::CountedRows::computed_share(settings.objective.mask_probability,
                                                                          output_width(settings.model), classes)
                                       : 1;
  double flops = 0;
  for (const PlanStage& stage : plan_stages(settings, classes, static_cast<std::int64_t>(vocabulary.labels().size()),
                                            settings.data.batch_size, share_of_logits))
    flops += stage.forward + stage.backward + stage.attention_forward + stage.attention_backward;
  return flops * static_cast<double>(settings.trainer.gradient_accumulation);
}

/// Returns an empty string if the model can generate.
std::string why_no_generation(const Model& model) {
  if (!model.decoder)
    return fmt::format("the model is an encoder (objective.name: {})", name_of(model.settings.objective.name));
  try {
    model.decoder->new_state(1, 1);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

/// Returns the bytes of weights and constants that one generated token reads. Embeddings are tables of which it reads a
/// row, except one that is also the output layer.
std::int64_t generation_weight_bytes(const Model& model) {
  const layers::ModelConfig& config = model.decoder->config();
  std::int64_t bytes = 0;
  for (const Parameter& parameter : model.store->parameters()) {
    const std::string& name = parameter.name();
    const bool is_table =
        name == "token_embedding.weight" || name == "position_embedding.weight" || name == "segment_embedding.weight";
    if (is_table && name != model.decoder->output_weight().name()) continue;
    const bool is_shared = config.shared_layers && name.starts_with("blocks.");
    bytes += parameter.variable().value().bytes() * (is_shared ? config.n_layers : 1);
  }
  return bytes;
}

/// Generates once and appends the seconds, unless it warms up.
void run_generation(Model& model, std::uint64_t seed, bool warms_up, BenchGeneration& result) {
  const std::int64_t n = result.prompt_tokens + result.tokens;
  Settings settings = model.settings;
  settings.data.sequence_length = result.prompt_tokens;
  const std::vector<std::int32_t> prompt = RandomTokens(settings, model.vocabulary, seed).batch(0, result.batch).inputs;
  Tape tape(model.stream);
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  layers::GenerationState state = model.decoder->new_state(result.batch, n);
  const auto logits_after = [&](std::span<const std::int32_t> tokens) {
    return extended_logits(model, context, tokens, result.batch, state).to_vector<float>();
  };
  const auto start = Clock::now();
  std::vector<float> logits = logits_after(prompt);
  const double prompt_seconds = seconds_since(start);
  const DecodingThreads threads(model, result.batch);
  result.threads = thread_count();
  std::int64_t state_bytes = 0;
  const auto prompted = Clock::now();
  for (std::int64_t i = 0; i < result.tokens; ++i) {
    std::vector<std::int32_t> next;
    const auto width = static_cast<std::ptrdiff_t>(logits.size()) / result.batch;
    for (auto row = logits.begin(); row != logits.end(); row += width)
      next.push_back(static_cast<std::int32_t>(std::max_element(row, row + width) - row));
    logits = logits_after(next);
    state_bytes += state.bytes_read();
  }
  result.state_bytes = state_bytes / result.tokens;
  if (warms_up) return;
  result.prompt.seconds.push_back(prompt_seconds);
  result.steps.seconds.push_back(seconds_since(prompted) / static_cast<double>(result.tokens));
}

void plan_generation(const Model& model, const BenchModelOptions& options, BenchModelLength& result) {
  result.no_generation = why_no_generation(model);
  if (!result.no_generation.empty()) return;
  std::vector<std::int64_t> batches{1};
  if (model.settings.data.batch_size > 1) batches.push_back(model.settings.data.batch_size);
  for (const std::int64_t batch : batches) {
    BenchGeneration& one = result.generation.emplace_back();
    one.batch = batch;
    one.tokens = std::min(options.max_tokens, result.n / 2);
    one.prompt_tokens = result.n - one.tokens;
    one.weight_bytes = generation_weight_bytes(model);
  }
}

}  // namespace

double BenchRuns::median_seconds() const { return median(seconds); }

Settings bench_model_settings(const Settings& whole, std::int64_t n, const Vocabulary& vocabulary,
                              const Device& device) {
  Settings settings = whole;
  if (settings.teacher.has_loss())
    throw UserError("teacher.loss: {}: furlong bench model does not support a teacher; add --set teacher.loss=none",
                    settings.teacher.loss);
  if (!settings.finetune.source.empty())
    throw UserError(
        "finetune.source: {}: furlong bench model does not support furlong finetune; expected a config for furlong "
        "train, or a model",
        settings.finetune.source.string());
  check_one_process(settings);
  require_output_layer(settings, std::string("objective.name: ") + name_of(settings.objective.name));
  if (n < 2) throw UserError("sequences of {} token: expected at least 2 (--lengths)", n);
  layers::ModelConfig& model = settings.model;
  if (n > model.max_sequence_length) {
    const bool is_learned = model.position == layers::Position::learned;
    if (is_learned || layers::uses(model.attention, &layers::MechanismInfo::projects_sequence))
      throw UserError(
          "--lengths {}: the model has {} for {} tokens; expected at most as many, or add --set "
          "model.max_sequence_length={}",
          n, is_learned ? "learned positions" : "a linformer projection", model.max_sequence_length, n);
    model.max_sequence_length = n;
  }
  settings.data.sequence_length = n;
  settings.checkpoint.async = false;  // no checkpoint is written
  check(settings);
  check_memory(settings, vocabulary, device, ProcessGroup());
  return settings;
}

BenchModelLength bench_model(const Settings& settings, const Vocabulary& vocabulary, const BenchModelOptions& options) {
  const Device& device = options.device;
  // On a GPU the first steps are run, the next one is recorded (StepGraph) and the last one here replays it.
  const std::int64_t steps_to_warm_up = device.is_gpu() ? 4 : 1;
  Settings run = settings;
  run.trainer.max_steps = std::max(run.trainer.max_steps, steps_to_warm_up + options.repeat + 1);
  const Arena& memory = arena(device);
  const std::int64_t before = memory.counters().bytes_in_use;
  const RandomData data(run, vocabulary);
  Trainer trainer(run, data, device);
  Model& model = trainer.model();

  BenchModelLength result;
  result.n = run.data.sequence_length;
  result.parameters = model.store->total_parameter_count();
  result.step_flops = flops_of_step(run, vocabulary, device);
  const std::int64_t rows = run.objective.name == Objective::pair_classification ? 2 : 1;
  result.forward_tokens = run.data.batch_size * rows * result.n;
  result.step_tokens = result.forward_tokens * run.trainer.gradient_accumulation;
  plan_generation(model, options, result);
  for (std::int64_t i = 0; i < steps_to_warm_up; ++i) trainer.step();
  for (std::int64_t repetition = -1; repetition < options.repeat; ++repetition) {
    const bool warms_up = repetition < 0;
    const auto seed = static_cast<std::uint64_t>(repetition + 2);
    if (!warms_up) {
      arena(device).reset_peak();
      const auto start = Clock::now();
      trainer.step();
      result.step.seconds.push_back(seconds_since(start));
      result.peak_bytes = std::max(result.peak_bytes, memory.counters().peak_bytes - before);
    }
    const Evaluation found = evaluate(model, RandomTokens(run, model.vocabulary, seed),
                                      {.batch_size = run.data.batch_size, .max_batches = 1});
    if (!warms_up) result.forward.seconds.push_back(found.seconds);
    for (BenchGeneration& one : result.generation) run_generation(model, seed, warms_up, one);
  }
  return result;
}

}  // namespace furlong
