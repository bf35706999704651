#include "conversion/convert.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "conversion/read_parameters.h"
#include "framework/config/reader.h"
#include "framework/io/atomic_file.h"
#include "layers/attention/mechanism.h"
#include "trainers/model/weights.h"
#include "trainers/train/signals.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// Returns whether the cost per token grows with the length.
bool cost_grows(const Settings& settings) {
  const layers::AttentionConfig& attention = settings.model.attention;
  return attention.window == 0 && layers::uses(attention, &layers::MechanismInfo::is_softmax);
}

bool changes_attention(const ConvertOptions& options) { return !options.attention.empty(); }

/// Throws UserError for keys of training: the converted checkpoint would ignore them.
void check_overrides(const std::vector<std::string>& overrides) {
  for (const std::string& one : overrides) {
    const std::string key = one.substr(0, one.find('='));
    if (key.starts_with("model.") || key == "seed") continue;
    throw UserError(
        "--set {}: a converted checkpoint has no such key; expected a key under model, or seed (of new random "
        "projections and weights): set other keys in the config of furlong train or furlong finetune",
        one);
  }
}

void check_options(const ConvertOptions& options) {
  const fs::path folder = options.destination.has_parent_path() ? options.destination.parent_path() : fs::path(".");
  if (!fs::is_directory(folder))
    throw UserError("{}: the directory {} is missing; create it first", options.destination.string(), folder.string());
  check_overrides(options.overrides);
  const auto needs = [](bool given, const char* option, const char* what) {
    if (given) throw UserError("{} has no effect without {}; remove it, or add what is missing", option, what);
  };
  if (!changes_attention(options)) {
    needs(options.features > 0, "--features", "--attention");
    needs(!options.layers.empty(), "--layers", "--attention");
    needs(!options.heads_keep_softmax.empty(), "--heads-keep-softmax", "--attention");
    if (!options.fold_scaling && options.overrides.empty())
      needs(options.data.has_value(), "--data", "--attention or --fold-scaling");
  }
  if (options.attention == "auto") {
    needs(options.features > 0, "--features", "a named attention: auto chooses m, up to --search-limit");
    for (const std::string& one : options.overrides) {
      if (one.starts_with("model.attention.window="))
        throw UserError(
            "--set {}: --attention auto measures errors and costs with the window of the source; remove it, or name "
            "the attention",
            one);
    }
  }
  const bool measures = options.attention == "auto" || options.fold_scaling;
  if (measures && !options.data)
    throw UserError("{}: data to measure on is missing; expected --data with a tokenized dataset",
                    options.attention == "auto" ? "--attention auto" : "--fold-scaling");
}

/// The layers and heads that --attention applies to.
struct Selection {
  std::vector<bool> layers;
  std::vector<std::vector<bool>> keep_softmax;
  Selection(const ConvertOptions& options, const layers::ModelConfig& model)
      : layers(parse_selection(options.layers, model.n_layers, "--layers", "layers")),
        keep_softmax(parse_head_selection(options.heads_keep_softmax, model)) {}
};

/// Removes settings of distillation, and relaxes settings of data that the new attention or length cannot be trained
/// with. The config of the later training sets them again.
void drop_training_settings(Settings& settings) {
  settings.teacher = {};
  settings.finetune = {};
  settings.data.stateful = false;
  if (layers::first_mechanism(settings.model.attention, &layers::MechanismInfo::separates_documents, false))
    settings.data.packing = "none";
  if (settings.model.max_sequence_length > 0)
    settings.data.sequence_length = std::min(settings.data.sequence_length, settings.model.max_sequence_length);
}

/// Returns the option that set a key to another value than the source's.
std::string option_of(const std::string& key, const ConvertOptions& options) {
  if (key == "model.max_sequence_length") return fmt::format("--max-sequence-length {}", options.max_sequence_length);
  if (key == "model.attention.n_features" && options.features > 0)
    return fmt::format("--features {}", options.features);
  std::string option = "--attention " + options.attention;
  if (!options.layers.empty()) option += " --layers " + options.layers;
  if (!options.heads_keep_softmax.empty()) option += " --heads-keep-softmax " + options.heads_keep_softmax;
  return option;
}

