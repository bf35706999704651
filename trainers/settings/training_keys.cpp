#include "trainers/settings/keys.h"

namespace furlong {

namespace {

// furlong finetune sets teacher.checkpoint and teacher.loss in each stage, so a key has an effect if any stage reads
// it.
config::Key& with_teacher(config::Key& key, std::vector<std::string> losses) {
  return key.only_with("teacher.loss", std::move(losses)).or_in_lists({"finetune.stages"});
}

}  // namespace

void add_teacher_keys(config::Table& t, TeacherSettings& r) {
  t.section("teacher", "a frozen teacher model for distillation (furlong finetune sets it in its stages)");
  t.key("teacher.loss", &r.loss, "",
        "none: no teacher; attention_transfer: trains only attention to match the teacher's outputs "
        "(mean over layers of ‖x - t‖² / ‖t‖², with the outputs x of the student and t of the teacher); distillation: "
        "match the teacher's predictions")
      .one_of({"none", "attention_transfer", "distillation"});
  t.key("teacher.checkpoint", &r.checkpoint, "", "checkpoint, or run directory (its best checkpoint), of the teacher")
      .required()
      .only_with("teacher.loss", {"attention_transfer", "distillation"});
  with_teacher(
      t.key("teacher.layers", &r.layers, "",
            "joint: train all layers in every step; layer_wise: train one layer after another, each for an equal "
            "share of the steps with its own full schedule")
          .one_of({"joint", "layer_wise"}),
      {"attention_transfer"});
  with_teacher(
      t.key("teacher.input", &r.input, "",
            "hidden states that the student's attention reads; teacher: the teacher's, one layer at a time in memory; "
            "student: its own, which lets a layer correct lower ones but stores the teacher's outputs of all layers")
          .one_of({"teacher", "student"}),
      {"attention_transfer"});
  with_teacher(t.key("teacher.temperature", &r.temperature, "",
                     "divides the logits of both models; higher values give improbable tokens more weight")
                   .above(0)
                   .within(0, 1000),
               {"distillation"});
  with_teacher(t.key("teacher.distillation_weight", &r.distillation_weight, "",
                     "weight of the distillation loss; the objective's weight is 1 minus this")
                   .above(0)
                   .within(0, 1),
               {"distillation"})
      .elsewhere({"alpha"});
  with_teacher(
      t.key("teacher.positions", &r.positions, "",
            "positions of the distillation loss; targets: the objective's targets; all: all tokens except padding")
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
        .only_with("finetune.source")
        .only_with("finetune.stages", {stage});
  };
  of_stage("max_steps", &s.max_steps, "steps", "trainer.max_steps").within(1, 1e12);
  of_stage("learning_rate", &s.learning_rate, "", "optimizer.learning_rate").above(0).below(100);
  of_stage("warmup_steps", &s.warmup_steps, "steps", "schedule.warmup_steps").within(1, 1e12);
  of_stage("sequence_length", &s.sequence_length, "tokens", "data.sequence_length").within(1, 1e9);
  of_stage("batch_size", &s.batch_size, "sequences", "data.batch_size").within(1, 1e6);
  of_stage("gradient_accumulation", &s.gradient_accumulation, "", "trainer.gradient_accumulation").within(1, 1e6);
}

}  // namespace

