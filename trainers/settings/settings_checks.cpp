#include <algorithm>

#include "datasets/tasks/recall_task.h"
#include "trainers/settings/settings_checker.h"

namespace furlong {

std::vector<std::string> SettingsChecker::run() const {
  stage_names();  // before keys of the stages, which have no effect without them
  std::vector<std::string> warnings = table_.check_effects(default_table_, origins_);
  heads();
  rotary_scaling();
  embeddings();
  token_dropout();
  attention();
  objective();
  task();
  mixture();
  documents();
  packing();
  stateful();
  lengths();
  steps();
  teacher();
  output_layer();
  finetune();
  const auto& model = copy_.model;
  if (model.adapter.rank > 0 && model.weights.empty() && copy_.finetune.source.empty())
    warnings.push_back(citing({"model.lora_rank"})("model.lora_rank") +
                       " adapts frozen weights, which are random here; set model.weights to the checkpoint to adapt");
  return warnings;
}

SettingsChecker::Citation SettingsChecker::citing(std::initializer_list<const char*> keys) const {
  for (const char* key : keys)
    if (const auto origin = origins_.find(key); origin != origins_.end()) return {*this, origin->second};
  return {*this, {}};
}

void SettingsChecker::objective() const {
  const auto& objective = copy_.objective;
  const bool encoder = copy_.model.architecture == layers::Architecture::encoder;
  if (encoder != (objective.name != Objective::next_token)) {
    const auto cite = citing({"objective.name", "model.architecture"});
    cite.fail(fmt::format("{} cannot be combined with {}; expected {}", cite("objective.name"),
                          cite("model.architecture"),
                          encoder ? "masked_tokens, or an objective over labels such as classification"
                                  : "next_token, or model.architecture: encoder"));
  }
  if (objective.mask_token_fraction + objective.random_token_fraction > 1 + 1e-12) {
    const auto cite = citing({"objective.mask_token_fraction", "objective.random_token_fraction"});
    cite.fail(fmt::format(
        "{} and {} have a sum above 1; expected fractions of the tokens to predict, with a sum of at most 1",
        cite("objective.mask_token_fraction"), cite("objective.random_token_fraction")));
  }
  if (objective.pooling == ops::Pooling::first && copy_.data.sequence_length < 2) {
    const auto cite = citing({"data.sequence_length", "objective.pooling"});
    cite.fail(fmt::format("{} is too short for the <class> token of {}; expected at least 2",
                          cite("data.sequence_length"), cite("objective.pooling")));
  }
}

void SettingsChecker::task() const {
  const auto& data = copy_.data;
  if (data.task == "none") return;
  const bool copy = data.task == "copy";
  if (copy_.objective.learns_labels()) {
    const auto cite = citing({"data.task", "objective.name"});
    cite.fail(fmt::format("{} has no labels for {}; expected objective next_token{}", cite("data.task"),
                          cite("objective.name"), copy ? " or masked_tokens" : ""));
  }
  if (!copy) return recall();
  const std::int64_t n = data.sequence_length;
  if (n < 4 || n % 2 != 0) {
    const auto cite = citing({"data.sequence_length", "data.task"});
    cite.fail(fmt::format(
        "{} cannot be combined with {}, whose sequences are '< symbols = symbols'; expected an even number of at "
        "least 4",
        cite("data.sequence_length"), cite("data.task")));
  }
  if (data.task_min_symbols > n / 2 - 1) {
    const auto cite = citing({"data.task_min_symbols", "data.sequence_length"});
    cite.fail(fmt::format("{} exceeds the longest copy, {} symbols, that fits {}; lower the first or raise the second",
                          cite("data.task_min_symbols"), n / 2 - 1, cite("data.sequence_length")));
  }
}

void SettingsChecker::recall() const {
  const auto& data = copy_.data;
  if (copy_.objective.name != Objective::next_token) {
    const auto cite = citing({"data.task", "objective.name"});
    cite.fail(fmt::format("{} is a task for decoders; found {}, expected next_token", cite("data.task"),
                          cite("objective.name")));
  }
  const std::string obstacle = recall_obstacle(Vocabulary::copy(data.task_symbols),
                                               {.sequence_length = data.sequence_length, .pairs = data.task_pairs});
  if (obstacle.empty()) return;
  const auto cite = citing({"data.task", "data.task_pairs", "data.task_symbols", "data.sequence_length"});
  cite.fail(fmt::format("{} with {}, {} and {}: {}", cite("data.task"), cite("data.task_pairs"),
                        cite("data.task_symbols"), cite("data.sequence_length"), obstacle));
}

void SettingsChecker::mixture() const {
  const auto& data = copy_.data;
  if (data.sources.empty()) return;
  const auto cite = citing({"data.sources", "data.sampler"});
  if (data.sampler != "random" && data.sampler != "documents")
    cite.fail(
        fmt::format("data.sources cannot be combined with {}; expected random or documents", cite("data.sampler")));
  if (!data.dataset.empty())
    cite.fail(fmt::format("data.sources cannot be combined with {}; remove one of the two (--set data.sources=[])",
                          cite("data.dataset")));
  try {
    static_cast<void>(data.mixture());
  } catch (const UserError& error) {
    cite.fail(error.what());
  }
}

void SettingsChecker::documents() const {
  if (copy_.data.sampler != "documents" || !copy_.objective.learns_labels()) return;
  const auto cite = citing({"data.sampler", "objective.name"});
  cite.fail(fmt::format("{} has no effect with {}, whose rows are always documents; expected random or sequential",
                        cite("data.sampler"), cite("objective.name")));
}

void SettingsChecker::packing() const {
  const Mechanism* mechanism = layers::first_mechanism(copy_.model.attention, &Mechanism::separates_documents, false);
  if (copy_.data.packing == "none" || !mechanism) return;
  const auto cite =
      citing({"data.packing", "model.attention.mechanism", "model.attention.layers", "model.attention.heads"});
  cite.fail(fmt::format("{} cannot be combined with {} attention: {}; use {}", cite("data.packing"), mechanism->name,
                        mechanism->limits, names(&Mechanism::separates_documents)));
}

// The recurrent state must have a fixed size and the same meaning in the next segment.
void SettingsChecker::stateful() const {
  const auto& data = copy_.data;
  const auto& model = copy_.model;
  if (data.sampler == "stream" && copy_.objective.name != Objective::next_token) {
    const auto cite = citing({"data.sampler", "objective.name"});
    cite.fail(fmt::format("{} cannot be combined with {}; expected random or sequential", cite("data.sampler"),
                          cite("objective.name")));
  }
  if (!data.stateful) return;
  const auto& attention = model.attention;
  const auto refuse = [&](const char* key, const std::string& reason) {
    const auto cite = citing({"data.stateful", key});
    cite.fail(fmt::format("{} cannot be combined with {}: {}", cite("data.stateful"), cite(key), reason));
  };
  const char* chosen_by = !attention.layer_mechanisms.empty()  ? "model.attention.layers"
                          : !attention.head_mechanisms.empty() ? "model.attention.heads"
                                                               : "model.attention.mechanism";
  for (const Mechanism* mechanism : layers::mechanisms_of(attention)) {
    if (mechanism->past == layers::Past::growing)
      refuse(chosen_by,
             fmt::format("the state of {} attention grows with the number of tokens; use linear", mechanism->name));
    if (mechanism->past == layers::Past::none)
      refuse(chosen_by,
             fmt::format("{} attention has no recurrent state: {}; use linear", mechanism->name, mechanism->limits));
  }
  for (const Mechanism* mechanism : layers::mechanisms_of(attention)) {
    if (mechanism->window_in(attention) == 0) continue;
    refuse(mechanism->window == &layers::AttentionConfig::window ? "model.attention.window"
                                                                 : "model.attention.softmax_window",
           "documents of a batch start at different steps, but a window needs one token count for all rows; use "
           "linear without a window");
  }
  if (attention.redraw_every > 0)
    refuse("model.attention.redraw_every", "the state holds features of the previous random projection; set it to 0");
  const char* moving = attention.centering                                         ? "model.attention.centering"
                       : attention.scaling != layers::Scaling::none                ? "model.attention.scaling"
                       : ops::feature_map_info(attention.feature_map).needs_oprf_a ? "model.attention.feature_map"
                                                                                   : nullptr;
  if (moving)
    refuse(moving, "its constants change in every step, and the state holds features of the previous constants");
  if (model.position != layers::Position::rotary && model.position != layers::Position::none)
    refuse("model.position", "documents that continue over steps can exceed any table of positions; use rotary");
}

void SettingsChecker::lengths() const {
  const auto& model = copy_.model;
  if (model.max_sequence_length == 0 || copy_.data.sequence_length <= model.max_sequence_length) return;
  const auto cite = citing({"data.sequence_length", "model.max_sequence_length"});
  cite.fail(fmt::format("{} exceeds {}; lower data.sequence_length, or raise max_sequence_length",
                        cite("data.sequence_length"), cite("model.max_sequence_length")));
}

void SettingsChecker::teacher() const {
  const auto& teacher = copy_.teacher;
  const auto& stages = copy_.finetune.stages;
  const bool has_teacher = teacher.has_loss() || std::any_of(stages.begin(), stages.end(),
                                                             [](const std::string& name) { return name != "task"; });
  const bool distils =
      teacher.loss == "distillation" || std::find(stages.begin(), stages.end(), "distillation") != stages.end();
  const char* key = teacher.has_loss() ? "teacher.loss" : "finetune.stages";
  if (has_teacher && copy_.data.stateful) {
    const auto cite = citing({key, "data.stateful"});
    cite.fail(fmt::format("{} cannot be combined with {}: the teacher has no recurrent state; expected false",
                          cite(key), cite("data.stateful")));
  }
  if (teacher.layers == "layer_wise" && copy_.model.shared_layers) {
    const auto cite = citing({"teacher.layers", "model.shared_layers"});
    cite.fail(fmt::format("{} cannot be combined with {}: all layers share one block; expected joint",
                          cite("teacher.layers"), cite("model.shared_layers")));
  }
  const auto& attention = copy_.model.attention;
  if (teacher.layers == "layer_wise" && attention.sharing == layers::ProjectionSharing::layers &&
      attention.projection != ops::SequenceProjection::mean &&
      layers::uses(attention, &layers::MechanismInfo::projects_sequence)) {
    const auto cite = citing({"teacher.layers", "model.attention.sharing"});
    cite.fail(fmt::format("{} cannot be combined with {}: all layers share one projection; expected joint",
                          cite("teacher.layers"), cite("model.attention.sharing")));
  }
  if (distils && copy_.objective.learns_labels()) {
    const auto cite = citing({key, "objective.name"});
    cite.fail(fmt::format(
        "{} cannot be combined with {}: distillation needs predictions of tokens; expected objective next_token or "
        "masked_tokens, or attention_transfer and then the objective alone",
        cite(key), cite("objective.name")));
  }
}

// Checks a model without output layer. A run without teacher and stages is rejected when it starts
// (check_against_data), because checkpoints of such models are read with these checks too.
void SettingsChecker::output_layer() const {
  if (copy_.objective.learns_labels() || copy_.model.prediction_head != layers::PredictionHead::none) return;
  const auto& stages = copy_.finetune.stages;
  const bool distils = copy_.teacher.loss == "distillation";
  if (!distils &&
      std::all_of(stages.begin(), stages.end(), [](const std::string& name) { return name == "attention_transfer"; }))
    return;
  const char* key = distils ? "teacher.loss" : "finetune.stages";
  const auto cite = citing({key, "model.prediction_head"});
  cite.fail(
      fmt::format("{} cannot be combined with {}: predictions of tokens need an output layer; expected "
                  "attention_transfer alone, or "
                  "objective.name: classification, which has a head of its own",
                  cite(key), cite("model.prediction_head")));
}

void SettingsChecker::finetune() const {
  const auto& finetune = copy_.finetune;
  if (finetune.source.empty()) return;
  stage_names();
  for (const char* key : {"teacher.loss", "model.weights"}) {
    const bool set = std::string_view(key) == "teacher.loss" ? copy_.teacher.has_loss() : !copy_.model.weights.empty();
    if (!set) continue;
    const auto cite = citing({key, "finetune.source"});
    cite.fail(
        fmt::format("{} cannot be combined with {}, which is the initial model and the teacher; remove one of the two",
                    cite(key), cite("finetune.source")));
  }
  const auto lengths = citing({"finetune.benchmark_lengths"});
  for (const std::string& length : finetune.benchmark_lengths) {
    const bool number =
        !length.empty() && length.size() <= 9 && length.find_first_not_of("0123456789") == std::string::npos;
    if (!number || length[0] == '0')
      lengths.fail(
          fmt::format("finetune.benchmark_lengths: found {}; expected numbers of tokens from 1 to 999999999", length));
  }
}

void SettingsChecker::stage_names() const {
  const auto& finetune = copy_.finetune;
  const auto stages = citing({"finetune.stages"});
  for (std::size_t i = 0; i < finetune.stages.size(); ++i) {
    const std::string& name = finetune.stages[i];
    if (name != "attention_transfer" && name != "distillation" && name != "task")
      stages.fail(
          fmt::format("finetune.stages: found {}; expected each to be attention_transfer, distillation or task", name));
    if (std::find(finetune.stages.begin(), finetune.stages.begin() + static_cast<std::ptrdiff_t>(i), name) !=
        finetune.stages.begin() + static_cast<std::ptrdiff_t>(i))
      stages.fail(fmt::format("finetune.stages: found {} twice; expected each stage once", name));
  }
}

void SettingsChecker::steps() const {
  const auto& schedule = copy_.schedule;
  if (schedule.name != "inverse_square_root" || schedule.warmup_steps > 0) return;
  const auto cite = citing({"schedule.warmup_steps"});
  cite.fail(fmt::format("{} cannot be combined with {}, which decays as sqrt(warmup_steps / step); expected at least 1",
                        cite("schedule.warmup_steps"), cite("schedule.name")));
}

void check_finetune(const LoadedSettings& read) { SettingsChecker(read.settings, read.origins).finetune(); }

std::vector<std::string> check(const Settings& settings, const config::Origins& origins) {
  return SettingsChecker(settings, origins).run();
}

}  // namespace furlong