/// Applies the overrides to the model and the seed. null resets a key to its default.
void apply_overrides(Settings& settings, const std::vector<std::string>& overrides, const std::string& name,
                     config::Origins& asked) {
  Settings changed = settings, unset;
  changed.teacher = {};  // its required keys do not apply here
  changed.finetune = {};
  const config::Table table = settings_table(changed, false), defaults = settings_table(unset);
  for (const std::string& one : overrides) {
    const std::string path = one.substr(0, one.find('='));
    if (const config::Key* const key = table.find(path)) key->set(defaults.find(path)->get());
    asked.erase(path);
  }
  const config::Reading reading = config::read_settings_text(table, "", name, overrides);
  for (const auto& [path, place] : reading.origins) asked[path] = place;
  settings.model = changed.model;
  settings.seed = changed.seed;
}

/// Returns `wanted` with the overrides applied, checked and resolved. Errors start with the option that a value comes
/// from, or with `name` if it is the source's.
Settings with_overrides(const Settings& wanted, const ConvertOptions& options, Settings source,
                        const std::string& name) {
  Settings changed = wanted;
  const config::Table table = settings_table(changed, false), before = settings_table(source);
  config::Origins asked;
  for (const config::Key& key : table.keys()) {
    if (key.path() == "model.weights" || table.unmet(key) || key.get() == before.find(key.path())->get()) continue;
    asked[key.path()] = {option_of(key.path(), options), 0, 0};
  }
  reset_unused_keys(table, asked);
  apply_overrides(changed, options.overrides, name, asked);
  reset_unused_keys(table, asked);
  if (!(changed.model.attention == source.model.attention))
    warn_of_lost_window(source.model.attention.window, changed.model.attention);
  if (!(changed.model == source.model)) drop_training_settings(changed);
  std::vector<std::string> given;
  for (const auto& [path, place] : asked) {
    if (std::find(given.begin(), given.end(), place.source) == given.end()) given.push_back(place.source);
  }
  for (const config::Key& key : table.keys()) {
    if (table.unmet(key)) continue;
    const config::Place& place = asked.try_emplace(key.path(), config::Place{name, 0, 0}).first->second;
    if (!key.accepts(key.get()))
      throw UserError("{}: {}: found {}; expected {}", place.text(), key.path(), config::to_text(key.get()),
                      key.expected());
  }
  try {
    return finish_settings({std::move(changed), std::move(asked), {}}).settings;
  } catch (const UserError& error) {  // the message may name only keys of the source, which were valid together
    const std::string message = error.what();
    const auto is_named = [&](const std::string& option) { return message.find(option) != std::string::npos; };
    if (given.empty() || std::any_of(given.begin(), given.end(), is_named)) throw;
    throw UserError("{}: {}", config::join(given, " "), message);
  }
}

/// Position p gets the learned vector of p modulo their number, as in Longformer (Beltagy, Peters and Cohan 2020,
/// section 5).
void repeat_rows(std::span<const float> source, std::span<float> target) {
  for (std::size_t begin = 0; begin < target.size(); begin += source.size())
    std::copy_n(source.begin(), std::min(source.size(), target.size() - begin),
                target.begin() + static_cast<std::ptrdiff_t>(begin));
}

/// Returns the layer of a parameter of an attention.
std::size_t layer_of(const std::string& parameter) {
  return std::stoul(parameter.substr(std::string_view("blocks.").size()));
}

class Conversion {
 public:
  explicit Conversion(const ConvertOptions& options)
      : options_(options), source_(open_source_model(options.source, options.import)) {
    result_.source = source_.description;
    result_.tensors = source_.report;
  }

  ConversionResult run(std::unique_ptr<AtomicFile> output) {
    const Selection selection(options_, source_.model.settings.model);
    Settings wanted = source_.model.settings;
    wanted.model.weights.clear();  // the checkpoint that the source's training started from
    if (options_.max_sequence_length > 0) lengthen(wanted.model);
    std::optional<ObservedModel> observed;
    if (options_.data) {
      observed.emplace(source_.model, *options_.data);
      result_.data = observed->data().path();
      result_.data_tokens = observed->tokens();
    }
    if (options_.fold_scaling) {
      warn_of_few_tokens(*observed, "factors to be folded into the weights");
      result_.fold = furlong::fold_scaling(*observed, source_.model);
    }
    if (options_.attention == "auto") {
      choose(*observed, selection, wanted.model);
    } else if (changes_attention(options_)) {
      apply_request(attention_request(options_.attention), options_.features, selection.layers, selection.keep_softmax,
                    wanted.model);
    }
    const Settings settings = with_overrides(wanted, options_, source_.model.settings, source_.description);
    if (options_.fold_scaling && has_constants(source_.model.settings) && has_constants(settings))
      throw UserError(
          "--fold-scaling: the centers, scales and constants of {} belong to the weights as they are; remove it, or "
          "convert to attention without centering, saderf and oprf first",
          settings.model.attention.feature_map);
    if (!settings.model.weights.empty())
      throw UserError("--set model.weights: a converted model has the weights of {}; remove it",
                      options_.source.string());
    Model student = make_empty_model(settings, source_.model.vocabulary, Device{}, DType::float32, all_frozen);
    copy_parameters(student, selection.layers);
    if (observed && !(settings.model.attention == source_.model.settings.model.attention))
      measure(*observed, student, selection);
    compute_costs(settings, observed ? observed->length() : 0);
    stop_requests_.emplace();
    write_model(student, source_.origin, std::move(output));
    if (options_.completed) options_.completed();
    result_.settings = settings;
    return std::move(result_);
  }

