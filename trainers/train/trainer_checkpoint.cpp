// Saving a training run to a checkpoint, and resuming from one.
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/json_text.h"
#include "framework/core/json_output.h"
#include "framework/core/log.h"
#include "framework/core/trace.h"
#include "framework/core/version.h"
#include "trainers/checkpoint/checkpoint_tensors.h"
#include "trainers/train/checkpoint_shard.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/parallel/agreement.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

constexpr const char* start_elsewhere = "use another --run-dir, or --resume never to start from step 0";

/// Returns whether a resumed run may change a key of `model`, given as a JSON pointer: keys that determine no stored
/// tensor.
bool may_change(const std::string& key, layers::Position position) {
  if (key == "/max_sequence_length") return position != layers::Position::learned;
  return key == "/weights" || key == "/dropout" || key == "/attention/chunk_size" || key == "/attention/redraw_every" ||
         key == "/attention/denominator_guard";
}

/// Returns whether `from` has the schedule of `to` with the same number of steps.
bool follows_steps(const Settings& from, const Settings& to) {
  LoadedSettings changed{from, {}, {}};
  ScheduleSettings& schedule = changed.settings.schedule;
  const std::int64_t steps = from.trainer.max_steps;
  const bool is_derived =
      schedule.decay_steps ==
      (schedule.name == "warmup_stable_decay" ? std::max<std::int64_t>(1, steps / 10) : steps - schedule.warmup_steps);
  if (is_derived) schedule.decay_steps = 0;
  changed.settings.trainer.max_steps = to.trainer.max_steps;
  return finish_settings(std::move(changed)).settings.schedule == to.schedule;
}

/// Returns whether steps depend on a key, given as "data.batch_size".
bool affects_steps(const std::string& key) {
  static const std::vector<std::string> without_effect{"data.dataset",
                                                       "data.sources",
                                                       "model.weights",
                                                       "model.max_sequence_length",
                                                       "model.attention.chunk_size",
                                                       "teacher.checkpoint",
                                                       "trainer.max_steps",
                                                       "trainer.validate_every",
                                                       "trainer.validation_batches",
                                                       "trainer.cuda_graph",
                                                       "trainer.activation_checkpointing",
                                                       "trainer.early_stopping_patience",
                                                       "trainer.sample_tokens",
                                                       "trainer.sample_prompt"};
  return !key.starts_with("data.sources.") &&
         std::find(without_effect.begin(), without_effect.end(), key) == without_effect.end();
}

/// Returns an empty map if the compute values were rounded to nearest.
Optimizer::LastSteps last_optimizer_steps(const CheckpointReader& checkpoint) {
  Optimizer::LastSteps steps;
  if (!checkpoint.has("last_optimizer_steps")) return steps;
  const auto json = foreign::parse_json(checkpoint.text("last_optimizer_steps"), checkpoint.path().string());
  const bool is_valid = json.is_object() && std::all_of(json.begin(), json.end(),
                                                        [](const auto& step) { return step.is_number_unsigned(); });
  if (!is_valid)
    throw UserError(
        "{}: last_optimizer_steps: expected a number of steps for each parameter; the file was not written by furlong",
        checkpoint.path().string());
  return json.get<Optimizer::LastSteps>();
}

/// Throws UserError if AdamW cannot have these moments or weights.
void check_moments(const CheckpointReader& checkpoint, const std::string& name, const Tensor& values) {
  const bool is_second = name.starts_with("second_moments/");
  std::int64_t bad = 0;
  const auto count = [&](const auto* from) {
    for (std::int64_t i = 0; i < values.elements(); ++i) bad += !std::isfinite(from[i]) || (is_second && from[i] < 0);
  };
  if (values.dtype() == DType::float64)
    count(values.data<double>());
  else
    count(values.data<float>());
  if (bad > 0)
    throw UserError("{}: tensor {} has {} values that are NaN{}; use an earlier checkpoint", checkpoint.path().string(),
                    name, bad, is_second ? ", infinite or negative" : " or infinite");
}

/// Returns a number of steps, tokens or samples.
std::int64_t counter(const CheckpointReader& checkpoint, const std::string& name) {
  constexpr std::int64_t largest = std::int64_t{1} << 53;
  const std::int64_t value = checkpoint.integer(name);
  if (value < 0 || value > largest)
    throw UserError("{}: {} is {}; expected 0 to 2^53; use an earlier checkpoint", checkpoint.path().string(), name,
                    value);
  return value;
}

}  // namespace

WeightsReport Trainer::start_from(const CheckpointReader& checkpoint) {
  require(steps_ == 0, "Trainer: start_from() after the first step");
  check_same_model(checkpoint, model_);
  const WeightsReport report = initialize_from(checkpoint, model_);
  origin_ = CheckpointOrigin::read(checkpoint);
  optimizer_.restart_average();
  return report;
}

void Trainer::continue_samples_of(const CheckpointReader& checkpoint) {
  if (checkpoint.has("sampler_counter"))
    input_.continue_at(static_cast<std::uint64_t>(counter(checkpoint, "sampler_counter")));
}

