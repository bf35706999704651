// Combinations of keys that cannot be: what ranges and the table's conditions cannot express.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "framework/core/error.h"
#include "layers/attention/mechanism.h"
#include "trainers/settings/settings.h"

namespace furlong {
namespace {

using Mechanism = layers::MechanismInfo;

class Checker {
 public:
  Checker(const Settings& settings, const config::Origins& origins)
      : copy_(settings), table_(settings_table(copy_)), origins_(origins), default_table_(settings_table(defaults_)) {}

  void run() const {
    table_.check_effects(default_table_, origins_);
    heads();
    rotary_scaling();
    embeddings();
    attention();
    objective();
    task();
    documents();
    packing();
    carried_state();
    lengths();
    steps();
    teacher();
    output_layer();
    finetune();
  }

 private:
  // Cites keys as seen from the place of the first of them that somebody has set, which is where the message begins.
  struct Citation {
    const Checker& checker;
    config::Place from;
    std::string operator()(const std::string& key) const {
      return config::cite(checker.table_, checker.origins_, key, from);
    }
    [[noreturn]] void fail(const std::string& message) const {
      throw UserError("{}{}", from.source.empty() ? "" : from.text() + ": ", message);
    }
  };

  Citation citing(std::initializer_list<const char*> keys) const {
    for (const char* key : keys)
      if (const auto origin = origins_.find(key); origin != origins_.end()) return {*this, origin->second};
    return {*this, {}};
  }

  /// "softmax or linear": the mechanisms with a capability.
  static std::string names(bool Mechanism::*capability) {
    return config::join(layers::mechanisms_where([=](const Mechanism& one) { return one.*capability; }), " or ");
  }

  std::int64_t head_width() const {
    const auto& model = copy_.model;
    return model.attention.d_head > 0 ? model.attention.d_head : model.d_model / model.attention.n_heads;
  }

  void heads() const {
    const auto& model = copy_.model;
    const auto& attention = model.attention;
    if (attention.d_head == 0 && model.d_model % attention.n_heads != 0) {
      const auto cite = citing({"model.d_model", "model.n_heads"});
      cite.fail(
          fmt::format("{} is not a multiple of {}; expected heads of equal width; change one, or set model.d_head",
                      cite("model.d_model"), cite("model.n_heads")));
    }
    if (attention.n_kv_heads > 0 && attention.n_heads % attention.n_kv_heads != 0) {
      const auto cite = citing({"model.n_key_value_heads", "model.n_heads"});
      cite.fail(fmt::format(
          "{} does not divide {}; expected key and value heads that each serve the same number of query heads",
          cite("model.n_key_value_heads"), cite("model.n_heads")));
    }
    const std::int64_t d_head = head_width();
    if (model.rotates(layers::RotaryPlacement::before_features) && d_head % 2 != 0) {
      const auto cite = citing({"model.d_head", "model.d_model", "model.n_heads", "model.position"});
      const std::string width = attention.d_head > 0
                                    ? cite("model.d_head")
                                    : fmt::format("{} over {} makes heads of width {}, which", cite("model.d_model"),
                                                  cite("model.n_heads"), d_head);
      cite.fail(fmt::format("{} is odd; expected an even width with {}, which turns pairs of numbers", width,
                            cite("model.position")));
    }
  }

  void rotary_scaling() const {
    const auto& model = copy_.model;
    const auto& scaling = model.rotary_scaling;
    if (model.position != layers::Position::rotary || scaling.kind == ops::RotaryScalingKind::none) return;
    const auto wrong = [&](const char* key, const char* other, const std::string& message) {
      const auto cite = citing({key, other});
      cite.fail(fmt::format("{} cannot be with {}; {}", cite(key), cite(other), message));
    };
    if (scaling.factor == 1)
      wrong("model.rotary_scaling_factor", "model.rotary_scaling",
            "expected more than 1, or no scaling: with 1 nothing is scaled");
    if (scaling.kind == ops::RotaryScalingKind::llama3 && scaling.high_frequency_factor <= scaling.low_frequency_factor)
      wrong("model.rotary_high_frequency_factor", "model.rotary_low_frequency_factor",
            "expected the first above the second");
    if (scaling.kind == ops::RotaryScalingKind::yarn && scaling.beta_fast <= scaling.beta_slow)
      wrong("model.rotary_beta_fast", "model.rotary_beta_slow", "expected the first above the second");
  }

