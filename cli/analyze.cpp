// furlong analyze: measures errors, weights and norms of attention.
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/analyze_report.h"
#include "cli/attention_options.h"
#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/held_output.h"
#include "cli/json_output.h"
#include "framework/core/parallel.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"

namespace furlong::command_line {
namespace {

struct AnalyzeArguments {
  SweepOptions sweep;
  ModelAnalysisOptions model;
  std::vector<std::string> maps, kinds{"orthogonal"};
  std::vector<std::int64_t> features{256};
  std::string split = "validation", weights = "ema", json, plot;
  std::int64_t draws = 0, threads = 0;
  std::uint64_t seed = 0;
  AdviceOptions advice;
  bool advise = false;

  bool of_model() const { return !model.run.empty(); }
};

/// Options that apply to only some of the three sources of queries and keys.
struct Given {
  std::vector<Option> gaussian, without_model, model, target, advice;
  Option features, kinds, draws, target_error;
};

const std::vector<std::string>& default_maps() {
  static const std::vector<std::string> names{"favor_positive", "favor_hyperbolic", "oprf",
                                              "oprf+saderf",    "taylor:1",         "taylor:2"};
  return names;
}

/// Throws UserError for options of random features if none of --feature-maps has them.
void check_random(const AnalyzeArguments& options, const Given& given) {
  const auto is_random = [](const std::string& name) { return attention_candidate(name).is_random(); };
  if (options.maps.empty() || std::any_of(options.maps.begin(), options.maps.end(), is_random)) return;
  const auto takes = [](const ops::FeatureMapInfo& info) { return info.needs_random_projection; };
  const std::string maps = fmt::format("--feature-maps {}", fmt::join(ops::feature_maps_where(takes), " or "));
  refuse_unless(false, given.features, maps);
  refuse_unless(false, given.kinds, maps);
  // Gaussian queries and keys are drawn as often, and the search of --target-error for a model's own attention draws.
  const bool gaussian = !options.of_model() && options.sweep.input.empty();
  refuse_unless(gaussian || given.target_error.is_given(), given.draws, maps);
}

void check(const AnalyzeArguments& options, const Given& given) {
  const bool from_file = !options.sweep.input.empty();
  if (options.of_model() && from_file)
    throw UserError("--input {}: the queries and keys already come from the run or checkpoint; remove one of the two",
                    options.sweep.input.string());
  for (const Option& option : given.gaussian)
    refuse_unless(!options.of_model() && !from_file, option, "Gaussian queries and keys, without RUN and --input");
  for (const Option& option : given.without_model)
    refuse_unless(!options.of_model(), option, "queries and keys without RUN");
  for (const Option& option : given.model) refuse_unless(options.of_model(), option, "RUN|CHECKPOINT");
  for (const Option& option : given.target) refuse_unless(given.target_error.is_given(), option, "--target-error");
  for (const Option& option : given.advice) refuse_unless(options.advise, option, "--advise");
  if (options.advise && !given.target_error.is_given())
    throw UserError(
        "--advise requires the largest error of a head's attention that is allowed; add --target-error E, for example "
        "--target-error 0.1");
  refuse_twice("--std", options.sweep.deviations);
  refuse_twice("--norm-scale", options.sweep.norm_scales);
  refuse_twice("--lengths", options.sweep.lengths);
  refuse_twice("--head-dim", options.sweep.widths);
  refuse_twice("--features", options.features);
  refuse_twice("--random-projection", options.kinds);
  std::vector<std::string> maps;  // full names: taylor is taylor:2
  for (const std::string& name : options.maps) maps.push_back(attention_candidate(name).name());
  refuse_twice("--feature-maps", maps);
  check_random(options, given);
  if (!options.plot.empty() && !options.plot.ends_with(".svg"))
    throw UserError("--plot {}: expected a file name that ends in .svg", options.plot);
}

/// Returns the given options that apply only to attentions that are compared with the model's own.
std::vector<std::string> candidate_options(const AnalyzeArguments& options, const Given& given) {
  std::vector<std::string> names;
  const bool target = given.target_error.is_given();
  if (given.features.is_given()) names.push_back(given.features.name());
  if (given.kinds.is_given() && !options.advise) names.push_back(given.kinds.name());
  if (given.draws.is_given() && !target) names.push_back(given.draws.name());
  return names;
}

/// Copies common options to the options of both kinds of analysis.
void settle(AnalyzeArguments& options, bool target) {
  std::vector<AttentionCandidate> candidates;
  for (const std::string& name : options.maps) candidates.push_back(attention_candidate(name));
  std::vector<layers::RandomProjectionKind> kinds;
  for (const std::string& name : options.kinds)
    kinds.push_back(value_named<layers::RandomProjectionKind>(name, "--random-projection"));
  AdviceOptions& advice = options.advice;
  advice.seed = options.seed;
  if (options.draws > 0) advice.draws = options.draws;
  advice.kind = kinds[0];
  if (options.advise) advice.candidates = candidates;
  SweepOptions& sweep = options.sweep;
  sweep.candidates = candidates;
  if (candidates.empty()) {
    for (const std::string& name : default_maps()) sweep.candidates.push_back(attention_candidate(name));
  }
  sweep.kinds = options.model.kinds = kinds;
  sweep.features = options.model.features = options.features;
  sweep.seed = options.model.seed = options.seed;
  if (options.draws > 0) sweep.draws = options.model.draws = options.draws;
  sweep.kernel_draws = std::max<std::int64_t>(sweep.kernel_draws, sweep.draws);
  sweep.advice = options.model.advice = advice;
  sweep.advise = options.model.advise = options.advise;
  sweep.find_features = options.model.find_features = target;
  options.model.candidates = candidates;
  options.model.split = split_from_name(options.split);
  options.model.weights = weights_named(options.weights);
}

void refuse_input(const AnalyzeArguments& options, const std::string& output, const char* option) {
  if (output.empty()) return;
  refuse_replacing_inputs({options.sweep.input.string(), options.model.store.string()}, output, option);
  if (options.of_model()) refuse_replacing_inputs(files_of_run(options.model.run), output, option);
  refuse_replacing_data(output, option);
}

/// Result files. They are created before the work, so that a wrong path fails early, and appear only when complete.
class Files {
 public:
  explicit Files(const AnalyzeArguments& options) {
    if (!options.json.empty() && options.json == options.plot)
      throw UserError("--json-file and --plot are the same file, {}; choose another name for one", options.json);
    refuse_input(options, options.json, "--json-file");
    refuse_input(options, options.plot, "--plot");
    if (!options.json.empty()) json_.emplace(options.json);
    if (!options.plot.empty()) plot_.emplace(options.plot);
  }