void add_finetune_keys(config::Table& t, FinetuneSettings& f) {
  t.section("finetune",
            "conversion of a softmax model to the attention of this config by furlong finetune, in stages; the "
            "model's shape comes from the source and need not be repeated");
  t.key("finetune.source", &f.source, "",
        "initial model, which is also the teacher: Hugging Face directory, GGUF file, or Furlong checkpoint or run "
        "directory");
  t.key(
       "finetune.student", &f.student, "",
       "initial student: a checkpoint that furlong convert made from the source, which also sets the attention; empty: "
       "the source's weights with this config's attention, feature-map constants measured on the training split")
      .only_with("finetune.source");
  t.key("finetune.stages", &f.stages, "",
        "stages, in order; attention_transfer: match the teacher's attention; distillation: match the teacher's "
        "predictions; task: the "
        "objective without a teacher")
      .required()
      .only_with("finetune.source");
  t.key("finetune.evaluation_batches", &f.evaluation_batches, "",
        "batches of the test split (of the validation split if there is no test split) that compare teacher and "
        "student: the first ones, or random ones of documents with labels")
      .within(1, 1e12)
      .zero_means("the whole split")
      .only_with("finetune.source");
  t.key(
       "finetune.benchmark_lengths", &f.benchmark_lengths, "tokens",
       "sequence lengths, integers from 1 to 999999999, at which teacher and student are timed in the final evaluation "
       "(speed and memory of a forward pass over one sequence), such as [512, 2048, 8192]; empty: no benchmark")
      .only_with("finetune.source");
  add_stage_keys(t, "attention_transfer", "the stage of attention transfer; 0 takes the value for all stages",
                 f.attention_transfer);
  add_stage_keys(t, "distillation", "the stage of distillation; 0 takes the value for all stages", f.distillation);
  add_stage_keys(t, "task",
                 "the stage of training on the objective, without a teacher; 0 takes the value for all stages", f.task);
}

void add_optimizer_keys(config::Table& t, OptimizerSettings& o, ScheduleSettings& s) {
  t.section("optimizer", "the optimizer and its hyperparameters");
  t.key("optimizer.name", &o.name, "", "adamw: Adam with decoupled weight decay")
      .one_of({"adamw"})
      .elsewhere({"optim"});
  t.key("optimizer.learning_rate", &o.learning_rate, "", "peak learning rate, reached at the end of the warm-up")
      .above(0)
      .below(100)
      .elsewhere({"lr", "max_lr", "peak_lr"});
  t.key("optimizer.beta1", &o.beta1, "", "decay rate of the first moment (mean of gradients)")
      .within(0, 1)
      .below(1)
      .elsewhere({"adam_beta1", "betas", "momentum"});
  t.key("optimizer.beta2", &o.beta2, "", "decay rate of the second moment (mean of squared gradients)")
      .within(0, 1)
      .below(1)
      .elsewhere({"adam_beta2"});
  t.key("optimizer.epsilon", &o.epsilon, "", "epsilon added to the square root of the second moment")
      .above(0)
      .below(1)
      .elsewhere({"adam_epsilon", "eps"});
  t.key(
       "optimizer.weight_decay", &o.weight_decay, "",
       "decoupled weight decay, multiplied by the learning rate; not applied to norms, biases, short convolutions, and "
       "hedgehog's maps and gates of windows")
      .within(0, 100)
      .elsewhere({"wd"});
  t.key("optimizer.gradient_clip", &o.gradient_clip, "",
        "maximum global gradient norm; larger gradients are scaled down to it")
      .above(0)
      .zero_means("off")
      .elsewhere({"max_grad_norm", "grad_clip", "clip_grad_norm"});
  t.key("optimizer.ema_decay", &o.ema_decay, "",
        "decay rate of the exponential moving average (EMA) of the weights, which validation uses")
      .above(0)
      .below(1)
      .zero_means("off")
      .elsewhere({"ema"});
  t.key("optimizer.stochastic_rounding", &o.stochastic_rounding, "",
        "round the bfloat16 copy of the float32 master weights stochastically instead of to nearest, so that small "
        "updates take effect on average; other programs that read the checkpoint round to nearest")
      .only_with("model.dtype", {"bfloat16"})
      .elsewhere({"bf16_stochastic_round"});

  t.section("schedule", "the learning-rate schedule; every schedule starts with a linear warm-up");
  t.key("schedule.name", &s.name, "", "shape of the learning rate after the warm-up")
      .one_of({"constant", "linear", "cosine", "inverse_square_root", "warmup_stable_decay"})
      .elsewhere({"lr_scheduler_type", "scheduler"});
  t.key("schedule.warmup_steps", &s.warmup_steps, "steps",
        "optimizer steps of linear warm-up from zero to the peak learning rate")
      .within(0, 1e12)
      .elsewhere({"num_warmup_steps", "warmup_iters", "warmup"});
  t.key("schedule.final_fraction", &s.final_fraction, "", "final learning rate as a fraction of the peak")
      .within(0, 1)
      .only_with("schedule.name", {"linear", "cosine", "warmup_stable_decay"})
      .elsewhere({"min_lr", "min_lr_ratio"});
  t.key("schedule.decay_steps", &s.decay_steps, "steps",
        "length of the decay; linear, cosine: from the end of the warm-up; warmup_stable_decay: at the end of training")
      .within(1, 1e12)
      .zero_means("all steps after the warm-up; a tenth of max_steps for warmup_stable_decay")
      .only_with("schedule.name", {"linear", "cosine", "warmup_stable_decay"})
      .elsewhere({"lr_decay_iters", "lr_decay_steps"});
}