  // Widths of what meets at the output layer, and layers that are one.
  void embeddings() const {
    const auto& model = copy_.model;
    const bool predicts = !copy_.objective.learns_labels() && model.prediction_head != layers::PredictionHead::none;
    const bool transform = model.prediction_head == layers::PredictionHead::transform;
    if (predicts && transform && layers::is_gated(model.activation)) {
      const auto cite = citing({"model.prediction_head", "model.activation"});
      cite.fail(fmt::format(
          "{} cannot be with {}, which is gated; expected gelu, gelu_tanh, relu or silu, or prediction_head: linear",
          cite("model.prediction_head"), cite("model.activation")));
    }
    const bool narrow = model.d_embedding > 0 && model.d_embedding != model.d_model;
    if (predicts && narrow && !transform && model.tied_embeddings) {
      const auto cite = citing({"model.d_embedding", "model.d_model", "model.tied_embeddings"});
      cite.fail(
          fmt::format("{} and {} cannot be with {}: the output layer would be of another width than the hidden states; "
                      "take prediction_head: transform, or do not tie them",
                      cite("model.d_embedding"), cite("model.d_model"), cite("model.tied_embeddings")));
    }
    if (model.shared_layers && !model.attention.layer_mechanisms.empty()) {
      const auto cite = citing({"model.shared_layers", "model.attention.layers"});
      cite.fail(fmt::format("{} cannot be with {}: layers that are one block have one mechanism; remove one of the two",
                            cite("model.shared_layers"), cite("model.attention.layers")));
    }
  }

  void attention() const {
    mechanisms();
    rotary_placement();
    const auto& attention = copy_.model.attention;
    if (layers::uses(attention, &Mechanism::has_features)) {
      features();
      softmax_only();
      kernel_epsilon();
    }
    causality();
    if (layers::uses(attention, &Mechanism::projects_sequence)) projected_length();
    const Mechanism* hybrid = layers::first_mechanism(attention, &Mechanism::is_hybrid);
    if (!hybrid || hybrid->window_in(attention) > 0) return;
    const auto cite = citing({"model.attention.softmax_window", "model.attention.mechanism", "model.attention.layers",
                              "model.attention.heads"});
    cite.fail(
        fmt::format("{} with the mechanism {}; expected how many of the nearest tokens get exact weights, such as 128",
                    cite("model.attention.softmax_window"), hybrid->name));
  }

  // Lists of mechanisms: as many as there are layers or heads, each one known, and no second opinion.
  void mechanisms() const {
    const auto& model = copy_.model;
    const auto& attention = model.attention;
    const bool by_layers = !attention.layer_mechanisms.empty();
    const auto& list = by_layers ? attention.layer_mechanisms : attention.head_mechanisms;
    if (list.empty()) return;
    const char* key = by_layers ? "model.attention.layers" : "model.attention.heads";
    const auto cite = citing({key});
    if (by_layers && !attention.head_mechanisms.empty())
      cite.fail(fmt::format("{} cannot be with {}; expected one of the two", cite("model.attention.layers"),
                            cite("model.attention.heads")));
    if (attention.mechanism != layers::AttentionConfig{}.mechanism)
      cite.fail(fmt::format("{} overrules {}; remove one of the two", cite(key), cite("model.attention.mechanism")));
    const char* of = by_layers ? "model.n_layers" : "model.n_heads";
    const std::int64_t wanted = by_layers ? model.n_layers : attention.n_heads;
    if (static_cast<std::int64_t>(list.size()) != wanted)
      cite.fail(fmt::format("{} names {} mechanisms; expected one for each of {}", cite(key), list.size(), cite(of)));
    if (!by_layers) {
      mechanisms_of_heads(key, key, list);
      return;
    }
    for (std::size_t layer = 0; layer < list.size(); ++layer) {
      const std::vector<std::string> names = layers::mechanisms_in(list[layer]);
      const std::string where = fmt::format("{}: layer {} (from 0)", key, layer);
      if (names.size() > 1) {
        mechanisms_of_heads(key, where, names);
      } else {
        known_mechanism(key, where, list[layer]);
      }
    }
  }

  void known_mechanism(const char* key, const std::string& where, const std::string& name) const {
    const config::Key& known = *table_.find("model.attention.mechanism");
    if (!known.accepts(name))
      citing({key}).fail(fmt::format("{}: found {}; expected {} for each", where, name, known.expected()));
  }