std::string Trainer::digest() const {
  std::uint64_t checksum = 0;
  for (const Parameter& parameter : model_.store->parameters()) {
    const Tensor host = parameter.master().to(Device{});
    checksum = XXH3_64bits_withSeed(host.address(), static_cast<std::size_t>(host.bytes()), checksum);
  }
  return fmt::format("step {}, sample {}, weights {:016x}", steps_, input_.samples_drawn(), checksum);
}

void Trainer::save(const std::filesystem::path& path, const std::string& metrics) const {
  const trace::Span span("checkpoint", "checkpoint", {.step = steps_});
  write_checkpoint(path, checkpoint_parts(metrics), parallel_.group());
}

CheckpointParts Trainer::checkpoint_parts(const std::string& metrics) const {
  CheckpointParts parts;
  if (parallel_.group()) {
    parts.shard = [this](CheckpointSink& file) {
      put_shard(file, *model_.store, optimizer_, parallel_.owned_ranges(), parallel_.is_first());
    };
    parts.index.tensors = sharded_tensors(*model_.store, optimizer_);
  }
  if (parallel_.is_first()) parts.state = [this, metrics](CheckpointSink& file) { put_state(file, metrics); };
  return parts;
}

void Trainer::put_state(CheckpointSink& file, std::string_view metrics) const {
  const ParameterStore& store = *model_.store;
  const auto write = [&](const std::string& name, const Tensor& tensor) { write_tensor(file, name, tensor); };
  for (const Parameter& parameter : store.parameters()) {
    const bool is_trained = store.is_trained(parameter);
    if (parallel_.group() && is_trained) continue;  // in shards
    write("parameters/" + parameter.name(), parameter.master());
    if (!is_trained) continue;
    write("first_moments/" + parameter.name(), store.slice(optimizer_.first_moment(), parameter));
    write("second_moments/" + parameter.name(), store.slice(optimizer_.second_moment(), parameter));
    if (optimizer_.has_ema()) write("ema/" + parameter.name(), store.slice(optimizer_.ema(), parameter));
  }
  file.text("config", to_yaml(model_.settings));
  file.text("vocabulary", model_.vocabulary.to_json());
  file.text("metrics", metrics);
  file.text("version", version());
  file.text("commit", commit());
  file.integer("step", steps_);
  file.integer("optimizer_steps", optimizer_.steps());
  if (optimizer_.rounds_stochastically())
    file.text("last_optimizer_steps", nlohmann::json(optimizer_.last_steps()).dump());
  file.integer("tokens", tokens_);
  if (origin_) origin_->write(file);
  file.integer("sampler_counter", static_cast<std::int64_t>(input_.samples_drawn()));
  file.integer("seed", model_.settings.seed);
  if (data_fingerprint_.empty()) data_fingerprint_ = data_fingerprint(data_);
  file.text("data_fingerprint", data_fingerprint_);
  early_stopping_.save(file);
  for (std::size_t i = 0; i < recurrent_states_.size(); ++i)
    recurrent_states_[i].save(file, fmt::format("recurrent_state/{}", i));
  outliers_.save(file);
}

std::optional<std::string> model_difference(const Settings& checkpoint, const Settings& settings) {
  const auto then = to_json(checkpoint)["model"].flatten(), now = to_json(settings)["model"].flatten();
  for (const auto& [key, value] : now.items()) {
    if (may_change(key, settings.model.position) || (then.contains(key) && then[key] == value)) continue;
    std::string name = key;
    std::replace(name.begin(), name.end(), '/', '.');
    return fmt::format("model{} was {} in the checkpoint and is {} now", name,
                       then.contains(key) ? json_line(then[key]) : "absent", json_line(value));
  }
  return std::nullopt;
}

std::vector<std::string> changed_since(const Settings& before, const Settings& now,
                                       const std::vector<std::string>& sections) {
  const bool is_same_schedule =
      before.schedule == now.schedule || follows_steps(before, now) || follows_steps(now, before);
  std::vector<std::string> changed;
  const auto all_before = to_json(before), all_now = to_json(now);
  for (const std::string& section : sections) {
    if (!all_now.contains(section) || (section == "schedule" && is_same_schedule)) continue;
    const auto wanted = all_now.at(section).flatten(),
               had = all_before.value(section, nlohmann::ordered_json()).flatten();
    for (const auto& [key, value] : wanted.items()) {
      if (had.contains(key) && had[key] == value) continue;
      std::string name = section + key;
      std::replace(name.begin(), name.end(), '/', '.');
      if (!affects_steps(name)) continue;
      changed.push_back(fmt::format("{} ({} then, {} now)", name, had.contains(key) ? json_line(had[key]) : "absent",
                                    json_line(value)));
    }
  }
  return changed;
}