void add_trainer_keys(config::Table& t, TrainerSettings& r) {
  // The host counts small denominators after each step (layers/attention/linear/linear_mechanism.cpp).
  const auto counted_maps =
      ops::feature_maps_where([](const auto& map) { return map.form == ops::FeatureForm::values; });
  t.section("trainer", "the training loop: length, validation, memory and samples");
  t.key("trainer.max_steps", &r.max_steps, "steps", "total number of optimizer steps")
      .within(1, 1e12)
      .elsewhere({"steps", "max_iters", "num_train_steps", "total_steps", "epochs", "num_epochs", "max_epochs",
                  "num_train_epochs"});
  t.key("trainer.validate_every", &r.validate_every, "steps", "optimizer steps between validations")
      .within(1, 1e12)
      .zero_means("only at the end")
      .elsewhere({"eval_interval", "eval_steps", "val_check_interval", "evaluate_every"});
  t.key("trainer.validation_batches", &r.validation_batches, "",
        "batches of the validation split per validation: the first ones, or random ones of documents with labels")
      .within(1, 1e12)
      .zero_means("the whole split")
      .elsewhere({"eval_iters", "limit_val_batches"});
  t.key("trainer.gradient_accumulation", &r.gradient_accumulation, "", "forward and backward passes per optimizer step")
      .within(1, 1e6)
      .elsewhere({"gradient_accumulation_steps", "accumulate_grad_batches"});
  t.key("trainer.activation_checkpointing", &r.activation_checkpointing, "",
        "activation checkpointing, with identical results (with model.shared_layers and measured constants, up to "
        "rounding); none: store all activations; elementwise: recompute norms "
        "and activation functions (a third less memory, a few percent slower); blocks: store only block inputs (least "
        "memory, about a third slower)")
      .elsewhere({"gradient_checkpointing"});
  t.key("trainer.cuda_graph", &r.cuda_graph, "",
        fmt::format("on a GPU: capture the training step as CUDA graphs and replay it, with identical results and "
                    "less launch overhead; no effect on the CPU, with data.stateful, and, unless "
                    "model.attention.normalizer is none, with model.rotary_placement: numerator or with feature "
                    "maps {}",
                    config::join(counted_maps, ", ")));
  t.key("trainer.early_stopping_patience", &r.early_stopping_patience, "",
        "stop after this many validations in a row without a new lowest loss; layer-wise attention transfer does not "
        "stop early")
      .within(1, 1e12)
      .zero_means("off")
      .only_with("trainer.validate_every")
      .elsewhere({"patience"});
  t.key("trainer.skip_outlier_factor", &r.skip_outlier_factor, "",
        "skip a step whose gradient norm exceeds this multiple of the median of the last 64 steps (skipped steps "
        "included); the first 16 steps, layer-wise of each layer, are never skipped")
      .above(1)
      .zero_means("off");
  t.key("trainer.sample_tokens", &r.sample_tokens, "",
        "tokens to generate after furlong train; furlong finetune and furlong sweep print no sample")
      .within(1, 1e9)
      .zero_means("no sample")
      .only_with("model.architecture", {"decoder"})
      .elsewhere({"max_new_tokens"});
  t.key("trainer.sample_prompt", &r.sample_prompt, "", "prompt of the generated sample")
      .only_with("trainer.sample_tokens")
      .elsewhere({"prompt"});
}

