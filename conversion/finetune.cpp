#include "conversion/finetune.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "communication/launch/launch_environment.h"
#include "conversion/approximation.h"
#include "conversion/fingerprint.h"
#include "conversion/import_model.h"
#include "conversion/merge_adapters.h"
#include "conversion/read_parameters.h"
#include "conversion/recovery.h"
#include "conversion/recovery_file.h"
#include "framework/config/table.h"
#include "framework/core/file_error.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/weights.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/parallel/agreement.h"
#include "trainers/train/recording/metrics.h"
#include "trainers/train/run/run_directory.h"
#include "trainers/train/signals.h"
#include "trainers/train/train.h"
#include "trainers/train/trainer.h"
#include "trainers/train/validation.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// Throws UserError if a launcher started several processes: each would write the same files.
void require_single_process() {
  const LaunchEnvironment launch = discover_launch();
  if (launch.world_size == 1) return;
  throw UserError(
      "furlong finetune: the launcher ({}) started {} processes; expected one, so start one, or use furlong train "
      "without a teacher on several ranks, with model.weights set to a checkpoint of finetune",
      launch.launcher, launch.world_size);
}

/// Reads the config, before the teacher is known.
Settings recipe_of(const FinetuneOptions& options) {
  const LoadedSettings read = read_settings_file(options.config, options.overrides, Settings());
  if (read.settings.finetune.source.empty())
    throw UserError(
        "{}: finetune.source is missing; expected a Hugging Face directory, a GGUF file, or a Furlong checkpoint or "
        "run directory, or use furlong train to start without a model",
        options.config.string());
  check_finetune(read);
  log_warnings(read);
  Settings settings = read.settings;
  if (!options.run_directory.empty()) settings.run_directory = options.run_directory;
  return settings;
}

/// The teacher: a Furlong checkpoint, or an imported model that becomes one after its settings are checked.
struct TeacherSource {
  fs::path checkpoint;
  Settings settings;
  std::optional<SourceModel> imported;  // set while the checkpoint is not written yet
};

Settings settings_of(const fs::path& checkpoint) {
  return from_checkpoint_text(CheckpointReader::open(checkpoint).text("config"), checkpoint.string() + " (config)")
      .settings;
}

