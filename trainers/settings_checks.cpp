// Combinations of keys that cannot be: what ranges and the table's conditions cannot express.
#include <fmt/format.h>

#include <initializer_list>

#include "framework/core/error.h"
#include "trainers/settings.h"

namespace furlong {
namespace {

class Checker {
 public:
  Checker(const Settings& settings, const config::Origins& origins)
      : copy_(settings), table_(settings_table(copy_)), origins_(origins), default_table_(settings_table(defaults_)) {}

  void run() const {
    table_.check_effects(default_table_, origins_);
    heads();
    attention();
    lengths();
    steps();
  }

 private:
  // Cites keys as seen from the place of the first of them that somebody has set, which is where the message begins.
  struct Citation {
    const Checker& checker;
    config::Place from;
    std::string operator()(const std::string& key) const { return config::cite(checker.table_, checker.origins_, key, from); }
    [[noreturn]] void fail(const std::string& message) const {
      throw UserError("{}{}", from.source.empty() ? "" : from.text() + ": ", message);
    }
  };

  Citation citing(std::initializer_list<const char*> keys) const {
    for (const char* key : keys)
      if (const auto origin = origins_.find(key); origin != origins_.end()) return {*this, origin->second};
    return {*this, {}};
  }

  void heads() const {
    const auto& model = copy_.model;
    if (model.d_head == 0 && model.d_model % model.n_heads != 0) {
      const auto cite = citing({"model.d_model", "model.n_heads"});
      cite.fail(fmt::format("{} is not a multiple of {}; expected heads of equal width; change one, or set model.d_head",
                            cite("model.d_model"), cite("model.n_heads")));
    }
    if (model.n_key_value_heads > 0 && model.n_heads % model.n_key_value_heads != 0) {
      const auto cite = citing({"model.n_key_value_heads", "model.n_heads"});
      cite.fail(fmt::format("{} does not divide {}; expected key and value heads that each serve the same number of query heads",
                            cite("model.n_key_value_heads"), cite("model.n_heads")));
    }
    const std::int64_t d_head = resolve(copy_).model.d_head;
    if (model.position == "rotary" && d_head % 2 != 0) {
      const auto cite = citing({"model.d_head", "model.d_model", "model.n_heads", "model.position"});
      const std::string width =
          model.d_head > 0 ? cite("model.d_head")
                           : fmt::format("{} over {} makes heads of width {}, which", cite("model.d_model"), cite("model.n_heads"), d_head);
      cite.fail(fmt::format("{} is odd; expected an even width with {}, which turns pairs of numbers", width, cite("model.position")));
    }
  }

  void attention() const {
    const auto& attention = copy_.model.attention;
    const std::int64_t d_head = resolve(copy_).model.d_head;
    if (attention.mechanism != "linear" || attention.feature_map != "elu1" || attention.n_features == 0 || attention.n_features == d_head)
      return;
    const auto cite = citing({"model.attention.n_features"});
    cite.fail(fmt::format("{} cannot be with {}, which has as many features as a head is wide ({}); remove n_features",
                          cite("model.attention.n_features"), cite("model.attention.feature_map"), d_head));
  }

  void lengths() const {
    const auto& model = copy_.model;
    if (model.max_sequence_length == 0 || copy_.data.sequence_length <= model.max_sequence_length) return;
    const auto cite = citing({"data.sequence_length", "model.max_sequence_length"});
    cite.fail(fmt::format("{} is longer than {}; expected sequences that the model is made for; shorten them, or raise max_sequence_length",
                          cite("data.sequence_length"), cite("model.max_sequence_length")));
  }

  void steps() const {
    const auto& schedule = copy_.schedule;
    const std::int64_t max_steps = copy_.trainer.max_steps;
    if (schedule.warmup_steps > max_steps) {
      const auto cite = citing({"schedule.warmup_steps", "trainer.max_steps"});
      cite.fail(fmt::format("{} is more than {}, so that the highest learning rate is never reached; lower warmup_steps",
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
    const std::string decay = schedule.decay_steps > 0 ? cite("schedule.decay_steps")
                                                       : fmt::format("schedule.decay_steps: {} (a tenth of max_steps)", decay_steps);
    cite.fail(
        fmt::format("{} and {} together are more than {}, so that the fall of the learning rate does not end; lower one, or train longer",
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