  // One mechanism for each head; heads that read the same keys and values have the same.
  void mechanisms_of_heads(const char* key, const std::string& where, const std::vector<std::string>& names) const {
    const auto& attention = copy_.model.attention;
    const auto cite = citing({key});
    for (const std::string& name : names) known_mechanism(key, where, name);
    if (static_cast<std::int64_t>(names.size()) != attention.n_heads)
      cite.fail(fmt::format("{} names {} mechanisms; expected one, or one for each of {}", where, names.size(),
                            cite("model.n_heads")));
    const std::int64_t group = attention.n_kv_heads > 0 ? attention.n_heads / attention.n_kv_heads : 1;
    for (std::int64_t head = 0; head < attention.n_heads; ++head) {
      const std::int64_t first = head / group * group;
      if (names[static_cast<std::size_t>(head)] == names[static_cast<std::size_t>(first)]) continue;
      cite.fail(
          fmt::format("{}: heads {} and {} (from 0) share a key and value head, but not a mechanism; expected the same "
                      "for each {} neighbours, as of {}",
                      where == key ? cite(key) : where, first, head, group, cite("model.n_key_value_heads")));
    }
  }

  // Features are turned in the numerator alone: what has exact weights has nothing to turn.
  void rotary_placement() const {
    const auto& model = copy_.model;
    if (!model.rotates(layers::RotaryPlacement::numerator)) return;
    const auto cite = citing(
        {"model.rotary_placement", "model.attention.mechanism", "model.attention.layers", "model.attention.heads"});
    if (const Mechanism* other = layers::first_mechanism(model.attention, &Mechanism::rotates_numerator, false))
      cite.fail(
          fmt::format("{} cannot be with the mechanism {}, whose exact weights have no features to turn; take "
                      "before_features, or {} attention alone",
                      cite("model.rotary_placement"), other->name, names(&Mechanism::rotates_numerator)));
  }

  void features() const {
    const auto& attention = copy_.model.attention;
    const std::int64_t d_head = head_width();
    const ops::FeatureMapInfo& map = ops::feature_map_info(attention.feature_map);
    if (map.needs_directions) {
      if (attention.n_features % map.features_a_direction == 0) return;
      const auto cite = citing({"model.attention.n_features"});
      cite.fail(fmt::format("{} is odd; expected an even number with {}, which makes two features of each direction",
                            cite("model.attention.n_features"), cite("model.attention.feature_map")));
    }
    std::int64_t features = 0;
    try {
      features = ops::feature_count(map.map, attention.map_options, d_head, 0);
    } catch (const UserError& error) {
      const auto cite =
          citing({"model.attention.order", "model.attention.most_features", "model.attention.feature_map"});
      cite.fail(fmt::format("{}: {}", cite("model.attention.order"), error.what()));
    }
    if (attention.n_features == 0 || attention.n_features == features) return;
    const auto cite = citing({"model.attention.n_features"});
    const std::string number = features == d_head ? fmt::format("as many features as a head is wide ({})", d_head)
                                                  : fmt::format("{} features for heads of width {}", features, d_head);
    cite.fail(fmt::format("{} cannot be with {}, which has {}; remove n_features", cite("model.attention.n_features"),
                          cite("model.attention.feature_map"), number));
  }

  // Centring and scaling leave exp(q·k) as it is, and nothing else.
  void softmax_only() const {
    const auto& attention = copy_.model.attention;
    if (ops::feature_map_info(attention.feature_map).estimates_softmax ||
        (!attention.centering && attention.scaling == layers::Scaling::none))
      return;
    const char* key = attention.centering ? "model.attention.centering" : "model.attention.scaling";
    const auto cite = citing({key, "model.attention.feature_map"});
    cite.fail(
        fmt::format("{} cannot be with {}: it changes nothing for maps that estimate softmax's exp(q·k), but would "
                    "change what this one means; remove it, or take a map such as favor_positive",
                    cite(key), cite("model.attention.feature_map")));
  }

  void kernel_epsilon() const {
    const auto& attention = copy_.model.attention;
    const double epsilon = attention.map_options.kernel_epsilon, usual = ops::FeatureMapOptions{}.kernel_epsilon;
    if (epsilon == 0 || epsilon == usual || ops::feature_map_info(attention.feature_map).uses_kernel_epsilon) return;
    const auto cite = citing({"model.attention.kernel_epsilon", "model.attention.feature_map"});
    cite.fail(
        fmt::format("{} cannot be with {}, whose kernel has no such number; expected favor_relu; remove "
                    "kernel_epsilon",
                    cite("model.attention.kernel_epsilon"), cite("model.attention.feature_map")));
  }

