#include "conversion/finetune.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "communication/launch/launch_environment.h"
#include "conversion/approximation.h"
#include "conversion/finetune_record.h"
#include "conversion/import_model.h"
#include "conversion/recovery_file.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/weights.h"
#include "trainers/train/recording/metrics.h"
#include "trainers/train/signals.h"
#include "trainers/train/train.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// A launcher that started several would have each of them write the same files.
void refuse_several_processes() {
  const LaunchEnvironment launch = discover_launch();
  if (launch.world_size == 1) return;
  throw UserError(
      "furlong finetune runs in one process, but the launcher ({}) started {}: a model learns from a teacher in one; "
      "start one, or train without a teacher in several by furlong train, with model.weights to begin from what "
      "finetune has made",
      launch.launcher, launch.world_size);
}

/// What the config says about itself, before the teacher is known.
Settings recipe_of(const FinetuneOptions& options) {
  const LoadedSettings read = read_settings_file(options.config, options.overrides, Settings());
  if (read.settings.finetune.source.empty())
    throw UserError(
        "{}: finetune.source is missing; expected the model to begin from: a directory of Hugging Face, a GGUF file, "
        "or a checkpoint or run directory of Furlong; furlong train is for models without one",
        options.config.string());
  log_warnings(read);
  Settings settings = read.settings;
  if (!options.run_directory.empty()) settings.run_directory = options.run_directory;
  return settings;
}

/// The teacher: a checkpoint of ours, or what is to be one when its settings have been found to fit.
struct TeacherSource {
  fs::path checkpoint;
  Settings settings;
  std::optional<SourceModel> imported;  // where the checkpoint is still to be written
};

Settings settings_of(const fs::path& checkpoint) {
  return from_checkpoint_text(CheckpointReader::open(checkpoint).text("config"), checkpoint.string() + " (config)")
      .settings;
}

TeacherSource open_teacher(const Settings& recipe) {
  const fs::path& source = recipe.finetune.source;
  if (!is_foreign_model(source)) {
    const fs::path own = checkpoint_of(source);
    return {own, settings_of(own), std::nullopt};
  }
  const fs::path imported = recipe.run_directory / "teacher.h5";
  if (fs::exists(imported)) {
    log_info("the teacher was imported before: {}", imported.string());
    return {imported, settings_of(imported), std::nullopt};
  }
  SourceModel model = open_source_model(source);
  Settings settings = model.model.settings;
  return {imported, std::move(settings), std::move(model)};
}

void write_teacher(const TeacherSource& teacher) {
  if (!teacher.imported) return;
  const SourceModel& model = *teacher.imported;
  write_model(model.model, model.origin, teacher.checkpoint);
  log_info("imported {} to {}: {} tensors", model.description, teacher.checkpoint.string(),
           model.report.matched.size());
}

/// Centres, scales and the like from the first tokens of the training split, as the teacher sees them.
void measure_constants(const Settings& settings, SourceModel& teacher, Model& student) {
  constexpr std::int64_t enough_tokens =
      16384;  // means over them are good to about a hundredth of a standard deviation
  Settings& theirs = teacher.model.settings;
  if (!has_constants(settings)) return;
  if (settings.model.rotary_placement != theirs.model.rotary_placement ||
      settings.model.query_key_norm != theirs.model.query_key_norm) {
    log_info(
        "the student's queries and keys are not the teacher's: constants of its feature map are found in training");
    return;
  }
  theirs.data = settings.data;
  if (theirs.objective.name == settings.objective.name) theirs.objective = settings.objective;
  ObservedBatches wanted;
  wanted.split = Split::train;
  wanted.sequence_length = std::min(settings.data.sequence_length, enough_tokens);
  if (theirs.model.position == layers::Position::learned)
    wanted.sequence_length = std::min(wanted.sequence_length, theirs.model.max_sequence_length);
  wanted.batch_size = std::clamp<std::int64_t>(enough_tokens / wanted.sequence_length, 1, settings.data.batch_size);
  wanted.tokens = enough_tokens;
  log_info("measuring the constants of {} on the CPU", settings.model.attention.feature_map);
  ObservedModel observed(teacher.model, wanted);
  calibrate(observed, student);
  log_info("measured the constants of {} on {} tokens", settings.model.attention.feature_map, observed.tokens());
}