 private:
  void lengthen(layers::ModelConfig& model) const {
    if (model.position == layers::Position::learned && options_.max_sequence_length < model.max_sequence_length)
      throw UserError("--max-sequence-length {}: the source has {} learned positions; expected at least as many",
                      options_.max_sequence_length, model.max_sequence_length);
    model.max_sequence_length = options_.max_sequence_length;
  }

  void choose(ObservedModel& observed, const Selection& selection, layers::ModelConfig& model) {
    if (const std::string features = features_of_others(model, selection.layers); !features.empty())
      throw UserError(
          "--attention auto: the layers that --layers leaves unchanged use {}, and a model has one feature map for all "
          "heads; name this map instead of auto",
          features);
    AutomaticOptions automatic;
    automatic.target_error = options_.target_error;
    automatic.max_features = options_.max_features;
    automatic.limits_polynomials = options_.limits_polynomials;
    automatic.length = options_.cost_at > 0 ? options_.cost_at : observed.length();
    automatic.layers = selection.layers;
    automatic.keep_softmax = selection.keep_softmax;
    result_.automatic = choose_attention(observed, model, automatic);
    if (!result_.automatic->map) return;
    const LinearChoice& map = *result_.automatic->map;
    set_features(map.candidate, map.candidate.is_random() ? map.m : 0, model.attention);
    set_head_mechanisms(model, result_.automatic->mechanisms);
  }

  /// Copies the source's values to parameters that it has; other parameters get initial values. Random projections stay
  /// as drawn if they have another distribution, or another seed in the layers that are converted.
  void copy_parameters(Model& student, const std::vector<bool>& layers) {
    const Settings &before = source_.model.settings, &now = student.settings;
    const bool other_kind = now.model.attention.random_projection != before.model.attention.random_projection;
    std::map<std::string, const Parameter*> source;
    for (const Parameter& parameter : source_.model.store->parameters()) source.emplace(parameter.name(), &parameter);
    TensorReport& report = result_.tensors;
    for (const Parameter& parameter : student.store->parameters()) {
      const auto found = source.find(parameter.name());
      if (found == source.end()) {
        student.store->draw(student.store->find(parameter.name()), static_cast<std::uint64_t>(student.settings.seed));
        report.reinitialized.push_back({parameter.name(), parameter.shape(), "new, with initial values"});
        continue;
      }
      const bool drawn_again = is_random_projection(parameter.name()) &&
                               (other_kind || (now.seed != before.seed && layers.at(layer_of(parameter.name()))));
      if (drawn_again)
        draw_again(parameter, other_kind ? "another random projection" : "another seed");
      else
        copy_parameter(*found->second, parameter);
      source.erase(found);
    }
    for (const auto& [name, parameter] : source) {
      std::erase_if(report.matched, [&](const TensorReport::Matched& one) { return one.parameter == name; });
      const bool of_attention = name.find(".attention.") != std::string::npos;
      (of_attention ? report.left_behind : report.unexpected).push_back({name, parameter->shape(), ""});
    }
    // Faults of the import are already rejected; remaining faults come from the requested settings.
    if (report.misshapen.empty() && (source_left_over().empty() || options_.import.allow_unexpected)) {
      student.store->refresh_compute_values(Stream{});
      return;
    }
    if (options_.import.on_fault) options_.import.on_fault(report);
    throw UserError("{}: the requested settings do not fit its weights: {}", options_.source.string(),
                    report.faults(true, options_.import.allow_unexpected));
  }