  void causality() const {
    const auto& model = copy_.model;
    const Mechanism* mechanism = layers::first_mechanism(model.attention, &Mechanism::can_be_causal, false);
    if (!mechanism || model.architecture != layers::Architecture::decoder) return;
    const auto cite = citing({"model.attention.projected_length", "model.attention.mechanism", "model.attention.layers",
                              "model.attention.heads"});
    cite.fail(
        fmt::format("the mechanism {} cannot be with {}: {}, so that each token would see later ones; take linear, or "
                    "an encoder",
                    mechanism->name, cite("model.architecture"), mechanism->limits));
  }

  void projected_length() const {
    const auto& model = copy_.model;
    const std::int64_t longest = model.max_sequence_length > 0 ? model.max_sequence_length : copy_.data.sequence_length;
    if (model.attention.projected_length <= longest) return;
    const auto cite = citing({"model.attention.projected_length", "model.attention.mechanism", "model.attention.layers",
                              "model.attention.heads"});
    cite.fail(fmt::format("{} is more than the longest sequence ({}); expected a projection that shortens",
                          cite("model.attention.projected_length"), longest));
  }

  void objective() const {
    const auto& objective = copy_.objective;
    const bool encoder = copy_.model.architecture == layers::Architecture::encoder;
    if (encoder != (objective.name != Objective::next_token)) {
      const auto cite = citing({"objective.name", "model.architecture"});
      cite.fail(fmt::format(
          "{} cannot be with {}; expected {}", cite("objective.name"), cite("model.architecture"),
          encoder
              ? "an objective of encoders, since each token sees the next: masked_tokens, classification or matching"
              : "next_token, or model.architecture: encoder"));
    }
    if (objective.mask_token_share + objective.random_token_share > 1 + 1e-12) {
      const auto cite = citing({"objective.mask_token_share", "objective.random_token_share"});
      cite.fail(
          fmt::format("{} and {} together are more than 1; expected shares of the tokens that are to be predicted",
                      cite("objective.mask_token_share"), cite("objective.random_token_share")));
    }
    if (objective.pooling == ops::Pooling::first && copy_.data.sequence_length < 2) {
      const auto cite = citing({"data.sequence_length", "objective.pooling"});
      cite.fail(fmt::format("{} leaves no room beside the <class> token of {}; expected at least 2",
                            cite("data.sequence_length"), cite("objective.pooling")));
    }
  }

  void task() const {
    const auto& data = copy_.data;
    if (data.task != "copy") return;
    if (copy_.objective.learns_labels()) {
      const auto cite = citing({"data.task", "objective.name"});
      cite.fail(fmt::format("{} has no labels for {}; expected next_token or masked_tokens", cite("data.task"),
                            cite("objective.name")));
    }
    const std::int64_t n = data.sequence_length;
    if (n < 4 || n % 2 != 0) {
      const auto cite = citing({"data.sequence_length", "data.task"});
      cite.fail(
          fmt::format("{} cannot be with {}, whose sequences are <, the symbols, =, the symbols again; expected an "
                      "even number from 4 on",
                      cite("data.sequence_length"), cite("data.task")));
    }
    if (data.task_shortest > n / 2 - 1) {
      const auto cite = citing({"data.task_shortest", "data.sequence_length"});
      cite.fail(fmt::format("{} is more than the {} symbols that {} has room for", cite("data.task_shortest"),
                            n / 2 - 1, cite("data.sequence_length")));
    }
  }

  void documents() const {
    if (copy_.data.sampler != "documents" || !copy_.objective.learns_labels()) return;
    const auto cite = citing({"data.sampler", "objective.name"});
    cite.fail(
        fmt::format("{} does nothing with {}, whose rows are documents in any case; expected random or sequential",
                    cite("data.sampler"), cite("objective.name")));
  }

  void packing() const {
    const Mechanism* mechanism = layers::first_mechanism(copy_.model.attention, &Mechanism::separates_documents, false);
    if (copy_.data.packing == "none" || !mechanism) return;
    const auto cite =
        citing({"data.packing", "model.attention.mechanism", "model.attention.layers", "model.attention.heads"});
    cite.fail(fmt::format("{} cannot be with {} attention: {}; take {}", cite("data.packing"), mechanism->name,
                          mechanism->limits, names(&Mechanism::separates_documents)));
  }

