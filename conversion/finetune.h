#pragma once
// furlong finetune: replaces a softmax model's attention and trains it in stages.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "conversion/recovery.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Options of finetune(), named like those of furlong finetune.
struct FinetuneOptions {
  std::filesystem::path config;
  std::vector<std::string> overrides;
  std::filesystem::path run_directory;  ///< empty: from the config
  std::string only_stage;               ///< run this stage alone; empty: all stages, then the evaluation
  bool evaluate_only = false;           ///< evaluate the existing stages without training
};

/// What one call of finetune() did.
struct FinetuneResult {
  bool interrupted = false;    ///< stopped by a signal, after writing the stage's checkpoint
  bool in_evaluation = false;  ///< interrupted after the stages: there was nothing to save
  std::string stage;           ///< the last stage that ran; empty if none did
  std::filesystem::path run_directory;
  std::optional<Recovery> recovery;     ///< empty if interrupted, or if one stage alone ran
  std::filesystem::path recovery_file;  ///< the file that holds `recovery`
};

/// One stage, as an ordinary run of furlong train.
struct FinetuneStage {
  std::string name;
  LoadedSettings settings;  ///< its run_directory is RUN/1_attention_transfer and so on
};

/// The stages of a run and their settings.
struct FinetunePlan {
  std::filesystem::path teacher;  ///< a checkpoint
  /// The checkpoint that the first stage starts from: finetune.student, or RUN/student.h5.
  std::filesystem::path start_checkpoint;
  bool has_given_student = false;  ///< true if `start_checkpoint` is finetune.student
  Settings student;                ///< settings of the evaluation, with the data and lengths of all stages
  std::vector<FinetuneStage> stages;
};

/// Returns the run directory of a stage: RUN/1_attention_transfer and so on.
std::filesystem::path stage_directory(const std::filesystem::path& run, std::size_t index, const std::string& stage);

/// Reads the config with the teacher's `model` and objective as defaults, and returns the plan. Throws UserError if a
/// shape key differs from the teacher's; reports both values. With finetune.student, the keys must match that model,
/// including its attention.
FinetunePlan plan_finetune(const FinetuneOptions& options, const Settings& teacher_settings,
                           const std::filesystem::path& teacher);
/// Reads the teacher's settings from its checkpoint and returns the plan.
FinetunePlan plan_finetune(const FinetuneOptions& options, const std::filesystem::path& teacher);

/// Runs furlong finetune. Blocks until all stages are done, or a signal stops it:
///  - imports finetune.source to RUN/teacher.h5 if it is a model of another program;
///  - writes the student with measured constants to RUN/student.h5;
///  - trains the stages in order, each from the best checkpoint of the stage before it;
///  - measures the recovery.
/// A second call resumes where the run stopped and skips finished stages. RUN/finetune.json records what the run and
/// its stages were made from; another source, student or preceding stage is rejected. Throws UserError for sources and
/// configs that do not fit, and everything that train() throws.
FinetuneResult finetune(const FinetuneOptions& options);

}  // namespace furlong