void check_resumable(const CheckpointReader& checkpoint, const Settings& settings) {
  const std::string origin = checkpoint.path().string();
  if (!checkpoint.has("sampler_counter"))
    throw UserError(
        "{}: cannot resume: it contains a model without training state, as furlong convert writes it; set "
        "model.weights to start from it, or move it away",
        origin);
  const Settings before = from_checkpoint_text(checkpoint.text("config"), origin + " (config)").settings;
  if (before.objective.name != settings.objective.name || before.objective.pooling != settings.objective.pooling) {
    throw UserError(
        "{}: cannot resume: the objective was {} (pooling {}) in the checkpoint and is {} (pooling {}) now; {}", origin,
        name_of(before.objective.name), name_of(before.objective.pooling), name_of(settings.objective.name),
        name_of(settings.objective.pooling), start_elsewhere);
  }
  if (before.teacher.loss != settings.teacher.loss) {
    throw UserError(
        "{}: cannot resume: teacher.loss was {} in the checkpoint and is {} now; use another --run-dir, and set "
        "model.weights to start from these weights",
        origin, before.teacher.loss, settings.teacher.loss);
  }
  if (const auto difference = model_difference(before, settings))
    throw UserError("{}: cannot resume: {}; {}", origin, *difference, start_elsewhere);
  if (checkpoint.integer("seed") != settings.seed)
    throw UserError("{}: cannot resume: seed was {} in the checkpoint and is {} now; {}", origin,
                    checkpoint.integer("seed"), settings.seed, start_elsewhere);
}

void Trainer::load(const CheckpointReader& checkpoint) {
  check_resumable(checkpoint, model_.settings);
  const std::string origin = checkpoint.path().string();
  const Settings before = from_checkpoint_text(checkpoint.text("config"), origin + " (config)").settings;
  const Vocabulary vocabulary = Vocabulary::from_json(checkpoint.text("vocabulary"), origin);
  if (!(vocabulary == model_.vocabulary))
    throw UserError("{}: cannot resume: its vocabulary differs from that of {}; {}", origin, data_.path(),
                    start_elsewhere);
  const auto equal = [](const LabelScale& a, const LabelScale& b) { return a.mean == b.mean && a.scale == b.scale; };
  if (!std::equal(vocabulary.label_scales().begin(), vocabulary.label_scales().end(),
                  model_.vocabulary.label_scales().begin(), model_.vocabulary.label_scales().end(), equal))
    throw UserError(
        "{}: cannot resume: the numbers of {} have another mean or standard deviation than when the run started; {}",
        origin, data_.path(), start_elsewhere);
  load_parameters(checkpoint, model_, Weights::raw);
  const ParameterStore& store = *model_.store;
  for (const Parameter& parameter : store.parameters()) {
    if (!store.is_trained(parameter)) continue;
    const auto into = [&](const std::string& name, const Tensor& own) {
      const Tensor whole = Tensor::empty(parameter.shape(), store.master_dtype());
      read_tensor(checkpoint, name, whole);
      check_moments(checkpoint, name, whole);
      optimizer_.put(parameter, whole, own);
    };
    into("first_moments/" + parameter.name(), optimizer_.first_moment());
    into("second_moments/" + parameter.name(), optimizer_.second_moment());
    if (!optimizer_.has_ema()) continue;
    // If the checkpoint has no EMA, the EMA starts from the values.
    const std::string ema = "ema/" + parameter.name();
    into(checkpoint.has(ema) ? ema : "parameters/" + parameter.name(), optimizer_.ema());
  }
  steps_ = counter(checkpoint, "step");
  optimizer_.restore_steps(counter(checkpoint, "optimizer_steps"), last_optimizer_steps(checkpoint));
  optimizer_.refresh_compute_values(model_.stream);
  tokens_ = counter(checkpoint, "tokens");
  origin_ = CheckpointOrigin::read(checkpoint);
  input_.continue_at(static_cast<std::uint64_t>(counter(checkpoint, "sampler_counter")));
  early_stopping_.load(checkpoint);
  const Settings& now = model_.settings;
  const DataSettings &then = before.data, &data = now.data;
  const bool has_other_batches = was_trained_on_other_data(checkpoint, data_).value_or(then.dataset != data.dataset) ||
                                 then.sequence_length != data.sequence_length || then.batch_size != data.batch_size ||
                                 before.trainer.gradient_accumulation != now.trainer.gradient_accumulation;
  load_recurrent_state(checkpoint, has_other_batches || !then.stateful);
  outliers_.load(checkpoint);
  // The norms of smaller batches are larger, and the norms may be those of another layer.
  const bool has_other_intervals =
      teacher_ && teacher_->layer_interval(steps_) && before.trainer.max_steps != now.trainer.max_steps;
  if (has_other_batches || has_other_intervals) outliers_.forget();
}

void Trainer::load_recurrent_state(const CheckpointReader& checkpoint, bool starts_empty) {
  if (recurrent_states_.empty()) return;
  if (starts_empty) {
    log_warn("{}: the data or the shape of batches differs from the checkpoint's; recurrent states start empty",
             checkpoint.path().string());
    return;
  }
  for (std::size_t i = 0; i < recurrent_states_.size(); ++i)
    recurrent_states_[i].load(checkpoint, fmt::format("recurrent_state/{}", i));
}

}  // namespace furlong