  // What goes from one segment to the next has to be of one size, and to mean the same there.
  void carried_state() const {
    const auto& data = copy_.data;
    const auto& model = copy_.model;
    if (data.sampler == "stream" && copy_.objective.name != Objective::next_token) {
      const auto cite = citing({"data.sampler", "objective.name"});
      cite.fail(fmt::format("{} cannot be with {}; expected random or sequential", cite("data.sampler"),
                            cite("objective.name")));
    }
    if (!data.carry_state) return;
    const auto& attention = model.attention;
    const auto refuse = [&](const char* key, const std::string& reason) {
      const auto cite = citing({"data.carry_state", key});
      cite.fail(fmt::format("{} cannot be with {}: {}", cite("data.carry_state"), cite(key), reason));
    };
    const char* chosen_by = !attention.layer_mechanisms.empty()  ? "model.attention.layers"
                            : !attention.head_mechanisms.empty() ? "model.attention.heads"
                                                                 : "model.attention.mechanism";
    for (const Mechanism* mechanism : layers::mechanisms_of(attention)) {
      if (mechanism->past == layers::Past::growing)
        refuse(chosen_by,
               fmt::format("what {} attention keeps of the past grows with it; take linear", mechanism->name));
      if (mechanism->past == layers::Past::none)
        refuse(chosen_by,
               fmt::format("{} attention keeps no past: {}; take linear", mechanism->name, mechanism->limits));
    }
    for (const Mechanism* mechanism : layers::mechanisms_of(attention)) {
      if (mechanism->window_in(attention) == 0) continue;
      refuse(mechanism->window == &layers::AttentionConfig::window ? "model.attention.window"
                                                                   : "model.attention.softmax_window",
             "rows begin documents at different steps, but share the count of tokens that a window goes by; take "
             "linear without a window");
    }
    if (attention.redraw_every > 0)
      refuse("model.attention.redraw_every", "the state is made of features of the directions before");
    const char* moving = attention.centering                                         ? "model.attention.centering"
                         : attention.scaling != layers::Scaling::none                ? "model.attention.scaling"
                         : ops::feature_map_info(attention.feature_map).needs_oprf_a ? "model.attention.feature_map"
                                                                                     : nullptr;
    if (moving)
      refuse(moving, "its constants change with every step, and the state is made of features under those before");
    if (model.position != layers::Position::rotary && model.position != layers::Position::none)
      refuse("model.position",
             "documents that go on from step to step have no longest length, as a table of positions has; take rotary");
  }

  void lengths() const {
    const auto& model = copy_.model;
    if (model.max_sequence_length == 0 || copy_.data.sequence_length <= model.max_sequence_length) return;
    const auto cite = citing({"data.sequence_length", "model.max_sequence_length"});
    cite.fail(
        fmt::format("{} is longer than {}; expected sequences that the model is made for; shorten them, or raise "
                    "max_sequence_length",
                    cite("data.sequence_length"), cite("model.max_sequence_length")));
  }

  void teacher() const {
    const auto& teacher = copy_.teacher;
    const auto& stages = copy_.finetune.stages;
    const bool teaches = teacher.teaches() || std::any_of(stages.begin(), stages.end(),
                                                          [](const std::string& name) { return name != "task"; });
    const bool distils =
        teacher.loss == "distillation" || std::find(stages.begin(), stages.end(), "distillation") != stages.end();
    const char* key = teacher.teaches() ? "teacher.loss" : "finetune.stages";
    if (teaches && copy_.data.carry_state) {
      const auto cite = citing({key, "data.carry_state"});
      cite.fail(fmt::format("{} cannot be with {}: the teacher has no state to carry; expected false", cite(key),
                            cite("data.carry_state")));
    }
    if (teacher.layers == "in_turn" && copy_.model.shared_layers) {
      const auto cite = citing({"teacher.layers", "model.shared_layers"});
      cite.fail(fmt::format("{} cannot be with {}: the layers are one block; expected joint", cite("teacher.layers"),
                            cite("model.shared_layers")));
    }
    if (distils && copy_.objective.learns_labels()) {
      const auto cite = citing({key, "objective.name"});
      cite.fail(
          fmt::format("{} cannot be with {}: distillation is over predictions of tokens; expected next_token or "
                      "masked_tokens, or transfer and then the objective alone",
                      cite(key), cite("objective.name")));
    }
  }

