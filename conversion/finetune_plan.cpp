#include <algorithm>

#include "conversion/attention_request.h"
#include "conversion/finetune.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// Returns true for keys under `model` in which a student may differ from the model that its weights come from: keys
/// that do not affect shapes, and, if that is the softmax model, the attention.
bool may_differ_from_base(const std::string& key, bool has_given_student) {
  static const std::vector<std::string> always{"model.dropout",   "model.dtype",      "model.max_sequence_length",
                                               "model.lora_rank", "model.lora_alpha", "model.initializer_range",
                                               "model.weights"};
  if (std::find(always.begin(), always.end(), key) != always.end()) return true;
  return !has_given_student &&
         (key.starts_with("model.attention.") || key == "model.rotary_placement" || key == "model.query_key_norm");
}

/// Returns the defaults of the student's config. `base` is the model whose weights it takes. `has_given_student` is
/// true if that model already has the student's attention.
Settings defaults_from(const Settings& base, bool has_given_student) {
  Settings defaults;
  const layers::ModelConfig unset = defaults.model;
  defaults.model = base.model;
  layers::ModelConfig& model = defaults.model;
  model.dropout = unset.dropout;
  model.dtype = unset.dtype;
  model.weights.clear();
  if (!has_given_student) {
    model.attention = model.attention.plain();
    model.attention.window = base.model.attention.window;
    model.adapter = {};  // write_student() adds them to the weights
  }
  if (model.position != layers::Position::learned) {
    if (model.rotary_scaling.original_length == 0 && model.rotary_scaling.uses_original_length())
      model.rotary_scaling.original_length = model.max_sequence_length;
    model.max_sequence_length = 0;
  }
  defaults.objective.name = base.objective.name;
  defaults.objective.pooling = base.objective.pooling;
  return defaults;
}

void check_shape(const LoadedSettings& read, const Settings& base, const fs::path& source, bool has_given_student) {
  Settings ours = read.settings, theirs = base;
  const config::Table table = settings_table(ours), teachers = settings_table(theirs);
  const bool same_labels = theirs.objective.learns_labels() && ours.objective.name == theirs.objective.name;
  for (const config::Key& key : table.keys()) {
    const auto origin = read.origins.find(key.path());
    const bool is_shared = key.path().starts_with("model.") ? !may_differ_from_base(key.path(), has_given_student)
                                                            : same_labels && key.path() == "objective.pooling";
    if (origin == read.origins.end() || !is_shared) continue;
    const config::Value here = key.get(), there = teachers.find(key.path())->get();
    if (here == there) continue;
    throw UserError("{}: {}: found {}; expected {} as in {}, whose weights the student takes; remove {}",
                    origin->second.text(), key.path(), config::to_text(here), config::to_text(there), source.string(),
                    key.name());
  }
}

/// Throws UserError if a given student predicts the teacher's labels from states pooled in another way.
void check_pooling(const ObjectiveSettings& student, const ObjectiveSettings& teacher, const fs::path& given) {
  if (student.name != teacher.name || !teacher.learns_labels() || student.pooling == teacher.pooling) return;
  throw UserError(
      "finetune.student: {}: objective.pooling is {} there and {} in finetune.source; expected equal values, so "
      "convert the source again",
      given.string(), name_of(student.pooling), name_of(teacher.pooling));
}

std::int64_t longest_stage(const Settings& settings) {
  std::int64_t longest = settings.data.sequence_length;
  for (const std::string& name : settings.finetune.stages)
    longest = std::max(longest, settings.finetune.stage(name).sequence_length);
  return longest;
}

