#include "cli/attention_options.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "layers/attention/linear/directions.h"

namespace furlong::command_line {
namespace {

bool holds_any(const std::vector<std::string>& names, std::initializer_list<const char*> wanted) {
  return std::find_first_of(names.begin(), names.end(), wanted.begin(), wanted.end()) != names.end();
}
template <class Wanted>
bool any_map(const std::vector<std::string>& maps, const Wanted& wanted) {
  return std::any_of(maps.begin(), maps.end(),
                     [&](const std::string& map) { return wanted(ops::feature_map_info(map)); });
}

}  // namespace

std::vector<std::string> mechanism_names() {
  std::vector<std::string> names;
  for (const auto& [name, mechanism] : attend_mechanisms()) names.push_back(name);
  return names;
}

std::vector<std::string> feature_map_names() {
  std::vector<std::string> names;
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) names.emplace_back(info.name);
  return names;
}

std::vector<std::string> directions_kind_names() {
  std::vector<std::string> names;
  for (const auto& [kind, name] : layers::directions_kinds()) names.emplace_back(name);
  return names;
}

AttendMechanism mechanism_from_name(const std::string& name) {
  for (const auto& [known, mechanism] : attend_mechanisms()) {
    if (known == name) return mechanism;
  }
  throw UserError("--mechanism {}: unknown; expected one of {}", name, fmt::join(mechanism_names(), ", "));
}

void refuse_unless(bool applies, const Option& option, const std::string& where) {
  if (!applies && option.is_given())
    throw UserError("{}: belongs to {}; leave it out, or change that", option.name(), where);
}

void AttentionOptionValues::add(Command command, AttentionChoice& choice, bool many_maps) {
  using enum AttendMechanism;
  const auto keep = [&](Option option, std::vector<AttendMechanism> takers) {
    options_.push_back({option, std::move(takers)});
    return option;
  };
  if (!many_maps) {
    keep(command.add_option("--feature-map", feature_map, "What makes features of queries and keys")
             .shows_default()
             .one_of(feature_map_names())
             .value_name("NAME"),
         {linear, windowed});
  }
  keep(command
           .add_option("--window", choice.window,
                       "softmax, linear: keys so many tokens away or more are not seen;\nwindowed: nearer ones have "
                       "exact weights")
           .range(1, 1 << 30)
           .value_name("TOKENS"),
       {softmax, linear, windowed});
  chunk_ = keep(
      command.add_option("--chunk", choice.chunk_size, "Tokens a tile: changes speed, and results only by rounding")
          .shows_default()
          .range(1, 1 << 16)
          .value_name("TOKENS"),
      {linear, windowed});
  order_ =
      keep(command.add_option("--order", choice.map_options.order, "taylor: 1 to 3; limit: 1 to 4").shows_default(),
           {linear, windowed});
  kernel_epsilon_ =
      keep(command
               .add_option("--kernel-epsilon", kernel_epsilon,
                           many_maps ? "favor_relu: added to every feature (0: 0.001)"
                                     : "favor_relu, --compat performer_pytorch: added to every feature\n(0: 0.001, or "
                                       "the library's own: 0.0001 with favor_positive)")
               .shows_default()
               .not_negative(),
           {linear, windowed});
  most_features_ = keep(
      command.add_option("--most-features", choice.map_options.most_features, "taylor and limit are refused above it")
          .shows_default()
          .positive(),
      {linear, windowed});
  keep(command
           .add_option("--normalizer", normalizer,
                       "sum: divide by the sum of weights; none: by the output row's own root mean square")
           .shows_default()
           .one_of({"sum", "none"}),
       {linear, windowed});
  guard_ = keep(command
                    .add_option("--denominator-guard", choice.denominator_guard,
                                "Maps with features of both signs, whose sums can cancel: rows whose denominator is a "
                                "smaller\npart of the sum of |φ(q)| |φ(k)| become zero, and are counted")
                    .shows_default()
                    .range(0.0, 1.0),
                {linear, windowed});
  if (!many_maps) {
    compat_ =
        keep(command
                 .add_option("--compat", choice.compat,
                             "That library's arithmetic, epsilons included: performer_pytorch or fast_transformers")
                 .one_of({"performer_pytorch", "fast_transformers"})
                 .value_name("NAME"),
             {linear});
    stabilize_ = keep(command.add_flag("--compat-stabilize", choice.compat_stabilize,
                                       "fast_transformers with favor_hyperbolic: that library's argument stabilize"),
                      {linear});
  }
  std::vector<std::string> projections;
  for (const auto& [kind, name] : ops::sequence_projections()) projections.emplace_back(name);
  keep(command.add_option("--projection", projection, "How linformer shortens keys and values")
           .shows_default()
           .one_of(projections)
           .value_name("KIND"),
       {linformer});
}

void AttentionOptionValues::check(const std::vector<AttendMechanism>& mechanisms, const std::vector<std::string>& maps,
                                  const AttentionChoice& choice) const {
  for (const Given& given : options_) {
    const bool applies = std::any_of(mechanisms.begin(), mechanisms.end(), [&](AttendMechanism mechanism) {
      return std::find(given.takers.begin(), given.takers.end(), mechanism) != given.takers.end();
    });
    std::vector<std::string> takers;
    for (const AttendMechanism taker : given.takers) takers.emplace_back(name_of(taker));
    refuse_unless(applies, given.option, fmt::format("--mechanism {}", fmt::join(takers, " or ")));
  }
  const bool polynomial = any_map(maps, [](const auto& info) { return info.highest_order > 0; });
  refuse_unless(polynomial, order_, "--feature-map taylor or limit");
  refuse_unless(polynomial, most_features_, "--feature-map taylor or limit");
  if (compat_) {
    refuse_unless(choice.compat == "fast_transformers" && holds_any(maps, {"favor_hyperbolic"}), stabilize_,
                  "--compat fast_transformers --feature-map favor_hyperbolic");
  }
  if (compat_ && compat_.is_given()) {
    refuse_unless(choice.compat == "performer_pytorch", kernel_epsilon_,
                  "--compat performer_pytorch, or --feature-map favor_relu without --compat");
    for (const Option& option : {chunk_, guard_}) refuse_unless(false, option, "what runs without --compat");
    return;
  }
  refuse_unless(any_map(maps, [](const auto& info) { return info.uses_kernel_epsilon; }), kernel_epsilon_,
                compat_ ? "--feature-map favor_relu, or --compat performer_pytorch" : "--feature-map favor_relu");
  std::vector<std::string> guarded;
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) {
    if (ops::can_cancel(info.map)) guarded.emplace_back(info.name);
  }
  refuse_unless(std::find_first_of(maps.begin(), maps.end(), guarded.begin(), guarded.end()) != maps.end(), guard_,
                fmt::format("maps whose sums of weights can cancel: {}", fmt::join(guarded, ", ")));
  refuse_unless(normalizer == "sum", guard_, "--normalizer sum, since none has no denominator");
}

void AttentionOptionValues::settle(AttentionChoice& choice) const {
  choice.feature_map = ops::feature_map_info(feature_map).map;
  choice.normalizer = normalizer == "none" ? ops::Normalizer::rms : ops::Normalizer::sum;
  choice.projection = ops::sequence_projection_kind(projection);
  if (kernel_epsilon > 0) choice.map_options.kernel_epsilon = choice.compat_kernel_epsilon = kernel_epsilon;
}

}  // namespace furlong::command_line