  void write(const Json& object, const Plot& plot) {
    if (json_) {
      json_->write(json_text(object));
      json_->commit();
    }
    if (plot_) {
      plot_->write(svg_of(plot));
      plot_->commit();
    }
  }

 private:
  std::optional<AtomicFile> json_, plot_;
};

Json with_common(const AnalyzeArguments& options, Json object) {
  object["draws"] = options.of_model() ? options.model.draws : options.sweep.draws;
  object["seed"] = options.seed;
  if (options.sweep.find_features) {
    object["target_error"] = options.advice.target_error;
    object["max_features"] = options.advice.max_features;
  }
  return object;
}

void run_sweep(const AnalyzeArguments& options) {
  const SweepOptions& sweep = options.sweep;
  Files files(options);
  const std::string source = sweep.input.empty() ? "Gaussian queries, keys and values" : sweep.input.string();
  const char* const direction = sweep.causal ? "causal" : "bidirectional";
  std::vector<SweepSetting> settings;
  Json results = Json::array();
  sweep_attention(sweep, [&](const SweepSetting& setting) {
    if (settings.empty())
      fmt::print("{}, {}; errors relative to exact softmax, medians over {} draw{}, means over heads\n", source,
                 direction, sweep.draws, sweep.draws == 1 ? "" : "s");
    print_setting(setting, sweep);
    std::fflush(stdout);
    settings.push_back(setting);
    results.push_back(as_json(setting));
  });
  files.write(with_common(options, {{"furlong", {{"version", version()}, {"commit", commit()}}},
                                    {"source", source},
                                    {"causal", sweep.causal},
                                    {"kernel_draws", sweep.kernel_draws},
                                    {"settings", results}}),
              plot_of(settings));
}

void run_model(const AnalyzeArguments& options) {
  Files files(options);
  std::vector<LayerAnalysis> layers;
  Json object, results = Json::array();
  analyze_model(
      options.model,
      [&](const ModelAnalysis& analysis) {
        const char* const direction = analysis.causal ? "causal" : "bidirectional";
        fmt::print(
            "{} (step {}) on the {} split of {}: {} tokens in rows of up to {}, {}; errors relative to exact softmax\n",
            analysis.checkpoint.string(), analysis.step, options.split, analysis.data, analysis.tokens,
            analysis.sequence_length, direction);
        std::fflush(stdout);
        object = {{"furlong", {{"version", version()}, {"commit", commit()}}},
                  {"checkpoint", analysis.checkpoint.string()},
                  {"step", analysis.step},
                  {"data", analysis.data},
                  {"data_changed", analysis.data_changed ? Json(*analysis.data_changed) : Json()},
                  {"split", options.split},
                  {"tokens", analysis.tokens},
                  {"causal", analysis.causal}};
      },
      [&](const LayerAnalysis& layer) {
        print_layer(layer, options.model);
        std::fflush(stdout);
        layers.push_back(layer);
        results.push_back(as_json(layer));
      });
  object["layers"] = results;
  files.write(with_common(options, object), plot_of(layers));
}

constexpr const char* analyze_footer =
    "Without RUN and --input, queries and keys are Gaussian. The default --std range includes large query and key "
    "norms, where FAVOR+ is inaccurate.\n"
    "\n"
    "Columns:\n"
    "  error       |output - softmax output| / |softmax output| in Frobenius norms. The row 'uniform' is the mean of "
    "all visible values, which a useful attention has to beat\n"
    "  kernel var  mean over pairs of Var(estimate) / kernel², over draws of the random projection\n"
    "  kernel error  root mean square of estimate / kernel - 1, with bias\n"
    "  effective   effective number of features (Kish 1965) of a query's denominator Σ w_f: (Σ|w|)² / Σ w², at most m\n"
    "  TV          total variation distance of the weights to softmax's and to uniform weights, over up to 64 queries "
    "of the first sequence; '-' if weights can be negative or need not sum to 1\n"
    "\n"
    "A model's sliding window (model.attention.window) applies to softmax, uniform attention and all feature maps "
    "here, as it does after a conversion, and to their costs.\n"
    "\n"
    "Attention mechanisms are written like taylor:2 or oprf+centering+saderf (oprf: Likhosherstov et al. 2022; saderf, "
    "a scaling: Likhosherstov et al. 2023). Centers, scaling and oprf's constant are estimated from the queries and "
    "keys of the analysis; hedgehog has no learned weights here. Everything is computed in float64 on the CPU. Runtime "
    "is quadratic in n, because exact softmax is computed.\n"
    "Costs are floating point operations of forward per token and head, see furlong bench attention --help.";

void add_sources(Command command, AnalyzeArguments& options) {
  command.add_option("run", options.model.run, "A run directory or checkpoint: its layers are analyzed on its data")
      .value_name("RUN|CHECKPOINT");
  command
      .add_option(
          "--input", options.sweep.input,
          "HDF5 file with query, key, value, mask and documents, as for furlong attend; other datasets are ignored")
      .value_name("FILE");
}

void add_gaussian(Command command, SweepOptions& sweep, Given& given) {
  given.gaussian = {
      command
          .add_option("--std", sweep.deviations,
                      "Without RUN and --input: standard deviations of the entries of q and k")
          .shows_default()
          .separated_by(',')
          .range(0.0, 1e6)
          .value_name("S,..."),
      command.add_option("--lengths", sweep.lengths, "Without RUN and --input: sequence lengths n, such as 1k,4k")
          .shows_default()
          .separated_by(',')
          .in_tokens()
          .range(1, 1 << 20)
          .value_name("N,..."),
      command.add_option("--head-dim", sweep.widths, "Without RUN and --input: head dimensions d")
          .shows_default()
          .separated_by(',')
          .range(1, 1 << 14)
          .value_name("D,...")};
  given.without_model = {
      command.add_option("--norm-scale", sweep.norm_scales, "Without RUN: factors that multiply q and k")
          .shows_default()
          .separated_by(',')
          .range(0.0, 1e6)
          .value_name("X,..."),
      command.add_flag("--causal", sweep.causal,
                       "Without RUN: a query attends to itself and earlier tokens (otherwise to all)")};
}

void add_model(Command command, AnalyzeArguments& options, Given& given) {
  ModelAnalysisOptions& model = options.model;
  given.model = {
      command.add_option("--data", model.store, "With RUN: tokenized dataset (default: that of the model's training)")
          .value_name("DATASET"),
      add_split(command, options.split, "With RUN: part of the dataset"),
      command
          .add_option("--sequence-length", model.sequence_length, "With RUN: tokens in a row (default: as in training)")
          .range(1, 1000000000),
      command.add_option("--batch-size", model.batch_size, "With RUN: rows in a batch")
          .shows_default()
          .range(1, 1000000),
      command
          .add_option("--batches", model.batches,
                      "With RUN: number of batches: the first ones, or random ones of documents with labels")
          .shows_default()
          .range(1, 1000000),
      add_weights(command, options.weights)};
}

void add_attentions(Command command, AnalyzeArguments& options, Given& given) {
  command
      .add_option(
          "--feature-maps", options.maps,
          fmt::format(
              "Attention mechanisms to compare with softmax: NAME[:ORDER][+centering][+saderf], NAME one of {}. "
              "Default: {}; with RUN, the model's own, or favor_positive for softmax; with --advise, a "
              "built-in list",
              fmt::join(feature_map_names(), ", "), fmt::join(default_maps(), ", ")))
      .separated_by(',')
      .value_name("NAME,...");
  given.features = command.add_option("--features", options.features, "Numbers m of random features")
                       .shows_default()
                       .separated_by(',')
                       .range(1, 1 << 20)
                       .value_name("M,...");
  given.target_error =
      command
          .add_option("--target-error", options.advice.target_error,
                      "Find the smallest m with this error, for each attention mechanism with random features")
          .range(1e-12, 1e3)
          .value_name("E");
  command.add_flag("--advise", options.advise,
                   "Report the cheapest attention mechanism and m that reaches --target-error, for each head");
  given.target = {command
                      .add_option("--search-limit", options.advice.max_features,
                                  "With --target-error: largest m to try; if given, it also bounds the polynomials of "
                                  "--advise")
                      .shows_default()
                      .range(2, 1 << 20)
                      .value_name("M")};
  given.advice = {command
                      .add_option("--cost-at", options.advice.length,
                                  "With --advise: sequence length for the costs (default: that of the data)")
                      .range(1, 1 << 30)
                      .value_name("N")};
  given.kinds = command
                    .add_option("--random-projection", options.kinds,
                                "Distributions of the random projection; --advise uses the first")
                    .shows_default()
                    .separated_by(',')
                    .one_of(names_of_all<layers::RandomProjectionKind>())
                    .value_name("KIND,...");
  given.draws = command
                    .add_option("--draws", options.draws,
                                "Random projections whose median error is reported (default: 5; 3 with RUN, and in the "
                                "search of --target-error and --advise)")
                    .range(1, 10000);
  command.add_option("--seed", options.seed, "Seed of all random numbers").shows_default();
}

void add_analyze_attention(Command analyze_command) {
  const Command command = analyze_command.add_subcommand(
      "attention", "Measure the error of linear attention against exact softmax and uniform attention");
  command.footer(analyze_footer);
  command.examples({
      "furlong analyze attention --features 64,256,1024 --std 0.5 --plot error.svg",
      "furlong analyze attention runs/quickstart --target-error 0.1 --advise --cost-at 65536",
  });
  const auto options = std::make_shared<AnalyzeArguments>();
  const auto given = std::make_shared<Given>();
  add_sources(command, *options);
  add_attentions(command, *options, *given);
  add_model(command, *options, *given);
  add_gaussian(command, options->sweep, *given);
  command.add_option("--plot", options->plot, "Write the errors as a plot to this file").value_name("FILE.svg");
  add_threads(command, options->threads);
  command.add_option("--json-file", options->json, "Write all results to this file as JSON")
      .value_name("FILE")
      .common();
  command.action([=] {
    check(*options, *given);
    set_thread_count(static_cast<int>(options->threads));
    options->advice.limits_polynomials = given->target[0].is_given();
    settle(*options, given->target_error.is_given());  // copies the advice
    options->model.candidate_options = candidate_options(*options, *given);
    if (options->of_model()) {
      run_model(*options);
    } else {
      run_sweep(*options);
    }
  });
}

}  // namespace

void add_analyze(Command program, int& /*status*/) {
  const Command analyze =
      program.add_subcommand("analyze", "Analyze the attention of a model, or of random or given tensors");
  analyze.require_subcommand();
  analyze.examples({
      "furlong analyze attention --features 64,256",
      "furlong analyze attention runs/quickstart --target-error 0.1 --advise",
  });
  add_analyze_attention(analyze);
}

}  // namespace furlong::command_line