  /// Returns the unexpected entries that are parameters of the source, not foreign tensors.
  std::vector<TensorReport::Named> source_left_over() const {
    std::vector<TensorReport::Named> list;
    for (const TensorReport::Named& one : result_.tensors.unexpected) {
      const auto& parameters = source_.model.store->parameters();
      if (std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& p) { return p.name() == one.name; }))
        list.push_back(one);
    }
    return list;
  }

  void copy_parameter(const Parameter& from, const Parameter& to) {
    if (from.shape() == to.shape()) {
      std::copy_n(values_of(from).begin(), values_of(from).size(), values_of(to).begin());
    } else if (to.name() == "position_embedding.weight" && to.shape()[1] == from.shape()[1] &&
               to.shape()[0] > from.shape()[0]) {
      repeat_rows(values_of(from), values_of(to));
      result_.tensors.reinitialized.push_back(
          {to.name(), to.shape(),
           fmt::format("positions from {} on are initialized as p modulo {}", from.shape()[0], from.shape()[0])});
    } else if (is_random_projection(to.name())) {
      draw_again(to, "another number of features");
    } else {
      result_.tensors.misshapen.push_back({to.name(), to.shape(), "the source has " + from.shape().text()});
    }
  }

  /// Reports a random projection that the new model has drawn from its seed.
  void draw_again(const Parameter& parameter, const char* because) {
    std::erase_if(result_.tensors.matched,
                  [&](const TensorReport::Matched& one) { return one.parameter == parameter.name(); });
    result_.tensors.reinitialized.push_back(
        {parameter.name(), parameter.shape(), fmt::format("drawn again: {}", because)});
  }

  void measure(ObservedModel& observed, Model& student, const Selection& selection) {
    const layers::ModelConfig &ours = student.settings.model, &theirs = source_.model.settings.model;
    const char* const changed_key = ours.rotary_placement != theirs.rotary_placement ? "rotary_placement"
                                    : ours.query_key_norm != theirs.query_key_norm   ? "query_key_norm"
                                    : ours.position != theirs.position               ? "position"
                                    : ours.rotary_base != theirs.rotary_base         ? "rotary_base"
                                    : ours.rotary_scaling != theirs.rotary_scaling   ? "rotary_scaling"
                                                                                     : nullptr;
    if (changed_key)
      throw UserError(
          "--data: with another model.{} the queries and keys differ from the source's and cannot be compared; remove "
          "--data, and measure with furlong analyze after training",
          changed_key);
    std::vector<bool> wanted = selection.layers;  // and those that --set gives constants
    for (TensorReport::Named& one : result_.tensors.reinitialized) {
      for (const char* constant : {".statistics", ".query_center", ".key_center", ".scaling", ".oprf_a"}) {
        if (!one.name.ends_with(constant)) continue;
        one.note = "measured on the data";
        wanted.at(layer_of(one.name)) = true;
      }
    }
    calibrate(observed, student, wanted);
    std::vector<bool> changed = selection.layers;
    const HeadMechanisms mechanisms = head_mechanisms(student.settings.model);
    const bool same_keys = source_.model.settings.model.attention.window == student.settings.model.attention.window;
    for (std::size_t layer = 0; same_keys && layer < changed.size(); ++layer) {
      const auto exact = [](const std::string& name) { return layers::mechanism_info(name).is_softmax; };
      if (std::all_of(mechanisms[layer].begin(), mechanisms[layer].end(), exact)) changed[layer] = false;
    }
    result_.approximation = measure_approximation(observed, student, changed);
  }

  void compute_costs(const Settings& settings, std::int64_t data_length) {
    result_.cost_length = options_.cost_at > 0 ? options_.cost_at
                          : data_length > 0    ? data_length
                                               : settings.model.max_sequence_length;
    result_.source_cost_grows = cost_grows(source_.model.settings);
    result_.source_flops = attention_flops_per_token(source_.model.settings, result_.cost_length);
    result_.flops = attention_flops_per_token(settings, result_.cost_length);
  }

  const ConvertOptions& options_;
  std::optional<StopRequests> stop_requests_;  // while the checkpoint is written
  SourceModel source_;
  ConversionResult result_;
};

std::string attention_text(const Settings& settings) {
  const HeadMechanisms mechanisms = head_mechanisms(settings.model);
  std::map<std::string, std::int64_t> counts;
  for (const auto& heads : mechanisms) {
    for (const std::string& name : heads) ++counts[name];
  }
  const layers::AttentionConfig& attention = settings.model.attention;
  std::string text;
  for (const auto& [name, count] : counts) {
    text += (text.empty() ? "" : ", ") + name;
    const layers::MechanismInfo& mechanism = layers::mechanism_info(name);
    if (mechanism.is_hybrid) text += fmt::format(" {}", mechanism.window_in(attention));
    if (mechanism.has_features) text += fmt::format(" {} (m = {})", attention.feature_map, attention.n_features);
    if (counts.size() > 1) text += fmt::format(" in {} heads", count);
  }
  return text;
}

