#pragma once
// The table of configuration keys. Each function adds the keys of one or more sections, bound to the given settings.
#include "trainers/settings/settings.h"

namespace furlong {

void add_run_keys(config::Table& t, Settings& s);
void add_model_keys(config::Table& t, layers::ModelConfig& m);
void add_attention_keys(config::Table& t, layers::AttentionConfig& a);
/// `requires_store`: data.dataset must be set when data.task is none.
void add_data_keys(config::Table& t, DataSettings& d, bool requires_store);
void add_objective_keys(config::Table& t, ObjectiveSettings& o);
void add_teacher_keys(config::Table& t, TeacherSettings& r);
void add_optimizer_keys(config::Table& t, OptimizerSettings& o, ScheduleSettings& s);
void add_trainer_keys(config::Table& t, TrainerSettings& r);
void add_output_keys(config::Table& t, CheckpointSettings& c, LogSettings& l, ParallelSettings& p);
void add_finetune_keys(config::Table& t, FinetuneSettings& f);
/// Names of keys in earlier versions. Call after all keys are added.
void add_renamed_keys(config::Table& t);

}  // namespace furlong