  // Of a model that has none; a run without teacher and stages is refused where it begins (check_against_data), since
  // checkpoints of such models are read with the same checks.
  void output_layer() const {
    if (copy_.objective.learns_labels() || copy_.model.prediction_head != layers::PredictionHead::none) return;
    const auto& stages = copy_.finetune.stages;
    const bool distils = copy_.teacher.loss == "distillation";
    if (!distils &&
        std::all_of(stages.begin(), stages.end(), [](const std::string& name) { return name == "transfer"; }))
      return;
    const char* key = distils ? "teacher.loss" : "finetune.stages";
    const auto cite = citing({key, "model.prediction_head"});
    cite.fail(
        fmt::format("{} cannot be with {}: predictions of tokens need an output layer; expected transfer alone, or "
                    "objective.name: classification, which has a head of its own",
                    cite(key), cite("model.prediction_head")));
  }

  void finetune() const {
    const auto& finetune = copy_.finetune;
    if (finetune.source.empty()) return;
    for (const char* key : {"teacher.loss", "model.weights"}) {
      const bool set = std::string_view(key) == "teacher.loss" ? copy_.teacher.teaches() : !copy_.model.weights.empty();
      if (!set) continue;
      const auto cite = citing({key, "finetune.source"});
      cite.fail(fmt::format(
          "{} cannot be with {}, which furlong finetune begins from and takes for the teacher; remove one of the two",
          cite(key), cite("finetune.source")));
    }
    const auto stages = citing({"finetune.stages"});
    for (std::size_t i = 0; i < finetune.stages.size(); ++i) {
      const std::string& name = finetune.stages[i];
      if (name != "transfer" && name != "distillation" && name != "task")
        stages.fail(fmt::format("finetune.stages: found {}; expected transfer, distillation or task for each", name));
      if (std::find(finetune.stages.begin(), finetune.stages.begin() + static_cast<std::ptrdiff_t>(i), name) !=
          finetune.stages.begin() + static_cast<std::ptrdiff_t>(i))
        stages.fail(fmt::format("finetune.stages: {} is there twice; expected each stage once", name));
    }
    const auto lengths = citing({"finetune.lengths"});
    for (const std::string& length : finetune.lengths) {
      const bool number =
          !length.empty() && length.size() <= 9 && length.find_first_not_of("0123456789") == std::string::npos;
      if (!number || length[0] == '0')
        lengths.fail(fmt::format("finetune.lengths: found {}; expected numbers of tokens from 1 to 999999999", length));
    }
  }

  void steps() const {
    const auto& schedule = copy_.schedule;
    const std::int64_t max_steps = copy_.trainer.max_steps;
    if (schedule.warmup_steps > max_steps) {
      const auto cite = citing({"schedule.warmup_steps", "trainer.max_steps"});
      cite.fail(
          fmt::format("{} is more than {}, so that the highest learning rate is never reached; lower warmup_steps",
                      cite("schedule.warmup_steps"), cite("trainer.max_steps")));
    }
    if (schedule.name == "inverse_square_root" && schedule.warmup_steps == 0) {
      const auto cite = citing({"schedule.warmup_steps"});
      cite.fail(fmt::format("{} cannot be with {}, which falls as the root of warmup_steps / step; expected at least 1",
                            cite("schedule.warmup_steps"), cite("schedule.name")));
    }
    const std::int64_t decay_steps = resolve(copy_).schedule.decay_steps;
    if (schedule.warmup_steps + decay_steps <= max_steps) return;
    const auto cite = citing({"schedule.decay_steps", "schedule.warmup_steps", "trainer.max_steps"});
    const std::string decay = schedule.decay_steps > 0
                                  ? cite("schedule.decay_steps")
                                  : fmt::format("schedule.decay_steps: {} (a tenth of max_steps)", decay_steps);
    cite.fail(
        fmt::format("{} and {} together are more than {}, so that the fall of the learning rate does not end; lower "
                    "one, or train longer",
                    decay, cite("schedule.warmup_steps"), cite("trainer.max_steps")));
  }

  Settings copy_, defaults_;
  config::Table table_;
  const config::Origins& origins_;
  config::Table default_table_;
};

}  // namespace

void check(const Settings& settings, const config::Origins& origins) { Checker(settings, origins).run(); }

}  // namespace furlong