std::string fold_text(const FoldReport& fold) {
  return fmt::format(
      "scaling folded into the weights: factors {:.3g} to {:.3g}; mean |q| {:.3g} -> {:.3g}, |k| {:.3g} -> {:.3g}; "
      "logits of up to {:.3g} changed by at most {:.1e}\n",
      fold.least_scaling, fold.largest_scaling, fold.query_norm, fold.query_norm_after, fold.key_norm,
      fold.key_norm_after, fold.largest_logit, fold.largest_logit_change);
}

std::string approximation_text(const std::vector<HeadApproximation>& heads) {
  std::string text;
  std::int64_t worse = 0, approximate = 0;
  for (std::size_t begin = 0; begin < heads.size();) {
    std::string errors, uniform;
    const std::int64_t layer = heads[begin].layer;
    for (; begin < heads.size() && heads[begin].layer == layer; ++begin) {
      const bool exact = heads[begin].is_exact;
      errors += exact ? fmt::format(" {:>6}", "exact") : fmt::format(" {:>6.3g}", heads[begin].error);
      uniform += fmt::format(" {:>6.3g}", heads[begin].uniform_error);
      approximate += !exact;
      worse += worse_than_uniform(heads[begin].error, heads[begin].uniform_error);
    }
    text += fmt::format("  layer {:>2}  error  {}\n            uniform{}\n", layer, errors, uniform);
  }
  text += fmt::format("  {} of {} heads are worse than uniform attention\n", worse, approximate);
  return text;
}

}  // namespace

double attention_flops_per_token(const Settings& settings, std::int64_t n) {
  layers::AttentionConfig config = layers::attention_config(settings.model);
  double total = 0;
  for (const std::vector<std::string>& heads : head_mechanisms(settings.model)) {
    config.head_mechanisms = heads;
    const layers::AttentionCost cost = layers::attention_cost(config, n);
    total += cost.forward + cost.maps;
  }
  return total / static_cast<double>(n);
}

ConversionResult convert(const ConvertOptions& options) {
  check_options(options);
  if (options.data) refuse_replacing_inputs({options.data->store}, options.destination);
  refuse_replacing_inputs(files_of_model(options.source), options.destination);
  // Before the source is read, which may take long.
  auto output = std::make_unique<AtomicFile>(options.destination, options.overwrite);
  return Conversion(options).run(std::move(output));
}

std::string ConversionResult::text() const {
  std::string result = source + "\n" + tensors.text();
  if (fold) result += fold_text(*fold);
  if (automatic) result += automatic->text();
  result += fmt::format("attention: {}; {:.1f} kFLOP per token at n = {} (source: {:.1f})\n", attention_text(settings),
                        flops * 1e-3, cost_length, source_flops * 1e-3);
  if (flops > source_flops && !source_cost_grows && !cost_grows(settings))
    result += "  it costs more than the source, whose cost per token is limited as well\n";
  else if (flops > source_flops)
    result +=
        "  at this length it costs more than the source; --cost-at N prints the cost at another length (the cost per "
        "token grows with n for softmax only)\n";
  if (approximation.empty()) return result;
  return result +
         fmt::format("errors of the heads relative to exact softmax, before training, on {} tokens of {}:\n",
                     data_tokens, data) +
         approximation_text(approximation);
}

nlohmann::ordered_json ConversionResult::json() const {
  nlohmann::ordered_json object{{"source", source}, {"tensors", tensors.json()}};
  if (fold) {
    object["fold_scaling"] = {
        {"least", fold->least_scaling},         {"largest", fold->largest_scaling},
        {"query_norm", fold->query_norm},       {"query_norm_after", fold->query_norm_after},
        {"key_norm", fold->key_norm},           {"key_norm_after", fold->key_norm_after},
        {"largest_logit", fold->largest_logit}, {"largest_logit_change", fold->largest_logit_change}};
  }
  if (automatic) object["automatic"] = automatic->json();
  object["attention"] = to_json(settings).at("model").at("attention");
  object["cost"] = {{"n", cost_length}, {"flops_per_token", flops}, {"source_flops_per_token", source_flops}};
  if (!approximation.empty())
    object["approximation"] = {{"data", data}, {"tokens", data_tokens}, {"heads", as_json(approximation)}};
  return object;
}

}  // namespace furlong
