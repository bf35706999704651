#include "conversion/finetune.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conversion/import.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/io/atomic_file.h"
#include "framework/ops/gemm.h"
#include "trainers/checkpoints.h"
#include "trainers/train.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// Keys below `model` that a student may have otherwise than its teacher: its attention, and what shapes no weight that it takes over.
bool is_students_own(const std::string& key) {
  static const std::vector<std::string> own{
      "model.dropout",   "model.dtype",      "model.max_sequence_length", "model.rotary_placement", "model.query_key_norm",
      "model.lora_rank", "model.lora_alpha", "model.initializer_range",   "model.weights"};
  return key.starts_with("model.attention.") || std::find(own.begin(), own.end(), key) != own.end();
}

/// What the config says about itself, before the teacher is known.
Settings recipe_of(const FinetuneOptions& options) {
  const LoadedSettings read = read_settings_file(options.config, options.overrides, Settings());
  if (read.settings.finetune.source.empty())
    throw UserError(
        "{}: finetune.source is missing; expected the model to begin from: a directory of Hugging Face, a GGUF file, or a "
        "checkpoint or run directory of Furlong; furlong train is for models without one",
        options.config.string());
  Settings settings = read.settings;
  if (!options.run_directory.empty()) settings.run_directory = options.run_directory;
  return settings;
}

/// What a student has where its config says nothing.
Settings defaults_from(const Settings& teacher) {
  Settings defaults;
  const ModelSettings unset = defaults.model;
  defaults.model = teacher.model;
  ModelSettings& model = defaults.model;
  model.attention = unset.attention;
  model.dropout = unset.dropout;
  model.dtype = unset.dtype;
  model.weights.clear();
  model.lora_rank = unset.lora_rank;
  model.lora_alpha = unset.lora_alpha;
  if (model.position != "learned") {
    if (model.rotary_original_length == 0 && (model.rotary_scaling == "llama3" || model.rotary_scaling == "yarn"))
      model.rotary_original_length = model.max_sequence_length;
    model.max_sequence_length = 0;
  }
  defaults.objective.name = teacher.objective.name;
  return defaults;
}

/// What means nothing to the student (an output layer over tokens, to one that learns labels) is not taken over.
void forget_what_does_nothing(LoadedSettings& read) {
  Settings unset;
  const config::Table table = settings_table(read.settings), defaults = settings_table(unset);
  for (const config::Key& key : table.keys())
    if (!read.origins.contains(key.path()) && table.unmet(key)) key.set(defaults.find(key.path())->get());
}

void check_shape(const LoadedSettings& read, const Settings& teacher, const fs::path& source) {
  Settings ours = read.settings, theirs = teacher;
  const config::Table table = settings_table(ours), teachers = settings_table(theirs);
  for (const config::Key& key : table.keys()) {
    const auto origin = read.origins.find(key.path());
    if (origin == read.origins.end() || !key.path().starts_with("model.") || is_students_own(key.path())) continue;
    const config::Value here = key.get(), there = teachers.find(key.path())->get();
    if (here == there) continue;
    throw UserError("{}: {}: found {}; expected {}, as the model in {} has it, whose weights are taken over; remove {}",
                    origin->second.text(), key.path(), config::to_text(here), config::to_text(there), source.string(), key.name());
  }
}

std::int64_t longest_stage(const Settings& settings) {
  std::int64_t longest = settings.data.sequence_length;
  for (const std::string& name : settings.finetune.stages) longest = std::max(longest, settings.finetune.stage(name).sequence_length);
  return longest;
}