/// Returns the settings of one stage, without the finetune section.
LoadedSettings stage_settings(const LoadedSettings& read, const std::string& name, const fs::path& teacher,
                              const fs::path& weights, const fs::path& directory) {
  LoadedSettings stage = read;
  stage.warnings.clear();  // those of the whole config have been logged
  Settings& settings = stage.settings;
  const StageSettings& own = read.settings.finetune.stage(name);
  // 0 takes the value for all stages. Messages about another value name the place where the stage sets it.
  const auto take = [&](auto value, auto& target, const std::string& key) {
    if (value == 0) return;
    target = value;
    const auto origin = read.origins.find("finetune." + name + key.substr(key.rfind('.')));
    if (origin != read.origins.end()) stage.origins[key] = origin->second;
  };
  take(own.max_steps, settings.trainer.max_steps, "trainer.max_steps");
  take(own.learning_rate, settings.optimizer.learning_rate, "optimizer.learning_rate");
  take(own.warmup_steps, settings.schedule.warmup_steps, "schedule.warmup_steps");
  take(own.sequence_length, settings.data.sequence_length, "data.sequence_length");
  take(own.batch_size, settings.data.batch_size, "data.batch_size");
  take(own.gradient_accumulation, settings.trainer.gradient_accumulation, "trainer.gradient_accumulation");
  settings.run_directory = directory;
  settings.model.weights = weights;
  settings.finetune = {};
  const TeacherSettings unset, wanted = read.settings.teacher;
  settings.teacher = unset;
  if (name != "task") {
    settings.teacher.checkpoint = teacher;
    settings.teacher.loss = name;
  }
  if (name == "attention_transfer") {
    settings.teacher.layers = wanted.layers;
    settings.teacher.input = wanted.input;
    if (wanted.layers == "layer_wise") settings.trainer.early_stopping_patience = 0;
  } else if (name == "distillation") {
    settings.teacher.temperature = wanted.temperature;
    settings.teacher.distillation_weight = wanted.distillation_weight;
    settings.teacher.positions = wanted.positions;
  }
  std::erase_if(stage.origins, [](const auto& origin) {
    return origin.first.starts_with("teacher.") || origin.first.starts_with("finetune.") ||
           origin.first == "run_directory";
  });
  try {
    return finish_settings(std::move(stage));
  } catch (const UserError& error) {
    throw UserError("{} (stage {})", error.what(), name);
  }
}

}  // namespace

fs::path stage_directory(const fs::path& run, std::size_t index, const std::string& stage) {
  const fs::path old = run / fmt::format("{}_transfer", index + 1);  // the stage's name in runs of earlier versions
  std::error_code code;
  if (stage == "attention_transfer" && fs::exists(old, code)) return old;
  return run / fmt::format("{}_{}", index + 1, stage);
}

FinetunePlan plan_finetune(const FinetuneOptions& options, const Settings& teacher_settings, const fs::path& teacher) {
  const fs::path given = read_settings_file(options.config, options.overrides, Settings()).settings.finetune.student;
  const bool has_given_student = !given.empty();
  Settings base = teacher_settings;
  if (has_given_student) {
    const fs::path checkpoint = checkpoint_of(given);
    base = from_checkpoint_text(CheckpointReader::open(checkpoint).text("config"), checkpoint.string() + " (config)")
               .settings;
    check_pooling(base.objective, teacher_settings.objective, checkpoint);
    base.objective = teacher_settings.objective;
  }
  LoadedSettings read = read_settings_file(options.config, options.overrides, defaults_from(base, has_given_student));
  if (!options.run_directory.empty()) read.settings.run_directory = options.run_directory;
  check_shape(read, base, has_given_student ? given : read.settings.finetune.source, has_given_student);
  const std::int64_t window = read.settings.model.attention.window;
  reset_unused_keys(settings_table(read.settings), read.origins);
  if (!has_given_student) warn_of_lost_window(window, read.settings.model.attention);
  const fs::path& directory = read.settings.run_directory;
  // All stages share one model, whatever their sequence lengths. Short stages do not take positions from a rotary
  // model; a projection along the sequence is made for them.
  layers::ModelConfig& student = read.settings.model;
  if (student.max_sequence_length == 0) {
    const bool projects = layers::uses(student.attention, &layers::MechanismInfo::projects_sequence);
    student.max_sequence_length =
        std::max(longest_stage(read.settings), projects && !has_given_student ? 0 : base.model.max_sequence_length);
  }

  FinetunePlan plan{teacher,
                    has_given_student ? checkpoint_of(given) : directory / "student.h5",
                    has_given_student,
                    finish_settings(read).settings,
                    {}};
  const auto learns_from_teacher = [](const std::string& stage) { return stage != "task"; };
  const auto& stages = read.settings.finetune.stages;
  if (plan.student.model.attention == teacher_settings.model.attention &&
      std::any_of(stages.begin(), stages.end(), learns_from_teacher))
    throw UserError(
        "{}: the model in {} already has the attention of {}, so there is nothing to distill; expected the softmax "
        "model that it was made from, or another {}",
        has_given_student ? "finetune.student" : "finetune.source", read.settings.finetune.source.string(),
        has_given_student ? given.string() : "the config", has_given_student ? "student" : "model.attention");
  fs::path weights = plan.start_checkpoint;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const fs::path own = stage_directory(directory, i, stages[i]);
    plan.stages.push_back({stages[i], stage_settings(read, stages[i], teacher, weights, own)});
    weights = own;
  }
  return plan;
}

FinetunePlan plan_finetune(const FinetuneOptions& options, const fs::path& teacher) {
  const std::string config = CheckpointReader::open(teacher).text("config");
  return plan_finetune(options, from_checkpoint_text(config, teacher.string() + " (config)").settings, teacher);
}

}  // namespace furlong
