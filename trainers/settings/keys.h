#pragma once
// The table of configuration keys. Each function adds the keys of one or more sections, bound to the given settings.
#include "trainers/settings/settings.h"

namespace furlong {

void add_run_keys(config::Table& table, Settings& settings);
void add_model_keys(config::Table& table, layers::ModelConfig& model);
void add_attention_keys(config::Table& table, layers::AttentionConfig& attention);
/// `requires_dataset`: data.dataset must be set when data.task is none.
void add_data_keys(config::Table& table, DataSettings& data, bool requires_dataset);
void add_objective_keys(config::Table& table, ObjectiveSettings& objective);
void add_teacher_keys(config::Table& table, TeacherSettings& teacher);
void add_optimizer_keys(config::Table& table, OptimizerSettings& optimizer, ScheduleSettings& schedule);
void add_trainer_keys(config::Table& table, TrainerSettings& trainer);
void add_output_keys(config::Table& table, CheckpointSettings& checkpoint, LogSettings& log,
                     ParallelSettings& parallel);
void add_finetune_keys(config::Table& table, FinetuneSettings& finetune);
/// Names of keys in earlier versions. Call after all keys are added.
void add_renamed_keys(config::Table& table);

}  // namespace furlong