/// The settings of one stage, which know of no others.
LoadedSettings stage_settings(const LoadedSettings& read, const std::string& name, const fs::path& teacher, const fs::path& weights,
                              const fs::path& directory) {
  LoadedSettings stage = read;
  Settings& settings = stage.settings;
  const StageSettings& own = read.settings.finetune.stage(name);
  const auto take = [](auto value, auto& place) {
    if (value != 0) place = value;
  };
  take(own.max_steps, settings.trainer.max_steps);
  take(own.learning_rate, settings.optimizer.learning_rate);
  take(own.warmup_steps, settings.schedule.warmup_steps);
  take(own.sequence_length, settings.data.sequence_length);
  take(own.batch_size, settings.data.batch_size);
  take(own.gradient_accumulation, settings.trainer.gradient_accumulation);
  settings.run_directory = directory;
  settings.model.weights = weights;
  settings.finetune = {};
  const TeacherSettings unset, wanted = read.settings.teacher;
  settings.teacher = unset;
  if (name != "task") {
    settings.teacher.checkpoint = teacher;
    settings.teacher.loss = name;
  }
  if (name == "transfer") {
    settings.teacher.layers = wanted.layers;
    settings.teacher.input = wanted.input;
  } else if (name == "distillation") {
    settings.teacher.temperature = wanted.temperature;
    settings.teacher.share = wanted.share;
    settings.teacher.positions = wanted.positions;
  }
  std::erase_if(stage.origins, [](const auto& origin) {
    return origin.first.starts_with("teacher.") || origin.first.starts_with("finetune.") || origin.first == "run_directory";
  });
  try {
    return finish_settings(std::move(stage));
  } catch (const UserError& error) {
    throw UserError("{} (stage {})", error.what(), name);
  }
}

/// The checkpoint of the teacher: its own, or that of what was imported.
fs::path teacher_of(const Settings& recipe) {
  const fs::path& source = recipe.finetune.source;
  if (!is_foreign_model(source)) return checkpoint_of(source);
  const fs::path imported = recipe.run_directory / "teacher.h5";
  if (fs::exists(imported)) {
    spdlog::info("the teacher was imported before: {}", imported.string());
    return imported;
  }
  const SourceModel model = open_source_model(source);
  std::error_code failure;
  fs::create_directories(recipe.run_directory, failure);
  if (failure) throw UserError("run_directory: cannot create {}: {}", recipe.run_directory.string(), failure.message());
  write_model(model.model, model.origin, imported);
  spdlog::info("imported {} to {}: {} tensors", model.description, imported.string(), model.report.matched.size());
  return imported;
}

/// The time that a stage has taken is kept beside its checkpoints, which hold nothing that depends on the clock.
fs::path time_of(const FinetuneStage& stage) { return stage.settings.settings.run_directory / "seconds"; }

double read_seconds(const FinetuneStage& stage) {
  std::ifstream file(time_of(stage));
  double seconds = 0;
  return file >> seconds ? seconds : 0;
}

/// The steps of the newest checkpoint of a stage; nothing where there is none.
std::optional<Candidate> state_of(const FinetuneStage& stage) {
  const fs::path& directory = stage.settings.settings.run_directory;
  if (!fs::exists(directory / "checkpoints")) return std::nullopt;
  const std::optional<fs::path> newest = newest_whole_checkpoint(directory / "checkpoints");
  if (!newest) return std::nullopt;
  const CheckpointReader checkpoint = CheckpointReader::open(*newest);
  return Candidate{stage.name, checkpoint_of(directory), checkpoint.integer("step"), checkpoint.integer("tokens"), read_seconds(stage)};
}

bool has_ended(const FinetuneStage& stage) {
  const auto state = state_of(stage);
  return state && state->steps >= stage.settings.settings.trainer.max_steps;
}

void check_options(const FinetuneOptions& options, const Settings& recipe) {
  const auto& stages = recipe.finetune.stages;
  if (options.only_stage.empty()) return;
  if (options.evaluate_only) throw UserError("--stage {} cannot be with --evaluate-only, which trains nothing", options.only_stage);
  if (std::find(stages.begin(), stages.end(), options.only_stage) == stages.end())
    throw UserError("--stage: found {}; expected one of finetune.stages: {}", options.only_stage, config::join(stages, ", "));
}

