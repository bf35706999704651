#include "trainers/settings/keys.h"

namespace furlong {

namespace {

// furlong finetune sets teacher.checkpoint and teacher.loss in each stage: there the keys count that any of its stages
// reads.
config::Key& with_teacher(config::Key& key, std::vector<std::string> losses) {
  return key.only_with("teacher.loss", std::move(losses)).or_in_lists({"finetune.stages"});
}

}  // namespace

void add_teacher_keys(config::Table& t, TeacherSettings& r) {
  t.section("teacher",
            "a second model, not trained, that the model being trained learns to agree with (furlong finetune sets it "
            "in its stages)");
  t.key("teacher.loss", &r.loss, "",
        "none: objective alone; transfer: each layer's attention learns to give what the teacher's gives, and nothing "
        "else is trained: the loss is the mean over layers of |x - teacher's|² / |teacher's|²; distillation: the model "
        "learns to predict what the teacher predicts")
      .one_of({"none", "transfer", "distillation"});
  t.key("teacher.checkpoint", &r.checkpoint, "", "checkpoint, or run directory (its best checkpoint), of the teacher")
      .required()
      .only_with("teacher.loss", {"transfer", "distillation"});
  with_teacher(t.key("teacher.layers", &r.layers, "",
                     "joint: all layers learn in every step; in_turn: one after another, each for an equal share of "
                     "the steps and with a whole schedule of its own")
                   .one_of({"joint", "in_turn"}),
               {"transfer"});
  with_teacher(t.key("teacher.input", &r.input, "",
                     "whose hidden states go into the model's attention: teacher: each layer learns by itself, in the "
                     "memory of one; student: each learns to make up for those below it, for which the teacher's "
                     "outputs of all layers are kept")
                   .one_of({"teacher", "student"}),
               {"transfer"});
  with_teacher(t.key("teacher.temperature", &r.temperature, "",
                     "logits of both are divided by it before they are compared; higher ones show more of what the "
                     "teacher thinks improbable")
                   .above(0)
                   .within(0, 1000),
               {"distillation"});
  with_teacher(t.key("teacher.share", &r.share, "", "weight of the distillation loss; the objective's own has the rest")
                   .above(0)
                   .within(0, 1),
               {"distillation"})
      .elsewhere({"alpha", "distillation_weight"});
  with_teacher(t.key("teacher.positions", &r.positions, "",
                     "where the two are compared: targets: at the targets of the objective; all: at every token that "
                     "is not padding")
                   .one_of({"targets", "all"}),
               {"distillation"});
}

namespace {

void add_stage_keys(config::Table& t, const std::string& stage, const std::string& what, StageSettings& s) {
  const std::string path = "finetune." + stage;
  t.section(path, what);
  const auto of_stage = [&](const char* name, config::Key::Target target, const char* unit,
                            const char* of_all) -> config::Key& {
    return t.key(path + "." + name, target, unit, std::string(of_all) + " in this stage")
        .zero_means(of_all)
        .only_with("finetune.source");
  };
  of_stage("max_steps", &s.max_steps, "steps", "trainer.max_steps").within(1, 1e12);
  of_stage("learning_rate", &s.learning_rate, "", "optimizer.learning_rate").above(0).below(100);
  of_stage("warmup_steps", &s.warmup_steps, "steps", "schedule.warmup_steps").within(1, 1e12);
  of_stage("sequence_length", &s.sequence_length, "tokens", "data.sequence_length").within(1, 1e9);
  of_stage("batch_size", &s.batch_size, "sequences", "data.batch_size").within(1, 1e6);
  of_stage("gradient_accumulation", &s.gradient_accumulation, "passes", "trainer.gradient_accumulation").within(1, 1e6);
}

}  // namespace

void add_finetune_keys(config::Table& t, FinetuneSettings& f) {
  t.section("finetune",
            "furlong finetune: from a model with softmax attention to one with the attention of this config, in "
            "stages; the shape of the model is the source's, and need not be repeated");
  t.key("finetune.source", &f.source, "",
        "the model to begin from, which is the teacher too: a directory of Hugging Face, a GGUF file, or a checkpoint "
        "or run directory of Furlong");
  t.key("finetune.student", &f.student, "",
        "where the first stage begins: a checkpoint that furlong convert made of the source, whose attention is then "
        "the student's; without one the source's weights under the attention of this config, with constants of its "
        "feature map measured on the training split")
      .only_with("finetune.source");
  t.key("finetune.stages", &f.stages, "",
        "which, in order: transfer (attention by attention), distillation (on the teacher's predictions), task (the "
        "objective itself)")
      .required()
      .only_with("finetune.source");
  t.key("finetune.evaluation_batches", &f.evaluation_batches, "batches",
        "batches of the test split (without one: of the validation split) that teacher and student are compared on")
      .within(1, 1e12)
      .zero_means("the whole split")
      .only_with("finetune.source");
  t.key("finetune.lengths", &f.lengths, "tokens",
        "lengths at which speed and memory of a forward pass are measured, of teacher and student, such as [512, 2048, "
        "8192]")
      .only_with("finetune.source");
  add_stage_keys(t, "transfer", "the stage in which each attention learns to give what the teacher's gives",
                 f.transfer);
  add_stage_keys(t, "distillation", "the stage in which the model learns to predict what the teacher predicts",
                 f.distillation);
  add_stage_keys(t, "task", "the stage in which the model learns the objective, without a teacher", f.task);
}

void add_optimizer_keys(config::Table& t, OptimizerSettings& o, ScheduleSettings& s) {
  t.section("optimizer", "how gradients change weights");
  t.key("optimizer.name", &o.name, "", "adamw: Adam with decoupled weight decay")
      .one_of({"adamw"})
      .elsewhere({"optim"});
  t.key("optimizer.learning_rate", &o.learning_rate, "", "highest learning rate, reached at the end of the warm-up")
      .above(0)
      .below(100)
      .elsewhere({"lr", "max_lr", "peak_lr"});
  t.key("optimizer.beta1", &o.beta1, "", "decay per step of the mean of gradients")
      .within(0, 1)
      .below(1)
      .elsewhere({"adam_beta1", "betas", "momentum"});
  t.key("optimizer.beta2", &o.beta2, "", "decay per step of the mean of squared gradients")
      .within(0, 1)
      .below(1)
      .elsewhere({"adam_beta2"});
  t.key("optimizer.epsilon", &o.epsilon, "", "added to the root of the mean squared gradient")
      .above(0)
      .below(1)
      .elsewhere({"adam_epsilon", "eps"});
  t.key("optimizer.weight_decay", &o.weight_decay, "",
        "share of a weight taken away per step, times the learning rate; not on norms and biases")
      .within(0, 100)
      .elsewhere({"wd"});
  t.key("optimizer.gradient_clip", &o.gradient_clip, "",
        "largest norm of the whole gradient; a longer one is scaled down to it")
      .above(0)
      .zero_means("off")
      .elsewhere({"max_grad_norm", "grad_clip", "clip_grad_norm"});
  t.key("optimizer.ema_decay", &o.ema_decay, "",
        "decay per step of a moving average of the weights, which validation then uses")
      .above(0)
      .below(1)
      .zero_means("off")
      .elsewhere({"ema"});
  t.key("optimizer.stochastic_rounding", &o.stochastic_rounding, "",
        "whether steps round the bfloat16 weights that layers compute with, which they make of the float32 ones, up or "
        "down at random and right in the mean, not to the nearest: steps smaller than bfloat16's spacing then reach "
        "the layers on average at once; another program that reads the checkpoint rounds to the nearest")
      .only_with("model.dtype", {"bfloat16"})
      .elsewhere({"bf16_stochastic_round"});

  t.section("schedule", "the learning rate over time; every schedule starts with a linear warm-up");
  t.key("schedule.name", &s.name, "", "shape after the warm-up")
      .one_of({"constant", "linear", "cosine", "inverse_square_root", "warmup_stable_decay"})
      .elsewhere({"lr_scheduler_type", "scheduler"});
  t.key("schedule.warmup_steps", &s.warmup_steps, "steps", "optimizer steps from zero to the highest learning rate")
      .within(0, 1e12)
      .elsewhere({"num_warmup_steps", "warmup_iters", "warmup"});
  t.key("schedule.final_fraction", &s.final_fraction, "", "learning rate at the end, as a share of the highest")
      .within(0, 1)
      .only_with("schedule.name", {"linear", "cosine", "warmup_stable_decay"})
      .elsewhere({"min_lr", "min_lr_ratio"});
  t.key("schedule.decay_steps", &s.decay_steps, "steps",
        "length of the fall: from the end of the warm-up (linear, cosine), or at the end of training "
        "(warmup_stable_decay)")
      .within(1, 1e12)
      .zero_means("all steps after the warm-up; for warmup_stable_decay a tenth of max_steps")
      .only_with("schedule.name", {"linear", "cosine", "warmup_stable_decay"})
      .elsewhere({"lr_decay_iters", "lr_decay_steps"});
}

void add_trainer_keys(config::Table& t, TrainerSettings& r) {
  t.section("trainer", "how long to train, and what else happens");
  t.key("trainer.max_steps", &r.max_steps, "steps", "optimizer steps of the whole run")
      .within(1, 1e12)
      .elsewhere({"steps", "max_iters", "num_train_steps", "total_steps"});
  t.key("trainer.validate_every", &r.validate_every, "steps", "optimizer steps between validations")
      .within(1, 1e12)
      .zero_means("only at the end")
      .elsewhere({"eval_interval", "eval_steps", "val_check_interval", "evaluate_every"});
  t.key("trainer.validation_batches", &r.validation_batches, "batches",
        "batches of the validation split in each validation")
      .within(1, 1e12)
      .zero_means("the whole split")
      .elsewhere({"eval_iters", "limit_val_batches"});
  t.key("trainer.gradient_accumulation", &r.gradient_accumulation, "passes",
        "forward and backward passes whose gradients make one optimizer step")
      .within(1, 1e6)
      .elsewhere({"gradient_accumulation_steps", "accumulate_grad_batches"});
  t.key("trainer.recompute", &r.recompute, "",
        "what backward computes again instead of keeping it, for the same bits; elementwise: norms and activations (a "
        "third less memory, a few percent more time); blocks: everything but the inputs of blocks (least memory, about "
        "a third more time)")
      .elsewhere({"gradient_checkpointing", "activation_checkpointing"});
  t.key(
      "trainer.cuda_graph", &r.cuda_graph, "",
      "on a GPU: record a training step once its shapes are steady and replay it, for the same bits and less waiting; "
      "without effect on the CPU, with data.carry_state, and for feature maps whose denominators are counted");
  t.key("trainer.early_stopping_patience", &r.early_stopping_patience, "validations",
        "stop after this many validations without a lower loss")
      .within(1, 1e12)
      .zero_means("off")
      .only_with("trainer.validate_every")
      .elsewhere({"patience"});
  t.key("trainer.skip_outlier_factor", &r.skip_outlier_factor, "",
        "skip a step whose gradient norm is above this many times the median of the last 64 steps, skipped ones "
        "included")
      .above(1)
      .zero_means("off");
  t.key("trainer.sample_tokens", &r.sample_tokens, "tokens", "length of a sample printed after training")
      .within(1, 1e9)
      .zero_means("none")
      .only_with("model.architecture", {"decoder"})
      .elsewhere({"max_new_tokens"});
  t.key("trainer.sample_prompt", &r.sample_prompt, "", "text that the sample continues")
      .only_with("trainer.sample_tokens")
      .elsewhere({"prompt"});
}

void add_output_keys(config::Table& t, CheckpointSettings& c, LogSettings& l, ParallelSettings& p) {
  t.section("checkpoint", "saving the run; a later start of the same command resumes from the newest whole checkpoint");
  t.key("checkpoint.every", &c.every, "steps", "optimizer steps between checkpoints")
      .within(1, 1e12)
      .zero_means("only at the end")
      .elsewhere({"save_steps", "save_every", "checkpoint_every", "save_interval"});
  t.key("checkpoint.keep_last", &c.keep_last, "checkpoints", "how many of the newest to keep")
      .within(1, 1e6)
      .elsewhere({"save_total_limit", "keep"});
  t.key("checkpoint.keep_best", &c.keep_best, "", "whether to keep the one with the lowest validation loss as well")
      .elsewhere({"load_best_model_at_end", "save_best"});
  t.key("checkpoint.background", &c.background, "",
        "whether training goes on while a checkpoint is written, from a copy in the host's memory; where that has no "
        "room for the copy, training waits, which is told")
      .elsewhere({"async_save", "save_async"});

  t.section("log", "what a run tells");
  t.key("log.every", &l.every, "steps", "optimizer steps between lines of metrics")
      .within(1, 1e12)
      .elsewhere({"logging_steps", "log_every", "log_interval"});
  t.key("log.level", &l.level, "", "least severe message that is shown")
      .one_of({"debug", "info", "warning", "error", "quiet"})
      .elsewhere({"log_level", "verbosity"});
  t.key("log.progress", &l.progress, "", "auto: a bar on a terminal, lines elsewhere")
      .one_of({"auto", "bar", "lines", "none"});

  t.section(
      "parallel",
      "training in several processes, each a share of data.batch_size; how many there are is the launcher's to say");
  t.key("parallel.engine", &p.engine, "",
        "what carries gradients between processes; auto: nccl between GPUs, gloo between CPUs; none: there is one "
        "process")
      .one_of({"auto", "gloo", "nccl", "none"})
      .elsewhere({"backend", "strategy", "ddp_backend"});
  t.key("parallel.timeout", &p.timeout, "seconds", "from the fault of one process to the end of all others")
      .within(1, 86400)
      .elsewhere({"ddp_timeout", "nccl_timeout"});
  t.key("parallel.bucket_megabytes", &p.bucket_megabytes, "MB",
        "gradients that are sent at once, while backward goes on with others")
      .within(1, 1e6)
      .elsewhere({"bucket_cap_mb", "ddp_bucket_cap_mb"});
  t.key("parallel.gradient_dtype", &p.gradient_dtype, "",
        "what gradients are sent as; bfloat16 halves the traffic and rounds them at each process")
      .one_of({"float32", "bfloat16"})
      .elsewhere({"fp16_compression", "grad_reduce_dtype"});
  t.key("parallel.shard_optimizer", &p.shard_optimizer, "",
        "whether each process keeps moments and averages of its share of the weights alone (ZeRO stage 1)")
      .elsewhere({"zero_stage", "zero", "sharded_ddp", "use_distributed_optimizer"});
  t.key("parallel.sequence_processes", &p.sequence_processes, "processes",
        "how many share each sequence, each a segment of its tokens; linear attention alone, whose state is all that "
        "they exchange")
      .within(1, 1e6)
      .elsewhere({"sequence_parallel_size", "context_parallel_size", "sp_size"});
}

}  // namespace furlong