/// The student before its first step: the teacher's weights under the new attention.
void write_student(const FinetunePlan& plan, TeacherSource& teacher) {
  if (!teacher.imported) teacher.imported = open_source_model(teacher.checkpoint);
  Settings settings = plan.student;
  settings.finetune = {};
  settings.teacher = {};
  Model student = make_model(settings, open_data(settings.data)->vocabulary(), Device{}, DType::float32, all_frozen);
  const WeightsReport report = begin_from(CheckpointReader::open(teacher.checkpoint), student);
  if (report.positions_before > 0)
    log_warn("{}: has {} learned positions; each one later repeats that which stands so many before it",
             teacher.checkpoint.string(), report.positions_before);
  measure_constants(settings, *teacher.imported, student);
  write_model(student, teacher.imported->origin, plan.beginning);
  log_info("the student before training: {}", plan.beginning.string());
}

/// That the data's tokens are the teacher's, before anything is written.
void check_data(const FinetunePlan& plan, const TeacherSource& teacher) {
  const Settings& settings = plan.student;
  const Vocabulary data = model_vocabulary(settings, open_data(settings.data)->vocabulary()).with_labels({});
  const Vocabulary theirs =
      (teacher.imported ? teacher.imported->model.vocabulary
                        : Vocabulary::from_json(CheckpointReader::open(teacher.checkpoint).text("vocabulary"),
                                                teacher.checkpoint.string()))
          .with_labels({});
  if (data == theirs) return;
  throw UserError(
      "data.store: {} has another vocabulary ({}, {} tokens) than the model in {} ({}, {} tokens); expected the same, "
      "so that ids mean the same: prepare the data with furlong prepare --tokenizer {}",
      settings.data.store.string(), data.description(), data.size(), settings.finetune.source.string(),
      theirs.description(), theirs.size(), settings.finetune.source.string());
}

/// Whether a stage has a checkpoint.
bool has_begun(const FinetuneStage& stage) {
  const fs::path checkpoints = stage.settings.settings.run_directory / "checkpoints";
  return fs::exists(checkpoints) && !fs::is_empty(checkpoints);
}

/// Keys of some sections that have another value now than then, in words; none that changes no step.
std::vector<std::string> changed_since(const Settings& before, const Settings& now,
                                       const std::vector<std::string>& sections) {
  static const std::vector<std::string> without_effect{
      "teacher.checkpoint", "trainer.max_steps", "trainer.validate_every",         "trainer.validation_batches",
      "trainer.cuda_graph", "trainer.recompute", "trainer.early_stopping_patience"};
  std::vector<std::string> changed;
  const auto all_before = to_json(before), all_now = to_json(now);
  for (const std::string& section : sections) {
    const auto wanted = all_now[section].flatten(), had = all_before[section].flatten();
    for (const auto& [key, value] : wanted.items()) {
      if (had.contains(key) && had[key] == value) continue;
      std::string name = section + key;
      std::replace(name.begin(), name.end(), '/', '.');
      if (std::find(without_effect.begin(), without_effect.end(), name) != without_effect.end()) continue;
      changed.push_back(
          fmt::format("{} ({} then, {} now)", name, had.contains(key) ? had[key].dump() : "absent", value.dump()));
    }
  }
  return changed;
}

/// The student before its first step, of this config: made again where another config's is there and no stage has
/// begun.
void prepare_student(const FinetunePlan& plan, TeacherSource& teacher) {
  if (!fs::exists(plan.beginning)) return write_student(plan, teacher);
  const Settings before = settings_of(plan.beginning);
  std::vector<std::string> changed = changed_since(before, plan.student, {"seed", "objective"});
  for (const std::string& key : changed_since(before, plan.student, {"data"}))
    if (has_constants(plan.student)) changed.push_back(key);
  if (const auto difference = model_difference(before, plan.student)) changed.push_back(*difference);
  if (changed.empty()) return;
  if (std::none_of(plan.stages.begin(), plan.stages.end(), has_begun)) return write_student(plan, teacher);
  throw UserError("{}: this run began with another student: {}; choose another --run-dir, or remove this run",
                  plan.beginning.string(), config::join(changed, ", "));
}