/// Trains the stages that are to be; whether a signal stopped it.
bool train_stages(const FinetunePlan& plan, const FinetuneOptions& options, FinetuneResult& result) {
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const FinetuneStage& stage = plan.stages[i];
    if (!options.only_stage.empty() && stage.name != options.only_stage) continue;
    result.stage = stage.name;
    if (i > 0 && !state_of(plan.stages[i - 1]))
      throw UserError("--stage {}: begins from what {} has trained, and there is no checkpoint in {}; run that stage first", stage.name,
                      plan.stages[i - 1].name, plan.stages[i - 1].settings.settings.run_directory.string());
    if (has_ended(stage)) {
      spdlog::info("stage {} has ended before: {}", stage.name, stage.settings.settings.run_directory.string());
      continue;
    }
    spdlog::info("stage {} ({} of {})", stage.name, i + 1, plan.stages.size());
    const double before = state_of(stage) ? read_seconds(stage) : 0;
    const TrainResult found = train(stage.settings, {});
    write_file_atomically(time_of(stage), fmt::format("{:.3f}\n", before + found.seconds));
    if (found.interrupted) return true;
  }
  return false;
}

std::vector<Candidate> students_of(const FinetunePlan& plan) {
  std::vector<Candidate> students{{"before", plan.teacher, 0, 0, 0}};
  for (const FinetuneStage& stage : plan.stages)
    if (const auto state = state_of(stage)) students.push_back(*state);
  return students;
}

}  // namespace

FinetunePlan plan_finetune(const FinetuneOptions& options, const fs::path& teacher) {
  const Settings theirs = from_checkpoint_text(CheckpointReader::open(teacher).text("config"), teacher.string() + " (config)").settings;
  LoadedSettings read = read_settings_file(options.config, options.overrides, defaults_from(theirs));
  if (!options.run_directory.empty()) read.settings.run_directory = options.run_directory;
  check_shape(read, theirs, read.settings.finetune.source);
  forget_what_does_nothing(read);
  const fs::path& directory = read.settings.run_directory;
  // One model for all stages, whatever their lengths.
  if (read.settings.model.max_sequence_length == 0) read.settings.model.max_sequence_length = longest_stage(read.settings);

  FinetunePlan plan{teacher, finish_settings(read).settings, {}};
  const auto learns_from_teacher = [](const std::string& stage) { return stage != "task"; };
  const auto& stages = read.settings.finetune.stages;
  if (plan.student.model.attention == theirs.model.attention && std::any_of(stages.begin(), stages.end(), learns_from_teacher))
    throw UserError(
        "finetune.source: the model in {} has the attention that the config asks for already, and nothing to teach; expected the softmax "
        "model that "
        "it was made from, or another model.attention",
        read.settings.finetune.source.string());
  fs::path weights = teacher;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const fs::path own = directory / fmt::format("{}_{}", i + 1, stages[i]);
    plan.stages.push_back({stages[i], stage_settings(read, stages[i], teacher, weights, own)});
    weights = own;
  }
  return plan;
}

FinetuneResult finetune(const FinetuneOptions& options) {
  const Settings recipe = recipe_of(options);
  check_options(options, recipe);
  configure_logging(recipe.log.level);
  set_thread_count(static_cast<int>(recipe.threads));
  const FinetunePlan plan = plan_finetune(options, teacher_of(recipe));
  FinetuneResult result;
  result.run_directory = plan.student.run_directory;
  if (!options.evaluate_only) result.interrupted = train_stages(plan, options, result);
  if (result.interrupted || !options.only_stage.empty()) return result;
  ops::set_tf32(plan.student.tf32);
  result.recovery =
      measure_recovery(plan.student, plan.teacher, students_of(plan), [](const std::string& line) { spdlog::info("{}", line); });
  nlohmann::ordered_json json{{"source", plan.student.finetune.source.string()}, {"config", options.config.string()}};
  json.update(to_json(*result.recovery));
  std::error_code failure;
  fs::create_directories(result.run_directory, failure);
  write_file_atomically(result.run_directory / "recovery.json", json.dump(2) + "\n");
  return result;
}

}  // namespace furlong