TeacherSource open_teacher(const Settings& recipe) {
  const fs::path& source = recipe.finetune.source;
  if (!fs::exists(source))
    throw UserError(
        "finetune.source: {} does not exist; expected a Hugging Face directory, a GGUF file, or a Furlong checkpoint "
        "or run directory",
        source.string());
  if (!is_foreign_model(source)) {
    const fs::path own = checkpoint_of(source);
    return {own, settings_of(own), std::nullopt};
  }
  const fs::path imported = recipe.run_directory / "teacher.h5";
  if (fs::exists(imported)) {
    log_info("using the teacher imported earlier: {}", imported.string());
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

/// Measures the student's constants on the first tokens of the training split, with the teacher's queries and keys.
void measure_constants(const Settings& settings, SourceModel& teacher, Model& student) {
  constexpr std::int64_t enough_tokens = 16384;  // gives means a standard error of about 1/100 of a standard deviation
  Settings& theirs = teacher.model.settings;
  if (!has_constants(settings)) return;
  if (settings.model.rotary_placement != theirs.model.rotary_placement ||
      settings.model.query_key_norm != theirs.model.query_key_norm) {
    log_info(
        "the student's queries and keys differ from the teacher's: training finds the constants of its feature map");
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
  calibrate(observed, student, std::vector<bool>(static_cast<std::size_t>(settings.model.n_layers), true));
  log_info("measured the constants of {} on {} tokens", settings.model.attention.feature_map, observed.tokens());
}

/// Merges the teacher's adapters, and copies the weights that they change to the student.
void take_adapters(Model& teacher, Model& student) {
  for (const std::string& name : merge_adapters(teacher)) {
    const std::span<const float> values = values_of(teacher.store->find(name));
    std::copy(values.begin(), values.end(), values_of(student.store->find(name)).begin());
  }
  student.store->refresh_compute_values(student.stream);
}

/// Writes the student before its first step: the teacher's weights with the new attention.
void write_student(const FinetunePlan& plan, TeacherSource& teacher, FinetuneRecord& record) {
  if (!teacher.imported) teacher.imported = open_source_model(teacher.checkpoint);
  Settings settings = plan.student;
  settings.finetune = {};
  settings.teacher = {};
  const std::unique_ptr<Dataset> data = open_data(settings.data);
  Model student = make_empty_model(settings, data->vocabulary(), Device{}, DType::float32, all_frozen);
  const WeightsReport report =
      initialize_from(CheckpointReader::open(teacher.checkpoint), student, /*takes_adapters=*/false);
  take_adapters(teacher.imported->model, student);
  if (report.positions_before > 0)
    log_warn("{}: has {} learned positions; position p beyond them is initialized as p modulo that number",
             teacher.checkpoint.string(), report.positions_before);
  measure_constants(settings, *teacher.imported, student);
  write_model(student, teacher.imported->origin, plan.start_checkpoint);
  record.data_fingerprint = data_fingerprint(*data);
  record.write();
  log_info("wrote the student before training: {}", plan.start_checkpoint.string());
}

/// Throws UserError if the data's vocabulary differs from the teacher's, or its labels if both predict labels, or if
/// the measurement after the stages would fail (`measures`). Runs before anything is written.
void check_data(const FinetunePlan& plan, const TeacherSource& teacher, bool measures) {
  const Settings& settings = plan.student;
  const std::unique_ptr<Dataset> dataset = open_data(settings.data);
  const Vocabulary data = model_vocabulary(settings, dataset->vocabulary());
  const Vocabulary theirs = teacher.imported
                                ? teacher.imported->model.vocabulary
                                : Vocabulary::from_json(CheckpointReader::open(teacher.checkpoint).text("vocabulary"),
                                                        teacher.checkpoint.string());
  if (data.with_labels({}) == theirs.with_labels({})) {
    const bool both = settings.objective.learns_labels() && teacher.settings.objective.learns_labels();
    if (!both || data.labels() == theirs.labels()) {
      if (measures)
        check_targets(settings, data, *dataset, measured_split(*dataset), settings.finetune.evaluation_batches);
      return;
    }
    throw UserError(
        "data.dataset: {} has the labels {}, but the model in {} predicts {}; prepare the data with --labels {}",
        settings.data.mixture().front().dataset.string(), config::join(data.labels(), ","),
        settings.finetune.source.string(), config::join(theirs.labels(), ","), config::join(theirs.labels(), ","));
  }
  throw UserError(
      "data.dataset: the vocabulary of {} ({}, {} tokens) differs from that of the model in {} ({}, {} tokens); "
      "expected the same one, so prepare the data with furlong prepare --tokenizer {}",
      settings.data.mixture().front().dataset.string(), data.description(), data.size(),
      settings.finetune.source.string(), theirs.description(), theirs.size(), settings.finetune.source.string());
}

/// Returns true if a stage has a checkpoint.
bool has_started(const FinetuneStage& stage) {
  const fs::path checkpoints = stage.settings.settings.run_directory / "checkpoints";
  return fs::exists(checkpoints) && !fs::is_empty(checkpoints);
}

/// Describes how the data differ from those that the student's constants were measured on.
std::vector<std::string> changed_data(const Settings& before, const FinetunePlan& plan, const FinetuneRecord& record) {
  const DataSettings &then = before.data, &now = plan.student.data;
  std::vector<std::string> changed = changed_since(before, plan.student, {"data"});
  const bool is_same = record.data_fingerprint.empty()  // of an earlier version
                           ? then.dataset == now.dataset && then.sources == now.sources
                           : record.data_fingerprint == data_fingerprint(*open_data(now));
  if (!is_same) changed.emplace_back("the content of data.dataset or data.sources");
  return changed;
}

/// Writes the student if it is missing, or if it was made with another config and no stage has started.
void prepare_student(const FinetunePlan& plan, TeacherSource& teacher, FinetuneRecord& record) {
  if (!fs::exists(plan.start_checkpoint)) return write_student(plan, teacher, record);
  const Settings before = settings_of(plan.start_checkpoint);
  std::vector<std::string> changed = changed_since(before, plan.student, {"seed", "objective"});
  if (has_constants(plan.student)) {
    for (std::string& change : changed_data(before, plan, record)) changed.push_back(std::move(change));
  }
  if (const auto difference = model_difference(before, plan.student)) changed.push_back(*difference);
  if (changed.empty()) return;
  if (std::none_of(plan.stages.begin(), plan.stages.end(), has_started)) return write_student(plan, teacher, record);
  throw UserError("{}: this run was started with different settings: {}; choose another --run-dir, or remove this run",
                  plan.start_checkpoint.string(), config::join(changed, ", "));
}

/// Warns if a student made by furlong convert differs from its source in more than its attention.
void check_converted(const FinetunePlan& plan) {
  const CheckpointReader student = CheckpointReader::open(plan.start_checkpoint),
                         teacher = CheckpointReader::open(plan.teacher);
  std::vector<char> ours, theirs;
  for (const TensorInfo& tensor : teacher.tensors("parameters/")) {
    if (tensor.name.find(".attention.") != std::string::npos || !student.has(tensor.name)) continue;
    if (student.info(tensor.name).bytes != tensor.bytes) continue;  // more positions, or another output layer
    ours.resize(tensor.bytes);
    theirs.resize(tensor.bytes);
    student.read(tensor.name, ours.data(), ours.size());
    teacher.read(tensor.name, theirs.data(), theirs.size());
    if (ours == theirs) continue;
    log_warn("finetune.student: {} is not a plain conversion of {}: {} differs", plan.start_checkpoint.string(),
             plan.student.finetune.source.string(), tensor.name.substr(std::string_view("parameters/").size()));
    return;
  }
}

/// Writes the files that the stages start from, if they are missing.
/// `lock`: of the run directory; empty if it did not exist. `measures`: the models are measured after the stages.
void prepare(const FinetunePlan& plan, TeacherSource& teacher, FinetuneRecord& record, std::optional<RunLock>& lock,
             bool measures) {
  const fs::path& directory = plan.student.run_directory;
  const fs::path& source = plan.student.finetune.source;
  const std::string fingerprint = fingerprint_of_source(source);
  const auto check_record = [&] {
    check_source(record, source, fingerprint);
    const bool holds_something = fs::exists(directory / "teacher.h5") || fs::exists(directory / "student.h5") ||
                                 std::any_of(plan.stages.begin(), plan.stages.end(), has_started);
    if (record.source_fingerprint.empty() && holds_something)
      throw UserError(
          "{}: holds a run without a finetune.json, so its source is unknown; choose another --run-dir, or remove this "
          "run",
          directory.string());
  };
  if (lock) check_record();
  check_data(plan, teacher, measures);
  if (!lock) {
    std::error_code failure;
    fs::create_directories(directory, failure);
    if (failure) throw_file_error(directory, "create the directory", failure.value());
    lock.emplace(directory);
    record = FinetuneRecord(directory);  // another process may have begun the run meanwhile
    check_record();
  }
  if (record.source_fingerprint.empty()) {
    record.source = source.string();
    record.source_fingerprint = fingerprint;
    record.write();
  }
  write_teacher(teacher);
  if (plan.has_given_student) {
    check_converted(plan);
  } else {
    prepare_student(plan, teacher, record);
  }
}

/// Returns the newest step count of a stage and its best checkpoint; nothing without a checkpoint.
std::optional<Candidate> stage_candidate(const FinetuneStage& stage) {
  const fs::path& directory = stage.settings.settings.run_directory;
  if (!fs::exists(directory / "checkpoints")) return std::nullopt;
  const std::optional<fs::path> newest = newest_complete_checkpoint(directory / "checkpoints");
  if (!newest) return std::nullopt;
  const CheckpointReader checkpoint = CheckpointReader::open(*newest);
  const std::int64_t steps = checkpoint.integer("step");
  return Candidate{stage.name, checkpoint_of(directory), steps, checkpoint.integer("tokens"),
                   training_seconds(directory / "metrics.jsonl", steps)};
}

bool is_finished(const FinetuneStage& stage) { return has_finished(stage.settings.settings); }

void check_options(const FinetuneOptions& options, const Settings& recipe) {
  const auto& stages = recipe.finetune.stages;
  if (options.only_stage.empty()) return;
  if (options.evaluate_only)
    throw UserError("--stage {} conflicts with --evaluate-only, which trains nothing; remove one of the two",
                    options.only_stage);
  if (std::find(stages.begin(), stages.end(), options.only_stage) == stages.end())
    throw UserError("--stage: found {}; expected one of finetune.stages: {}{}", options.only_stage,
                    config::join(stages, ", "),
                    options.only_stage == "transfer" ? "; transfer was renamed: use attention_transfer" : "");
}

/// Throws UserError if the stage before the requested one has no checkpoint. Runs before a teacher is imported.
void check_preceding_stage(const FinetuneOptions& options, const Settings& recipe) {
  const auto& stages = recipe.finetune.stages;
  if (options.only_stage.empty() || options.only_stage == stages.front()) return;
  const auto index =
      static_cast<std::size_t>(std::find(stages.begin(), stages.end(), options.only_stage) - stages.begin()) - 1;
  const fs::path before = stage_directory(recipe.run_directory, index, stages[index]);
  if (fs::exists(before / "checkpoints") && newest_complete_checkpoint(before / "checkpoints")) return;
  throw UserError("--stage {}: starts from stage {}, which has no checkpoint in {}; run that stage first",
                  options.only_stage, stages[index], before.string());
}

/// Throws UserError if an existing stage was trained with another model or from another checkpoint. Warns about other
/// changed settings; `resumes`: train() does that.
void check_stage(const FinetuneStage& stage, const FinetuneRecord& record, bool resumes) {
  if (!stage_candidate(stage)) return;
  const Settings& settings = stage.settings.settings;
  const std::string directory = settings.run_directory.string();
  const CheckpointReader newest = CheckpointReader::open(newest_checkpoint_of(settings.run_directory));
  const Settings before = from_checkpoint_text(newest.text("config"), newest.path().string() + " (config)").settings;
  if (const auto difference = model_difference(before, settings))
    throw UserError("{}: this stage was trained with another model: {}; choose another --run-dir, or remove this run",
                    directory, *difference);
  const auto start = record.start_fingerprints.find(settings.run_directory.filename().string());
  if (start == record.start_fingerprints.end() ||
      start->second != fingerprint_of_checkpoint(checkpoint_of(settings.model.weights)))
    throw UserError("{}: this stage did not start from the present content of {}; remove {} to train it again",
                    directory, settings.model.weights.string(), directory);
  if (resumes) return;
  auto changed =
      changed_since(before, settings, {"seed", "data", "objective", "teacher", "optimizer", "schedule", "trainer"});
  if (was_trained_on_other_data(newest, *open_data(settings.data)).value_or(false))
    changed.emplace_back("the content of data.dataset or data.sources");
  if (!changed.empty())
    log_warn("stage {} was trained with other settings: {}; remove {} to train it again", stage.name,
             config::join(changed, ", "), directory);
}

/// Throws UserError if stages after stage `index` have started: they start from its result, which training replaces.
void refuse_later_stages(const FinetunePlan& plan, std::size_t index) {
  std::vector<std::string> names, directories;
  for (std::size_t i = index + 1; i < plan.stages.size(); ++i) {
    if (!has_started(plan.stages[i])) continue;
    names.push_back(plan.stages[i].name);
    directories.push_back(plan.stages[i].settings.settings.run_directory.string());
  }
  if (names.empty()) return;
  throw UserError(
      "{}: stage {} is not finished, but {} started from its present result; to train it further, first remove {}",
      plan.stages[index].settings.settings.run_directory.string(), plan.stages[index].name,
      config::join(names, " and "), config::join(directories, " and "));
}

/// Trains the unfinished stages. Returns true if a signal stopped the training.
bool train_stages(const FinetunePlan& plan, const FinetuneOptions& options, FinetuneRecord& record,
                  const StopRequests& stop_requests, FinetuneResult& result) {
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const FinetuneStage& stage = plan.stages[i];
    if (stop_requests.received()) return true;
    if (!options.only_stage.empty() && stage.name != options.only_stage) continue;
    result.stage = stage.name;
    const bool is_trained = is_finished(stage);
    check_stage(stage, record, !is_trained);
    if (is_trained) {
      log_info("stage {} is finished: {}", stage.name, stage.settings.settings.run_directory.string());
      continue;
    }
    refuse_later_stages(plan, i);
    log_info("starting stage {} ({} of {})", stage.name, i + 1, plan.stages.size());
    record.start_fingerprints[stage.settings.settings.run_directory.filename().string()] =
        fingerprint_of_checkpoint(checkpoint_of(stage.settings.settings.model.weights));
    record.write();
    TrainOptions continues;
    continues.continues_samples = true;  // the samples of the stage before are known
    if (train(stage.settings, continues).interrupted) return true;
  }
  return stop_requests.received();
}

std::vector<Candidate> students_of(const FinetunePlan& plan) {
  std::vector<Candidate> students{{"before", plan.start_checkpoint, 0, 0, 0}};
  for (const FinetuneStage& stage : plan.stages)
    if (const auto state = stage_candidate(stage)) students.push_back(*state);
  return students;
}

}  // namespace

FinetuneResult finetune(const FinetuneOptions& options) {
  require_single_process();
  const Settings recipe = recipe_of(options);
  check_options(options, recipe);
  check_preceding_stage(options, recipe);
  configure_logging(recipe.log.level);
  set_thread_count(static_cast<int>(recipe.threads));
  const StopRequests stop_requests;
  std::optional<RunLock> lock;  // before the files are read that a second process would write
  if (fs::is_directory(recipe.run_directory)) lock.emplace(recipe.run_directory);
  FinetuneRecord record(recipe.run_directory);
  TeacherSource teacher = open_teacher(recipe);
  const FinetunePlan plan = plan_finetune(options, teacher.settings, teacher.checkpoint);
  FinetuneResult result;
  result.run_directory = plan.student.run_directory;
  try {
    prepare(plan, teacher, record, lock, options.only_stage.empty());
  } catch (const StoppedBySignal&) {
    result.interrupted = true;
    return result;
  }
  teacher.imported.reset();
  if (options.evaluate_only) {
    for (const FinetuneStage& stage : plan.stages) check_stage(stage, record, false);
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