void add_output_keys(config::Table& t, CheckpointSettings& c, LogSettings& l, ParallelSettings& p) {
  t.section("checkpoint",
            "checkpoints of the run; the same command, started again, resumes from the newest complete checkpoint");
  t.key("checkpoint.every", &c.every, "steps", "optimizer steps between checkpoints")
      .within(1, 1e12)
      .zero_means("only at the end")
      .elsewhere({"save_steps", "save_every", "checkpoint_every", "save_interval"});
  t.key("checkpoint.keep_last", &c.keep_last, "", "number of newest checkpoints to keep")
      .within(1, 1e6)
      .elsewhere({"save_total_limit", "keep"});
  t.key("checkpoint.keep_best", &c.keep_best, "", "also keep the checkpoint with the lowest validation loss")
      .elsewhere({"load_best_model_at_end", "save_best"});
  t.key("checkpoint.async", &c.async, "",
        "write checkpoints in the background from a copy in host memory; training waits, with a log message, if the "
        "copy does not fit")
      .elsewhere({"async_save", "save_async"});

  t.section("log", "logging");
  t.key("log.every", &l.every, "steps", "optimizer steps between lines of metrics")
      .within(1, 1e12)
      .elsewhere({"logging_steps", "log_every", "log_interval"});
  t.key("log.level", &l.level, "", "lowest severity of messages that are shown")
      .one_of({"debug", "info", "warning", "error", "quiet"})
      .elsewhere({"log_level", "verbosity"});
  t.key("log.progress", &l.progress, "",
        "auto: a progress bar on a terminal, lines otherwise; bar: a progress bar; lines: one line per report; none: "
        "no progress")
      .one_of({"auto", "bar", "lines", "none"});

  t.section("parallel", "training on several ranks, which share data.batch_size; the launcher sets the world size");
  t.key("parallel.backend", &p.backend, "",
        "communication backend; auto: nccl between GPUs, gloo between CPUs; gloo: CPUs; nccl: GPUs; none: a single "
        "process")
      .one_of({"auto", "gloo", "nccl", "none"})
      .elsewhere({"strategy", "ddp_backend"});
  t.key("parallel.timeout", &p.timeout, "seconds",
        "time limit from the failure of one rank to the end of all others, which exit with an error; a rank that sends "
        "no heartbeat for two thirds of it counts as failed; it does not limit collectives: a slow rank is waited for")
      .within(1, 86400)
      .elsewhere({"ddp_timeout", "nccl_timeout"});
  t.key("parallel.bucket_megabytes", &p.bucket_megabytes, "MB",
        "size of gradient buckets, which are reduced while the backward pass continues")
      .within(1, 1e6)
      .elsewhere({"bucket_cap_mb", "ddp_bucket_cap_mb"});
  t.key("parallel.gradient_dtype", &p.gradient_dtype, "",
        "data type of communicated gradients; float32: exact; bfloat16: half the traffic, rounded at each rank")
      .one_of({"float32", "bfloat16"})
      .elsewhere({"fp16_compression", "grad_reduce_dtype"});
  t.key("parallel.zero_stage", &p.zero_stage, "",
        "0: every rank stores the whole optimizer state; 1: ZeRO stage 1, each rank stores moments and EMA for its "
        "share of the weights")
      .within(0, 1)
      .elsewhere({"zero", "sharded_ddp", "use_distributed_optimizer"});
  t.key("parallel.context_parallel_size", &p.context_parallel_size, "",
        "ranks that share each sequence, one segment each (context parallelism); linear attention only, whose "
        "recurrent state is exchanged")
      .within(1, 1e6)
      .elsewhere({"sequence_parallel_size", "sp_size"});
}

}  // namespace furlong
