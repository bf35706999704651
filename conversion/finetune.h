#pragma once
// From a model with softmax attention to one with another attention, in stages: furlong finetune.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "conversion/recovery.h"
#include "trainers/settings/settings.h"

namespace furlong {

struct FinetuneOptions {
  std::filesystem::path config;
  std::vector<std::string> overrides;
  std::filesystem::path run_directory;  ///< empty: as the config says
  std::string only_stage;               ///< empty: all of them, and then the evaluation
  bool evaluate_only = false;           ///< no training: what there is of each stage
};

struct FinetuneResult {
  bool interrupted = false;    ///< a signal asked it to stop; the checkpoint of the stage is written
  bool in_evaluation = false;  ///< interrupted behind the stages: nothing was to be saved
  std::string stage;           ///< the last one that ran; empty: none did
  std::filesystem::path run_directory;
  std::optional<Recovery> recovery;     ///< none where it stopped before, or for one stage alone
  std::filesystem::path recovery_file;  ///< where that is written
};

/// A stage as an ordinary run: what furlong train would be given.
struct FinetuneStage {
  std::string name;
  LoadedSettings settings;  ///< run_directory: RUN/1_transfer and so on
};

struct FinetunePlan {
  std::filesystem::path teacher;  ///< a checkpoint
  std::filesystem::path
      beginning;           ///< the checkpoint that the first stage begins from: finetune.student's, or RUN/student.h5
  bool converted = false;  ///< the former
  Settings student;        ///< of the evaluation: data and lengths for all stages
  std::vector<FinetuneStage> stages;
};

/// RUN/1_transfer and so on.
std::filesystem::path stage_directory(const std::filesystem::path& run, std::size_t index, const std::string& stage);

/// What the config means for a teacher of its own: the teacher's `model` and objective with the config's keys on top.
/// Throws UserError with both values where the config sets a key of the model's shape otherwise than the teacher has
/// it; with finetune.student, otherwise than that has it, its attention included.
FinetunePlan plan_finetune(const FinetuneOptions& options, const Settings& teachers,
                           const std::filesystem::path& teacher);
FinetunePlan plan_finetune(const FinetuneOptions& options, const std::filesystem::path& teacher);

/// Imports finetune.source where it is another program's (RUN/teacher.h5), makes the student with its constants
/// measured (RUN/student.h5), trains stage after stage, each from the weights of the one before (its best checkpoint),
/// and measures what was recovered. Started again it goes on where it stopped; a stage that has ended is left as it is.
/// What the run and its stages were made from is in RUN/finetune.json: another source, student or stage before is
/// refused. Throws what train() throws, and UserError for sources and configs that do not fit.
FinetuneResult finetune(const FinetuneOptions& options);

}  // namespace furlong