/// That a student made by furlong convert is one of this source: all but its attention is the teacher's.
void check_converted(const FinetunePlan& plan) {
  const CheckpointReader student = CheckpointReader::open(plan.beginning),
                         teacher = CheckpointReader::open(plan.teacher);
  std::vector<char> ours, theirs;
  for (const TensorInfo& tensor : teacher.tensors("parameters/")) {
    if (tensor.name.find(".attention.") != std::string::npos || !student.has(tensor.name)) continue;
    if (student.info(tensor.name).bytes != tensor.bytes) continue;  // more positions, an output layer of its own
    ours.resize(tensor.bytes);
    theirs.resize(tensor.bytes);
    student.read(tensor.name, ours.data(), ours.size());
    teacher.read(tensor.name, theirs.data(), theirs.size());
    if (ours == theirs) continue;
    log_warn("finetune.student: {} is no mere conversion of {}: {} differs", plan.beginning.string(),
             plan.student.finetune.source.string(), tensor.name.substr(std::string_view("parameters/").size()));
    return;
  }
}

/// Makes what the stages begin from, as far as it is not there.
void prepare(const FinetunePlan& plan, TeacherSource& teacher, FinetuneRecord& record) {
  const fs::path& directory = plan.student.run_directory;
  const fs::path& source = plan.student.finetune.source;
  const std::string fingerprint = fingerprint_of_source(source);
  record.check_source(source, fingerprint);
  const bool holds_something = fs::exists(directory / "teacher.h5") || fs::exists(directory / "student.h5") ||
                               std::any_of(plan.stages.begin(), plan.stages.end(), has_begun);
  if (record.source_fingerprint.empty() && holds_something)
    throw UserError(
        "{}: holds a run without a finetune.json that tells what it was made from; choose another --run-dir, or remove "
        "it",
        directory.string());
  check_data(plan, teacher);
  std::error_code failure;
  fs::create_directories(directory, failure);
  if (failure) throw UserError("run_directory: cannot create {}: {}", directory.string(), failure.message());
  if (record.source_fingerprint.empty()) {
    record.source = source.string();
    record.source_fingerprint = fingerprint;
    record.write();
  }
  write_teacher(teacher);
  if (plan.converted) {
    check_converted(plan);
  } else {
    prepare_student(plan, teacher);
  }
}

/// The steps of the newest checkpoint of a stage, and the checkpoint that stands for it; nothing where there is none.
std::optional<Candidate> state_of(const FinetuneStage& stage) {
  const fs::path& directory = stage.settings.settings.run_directory;
  if (!fs::exists(directory / "checkpoints")) return std::nullopt;
  const std::optional<fs::path> newest = newest_whole_checkpoint(directory / "checkpoints");
  if (!newest) return std::nullopt;
  const CheckpointReader checkpoint = CheckpointReader::open(*newest);
  const std::int64_t steps = checkpoint.integer("step");
  return Candidate{stage.name, checkpoint_of(directory), steps, checkpoint.integer("tokens"),
                   training_seconds(directory / "metrics.jsonl", steps)};
}

bool has_ended(const FinetuneStage& stage) {
  const auto state = state_of(stage);
  return state && state->steps >= stage.settings.settings.trainer.max_steps;
}

void check_options(const FinetuneOptions& options, const Settings& recipe) {
  const auto& stages = recipe.finetune.stages;
  if (options.only_stage.empty()) return;
  if (options.evaluate_only)
    throw UserError("--stage {} cannot be with --evaluate-only, which trains nothing", options.only_stage);
  if (std::find(stages.begin(), stages.end(), options.only_stage) == stages.end())
    throw UserError("--stage: found {}; expected one of finetune.stages: {}", options.only_stage,
                    config::join(stages, ", "));
}

/// That the stage asked for has what it begins from, before a teacher is imported for it.
void check_stage_before(const FinetuneOptions& options, const Settings& recipe) {
  const auto& stages = recipe.finetune.stages;
  if (options.only_stage.empty() || options.only_stage == stages.front()) return;
  const auto index =
      static_cast<std::size_t>(std::find(stages.begin(), stages.end(), options.only_stage) - stages.begin()) - 1;
  const fs::path before = stage_directory(recipe.run_directory, index, stages[index]);
  if (fs::exists(before / "checkpoints") && newest_whole_checkpoint(before / "checkpoints")) return;
  throw UserError("--stage {}: begins from what {} has trained, and there is no checkpoint in {}; run that stage first",
                  options.only_stage, stages[index], before.string());
}

