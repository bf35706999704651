// Names of keys and values in configs, checkpoints and exported models of earlier versions. A config that uses one is
// read as if it had the present name, with a warning.
#include "trainers/settings/keys.h"

namespace furlong {

void add_renamed_keys(config::Table& t) {
  t.renamed("model.norm_placement", "model.norm_placement", {{"before", "pre"}, {"after", "post"}});
  t.renamed("model.attention.most_features", "model.attention.max_features");
  t.renamed("model.attention.directions", "model.attention.random_projection");
  t.renamed("data.store", "data.dataset");
  t.renamed("data.carry_state", "data.stateful");
  t.renamed("data.task_shortest", "data.task_min_symbols");
  t.renamed("objective.name", "objective.name", {{"matching", "pair_classification"}});
  t.renamed("objective.mask_token_share", "objective.mask_token_fraction");
  t.renamed("objective.random_token_share", "objective.random_token_fraction");
  t.renamed("teacher.loss", "teacher.loss", {{"transfer", "attention_transfer"}});
  t.renamed("teacher.layers", "teacher.layers", {{"in_turn", "layer_wise"}});
  t.renamed("teacher.share", "teacher.distillation_weight");
  t.renamed("trainer.recompute", "trainer.activation_checkpointing");
  t.renamed("checkpoint.background", "checkpoint.async");
  t.renamed("parallel.engine", "parallel.backend");
  t.renamed("parallel.shard_optimizer", "parallel.zero_stage", {{"false", "0"}, {"true", "1"}});
  t.renamed("parallel.sequence_processes", "parallel.context_parallel_size");
  t.renamed("finetune.stages", "finetune.stages", {{"transfer", "attention_transfer"}});
  t.renamed("finetune.lengths", "finetune.benchmark_lengths");
  for (const char* key :
       {"max_steps", "learning_rate", "warmup_steps", "sequence_length", "batch_size", "gradient_accumulation"})
    t.renamed(std::string("finetune.transfer.") + key, std::string("finetune.attention_transfer.") + key);
}

}  // namespace furlong