/// That what there is of a stage was trained as the config says, from what it would begin from now.
void check_stage(const FinetuneStage& stage, const FinetuneRecord& record) {
  const auto state = state_of(stage);
  if (!state) return;
  const Settings& settings = stage.settings.settings;
  const std::string directory = settings.run_directory.string();
  const fs::path newest = newest_checkpoint_of(settings.run_directory);
  const Settings before =
      from_yaml_text(CheckpointReader::open(newest).text("config"), newest.string() + " (config)").settings;
  if (const auto difference = model_difference(before, settings))
    throw UserError("{}: this stage was trained with another model: {}; choose another --run-dir, or remove this run",
                    directory, *difference);
  const auto beginning = record.beginnings.find(settings.run_directory.filename().string());
  if (beginning == record.beginnings.end() ||
      beginning->second != fingerprint_of_checkpoint(checkpoint_of(settings.model.weights)))
    throw UserError("{}: this stage did not begin from {} as it is now; remove {} to train it again", directory,
                    settings.model.weights.string(), directory);
  const auto changed =
      changed_since(before, settings, {"seed", "data", "objective", "teacher", "optimizer", "schedule", "trainer"});
  if (!changed.empty())
    log_warn("stage {} was trained with other settings so far: {}; remove {} to train it again", stage.name,
             config::join(changed, ", "), directory);
}

/// Trains the stages that are to be; whether a signal stopped it.
bool train_stages(const FinetunePlan& plan, const FinetuneOptions& options, FinetuneRecord& record,
                  const StopRequests& stop_requests, FinetuneResult& result) {
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const FinetuneStage& stage = plan.stages[i];
    if (stop_requests.received()) return true;
    if (!options.only_stage.empty() && stage.name != options.only_stage) continue;
    result.stage = stage.name;
    check_stage(stage, record);
    if (has_ended(stage)) {
      log_info("stage {} has ended before: {}", stage.name, stage.settings.settings.run_directory.string());
      continue;
    }
    log_info("stage {} ({} of {})", stage.name, i + 1, plan.stages.size());
    record.beginnings[stage.settings.settings.run_directory.filename().string()] =
        fingerprint_of_checkpoint(checkpoint_of(stage.settings.settings.model.weights));
    record.write();
    if (train(stage.settings, {}).interrupted) return true;
  }
  return stop_requests.received();
}

std::vector<Candidate> students_of(const FinetunePlan& plan) {
  std::vector<Candidate> students{{"before", plan.beginning, 0, 0, 0}};
  for (const FinetuneStage& stage : plan.stages)
    if (const auto state = state_of(stage)) students.push_back(*state);
  return students;
}

}  // namespace

FinetuneResult finetune(const FinetuneOptions& options) {
  refuse_several_processes();
  const Settings recipe = recipe_of(options);
  check_options(options, recipe);
  check_stage_before(options, recipe);
  configure_logging(recipe.log.level);
  set_thread_count(static_cast<int>(recipe.threads));
  const StopRequests stop_requests;
  FinetuneRecord record(recipe.run_directory);
  TeacherSource teacher = open_teacher(recipe);
  const FinetunePlan plan = plan_finetune(options, teacher.settings, teacher.checkpoint);
  FinetuneResult result;
  result.run_directory = plan.student.run_directory;
  try {
    prepare(plan, teacher, record);
  } catch (const StoppedBySignal&) {
    result.interrupted = true;
    return result;
  }
  teacher.imported.reset();
  if (options.evaluate_only) {
    for (const FinetuneStage& stage : plan.stages) check_stage(stage, record);
  } else {
    result.interrupted = train_stages(plan, options, record, stop_requests, result);
  }
  if (result.interrupted || !options.only_stage.empty()) return result;
  result.recovery = measure_recovery(plan.student, plan.teacher, students_of(plan), stop_requests,
                                     [](const std::string& line) { log_info("{}", line); });
  result.interrupted = result.in_evaluation = !result.recovery;
  if (result.recovery) result.recovery_file = write_recovery(plan, options, *result.recovery);
  return result;
}

}  // namespace furlong
