// furlong analyze: what an attention is like, before one relies on it.
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/analyze_report.h"
#include "cli/attention_options.h"
#include "cli/command_line.h"
#include "framework/core/parallel.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"

namespace furlong::command_line {
namespace {

struct Options {
  SweepOptions sweep;
  ModelAnalysisOptions model;
  std::vector<std::string> maps, kinds{"orthogonal"};
  std::vector<std::int64_t> features{256};
  std::string split = "validation", weights = "averaged", json, plot;
  std::int64_t draws = 0, threads = 0;
  std::uint64_t seed = 0;
  AdviceOptions advice;
  bool advise = false;

  bool of_model() const { return !model.run.empty(); }
};

/// Options that belong to one of the three sources of queries and keys.
struct Given {
  std::vector<Option> gaussian, without_model, model, target, advice;
  Option features, kinds, draws, target_error;
};

const std::vector<std::string>& default_maps() {
  static const std::vector<std::string> names{"favor_positive", "favor_hyperbolic", "oprf",
                                              "oprf+saderf",    "taylor:1",         "taylor:2"};
  return names;
}

void check(const Options& options, const Given& given) {
  const bool from_file = !options.sweep.input.empty();
  if (options.of_model() && from_file)
    throw UserError("--input {}: a run or checkpoint brings queries and keys of its own; leave out one of the two",
                    options.sweep.input.string());
  for (const Option& option : given.gaussian)
    refuse_unless(!options.of_model() && !from_file, option, "Gaussian queries and keys, without RUN and --input");
  for (const Option& option : given.without_model)
    refuse_unless(!options.of_model(), option, "queries and keys without RUN");
  for (const Option& option : given.model) refuse_unless(options.of_model(), option, "RUN|CHECKPOINT");
  for (const Option& option : given.target) refuse_unless(given.target_error.is_given(), option, "--target-error");
  for (const Option& option : given.advice) refuse_unless(options.advise, option, "--advise");
  if (options.advise && !given.target_error.is_given())
    throw UserError("--advise: which error is wanted? Add --target-error E, for instance 0.1");
  refuse_twice("--deviation", options.sweep.deviations);
  refuse_twice("--norm-scale", options.sweep.norm_scales);
  refuse_twice("--n", options.sweep.lengths);
  refuse_twice("--d", options.sweep.widths);
  refuse_twice("--features", options.features);
  refuse_twice("--directions-kind", options.kinds);
  std::vector<std::string> maps;  // as they are named in full: taylor is taylor:2
  for (const std::string& name : options.maps) maps.push_back(attention_candidate(name).name());
  refuse_twice("--maps", maps);
  if (!options.plot.empty() && !options.plot.ends_with(".svg"))
    throw UserError(
        "--plot {}: plots are written as SVG; expected a name that ends in .svg, which browsers and rsvg-convert read",
        options.plot);
}

/// Options given that only attentions compared with the model's own would take.
std::vector<std::string> candidate_options(const Options& options, const Given& given) {
  std::vector<std::string> names;
  const bool target = given.target_error.is_given();
  if (given.features.is_given()) names.push_back(given.features.name());
  if (given.kinds.is_given() && !options.advise) names.push_back(given.kinds.name());
  if (given.draws.is_given() && !target) names.push_back(given.draws.name());
  return names;
}

/// Hands what is common to both kinds of analysis to each.
void settle(Options& options, bool target) {
  std::vector<AttentionCandidate> candidates;
  for (const std::string& name : options.maps) candidates.push_back(attention_candidate(name));
  std::vector<layers::DirectionsKind> kinds;
  for (const std::string& name : options.kinds)
    kinds.push_back(value_named<layers::DirectionsKind>(name, "--directions-kind"));
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
  options.model.weights = options.weights == "raw" ? Weights::raw : Weights::averaged_if_present;
}

/// Results in files, each whole or absent; their places are tried before the work.
class Files {
 public:
  explicit Files(const Options& options) {
    if (!options.json.empty()) json_.emplace(options.json);
    if (!options.plot.empty()) plot_.emplace(options.plot);
  }
  void write(const Json& object, const Plot& plot) {
    if (json_) {
      json_->write(object.dump(2) + "\n");
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

Json with_common(const Options& options, Json object) {
  object["draws"] = options.of_model() ? options.model.draws : options.sweep.draws;
  object["seed"] = options.seed;
  if (options.sweep.find_features) {
    object["target_error"] = options.advice.target_error;
    object["max_features"] = options.advice.most_features;
  }
  return object;
}

void run_sweep(const Options& options) {
  const SweepOptions& sweep = options.sweep;
  Files files(options);
  const std::string source = sweep.input.empty() ? "Gaussian queries, keys and values" : sweep.input.string();
  const char* const direction = sweep.causal ? "causal" : "bidirectional";
  std::vector<SweepSetting> settings;
  Json results = Json::array();
  sweep_attention(sweep, [&](const SweepSetting& setting) {
    if (settings.empty())
      fmt::print("{}, {}; errors relative to exact softmax, medians over {} draw{}\n", source, direction, sweep.draws,
                 sweep.draws == 1 ? "" : "s");
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

void run_model(const Options& options) {
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

constexpr const char* footer =
    "Without RUN and --input, q and k are Gaussian (by default of the norms at which FAVOR+ goes from useful to "
    "useless). What is told:\n"
    "  error         |output - softmax output| / |softmax output|, Frobenius norms; 'uniform' is the mean of the "
    "visible values, which any\n"
    "                attention worth its cost has to beat\n"
    "  kernel var    mean over pairs of Var(estimate) / kernel², over draws of directions; kernel error: root mean "
    "square of\n"
    "                estimate / kernel - 1, bias included\n"
    "  effective     features that carry a query's denominator Σ w_f: (Σ|w|)² / Σ w² (Kish 1965), of m\n"
    "  TV            total variation distance of the weights to softmax's and to uniform ones, over up to 64 queries "
    "of the first sequence;\n"
    "                none where weights can be negative or need not sum to 1\n"
    "Attentions are written like taylor:2 or oprf+centering+saderf. Centres, scaling and oprf's constant are estimated "
    "from the queries and\n"
    "keys at hand; hedgehog is taken without learned weights. Everything is computed in float64 on the CPU; exact "
    "softmax makes it quadratic\n"
    "in n.\n"
    "Costs are floating point operations of forward for a token and head, as in furlong bench attention --help.\n"
    "  furlong analyze attention --features 64,256,1024 --deviation 0.5 --plot error.svg\n"
    "  furlong analyze attention runs/quickstart --target-error 0.1 --advise --cost-at 65536";

void add_sources(Command command, Options& options, Given& given) {
  command.add_option("run", options.model.run, "A run directory or a checkpoint, whose layers are analyzed on data")
      .value_name("RUN|CHECKPOINT");
  command
      .add_option("--input", options.sweep.input,
                  "An HDF5 file with query, key, value, mask and documents as furlong attend reads it;\nits directions "
                  "and constants are not used")
      .value_name("FILE");
  SweepOptions& sweep = options.sweep;
  given.gaussian = {
      command.add_option("--deviation", sweep.deviations, "Gaussian: standard deviations of the entries of q and k")
          .shows_default()
          .separated_by(',')
          .one_argument()
          .range(0.0, 1e6)
          .value_name("S,..."),
      command.add_option("--n", sweep.lengths, "Gaussian: numbers of tokens")
          .shows_default()
          .separated_by(',')
          .one_argument()
          .range(1, 1 << 20)
          .value_name("N,..."),
      command.add_option("--d", sweep.widths, "Gaussian: widths of a head")
          .shows_default()
          .separated_by(',')
          .one_argument()
          .range(1, 1 << 14)
          .value_name("D,...")};
  given.without_model = {
      command.add_option("--norm-scale", sweep.norm_scales, "Factors that q and k are multiplied by")
          .shows_default()
          .separated_by(',')
          .one_argument()
          .range(0.0, 1e6)
          .value_name("X,..."),
      command.add_flag("--causal", sweep.causal, "A query sees no later key (default: it sees all)")};
  ModelAnalysisOptions& model = options.model;
  given.model = {
      command.add_option("--data", model.store, "The token store (default: the one that the model was trained on)")
          .value_name("STORE"),
      command.add_option("--split", options.split, "Which part of the store")
          .shows_default()
          .one_of({"train", "validation", "test"}),
      command.add_option("--sequence-length", model.sequence_length, "Tokens in a row (default: as in training)")
          .range(1, 1000000000),
      command.add_option("--batch-size", model.batch_size, "Rows at once").shows_default().range(1, 1000000),
      command.add_option("--batches", model.batches, "Batches from the split's beginning")
          .shows_default()
          .range(1, 1000000),
      command
          .add_option("--weights", options.weights,
                      "averaged: the moving average where the checkpoint has one; raw: the weights that were trained")
          .shows_default()
          .one_of({"averaged", "raw"})};
}

void add_attentions(Command command, Options& options, Given& given) {
  command
      .add_option("--maps", options.maps,
                  fmt::format("Attentions to compare with softmax, NAME[:ORDER][+centering][+saderf] of the feature "
                              "maps\n{}\n(default: {};\nwith RUN the model's own, and beside softmax favor_positive; "
                              "with --advise a list of its own)",
                              fmt::join(feature_map_names(), ", "), fmt::join(default_maps(), ",")))
      .separated_by(',')
      .one_argument()
      .value_name("NAME,...");
  given.features = command.add_option("--features", options.features, "Random features m")
                       .shows_default()
                       .separated_by(',')
                       .one_argument()
                       .range(1, 1 << 20)
                       .value_name("M,...");
  given.kinds =
      command.add_option("--directions-kind", options.kinds, "How directions are drawn; --advise takes the first")
          .shows_default()
          .separated_by(',')
          .one_argument()
          .one_of(names_of_all<layers::DirectionsKind>())
          .value_name("KIND,...");
  given.draws =
      command
          .add_option("--draws", options.draws,
                      "Draws that an error is the median of (default: 5; with RUN, and for the m of an error, 3)")
          .range(1, 10000);
  command.add_option("--seed", options.seed, "The same seed draws the same").shows_default();
  given.target_error = command
                           .add_option("--target-error", options.advice.target_error,
                                       "Find the m of each attention with random features that reaches E")
                           .range(1e-12, 1e3)
                           .value_name("E");
  given.target = {
      command
          .add_option(
              "--max-features", options.advice.most_features,
              "With --target-error: no m beyond is tried; given with --advise, no polynomial that has more either")
          .shows_default()
          .range(2, 1 << 20)
          .value_name("M")};
  command.add_flag("--advise", options.advise,
                   "Name, for each head, the cheapest attention and m that reaches --target-error");
  given.advice = {command
                      .add_option("--cost-at", options.advice.length,
                                  "With --advise: tell costs for sequences of so many tokens (default: the data's)")
                      .range(1, 1 << 30)
                      .value_name("N")};
}

void add_attention(Command analyze_command) {
  const Command command =
      analyze_command.add_subcommand("attention",
                                     "How far linear attention is from exact softmax, and from uniform, on "
                                     "Gaussian, given, or a model's queries and keys");
  command.footer(footer);
  const auto options = std::make_shared<Options>();
  const auto given = std::make_shared<Given>();
  add_sources(command, *options, *given);
  add_attentions(command, *options, *given);
  command.add_option("--json", options->json, "Write everything to this file as JSON").value_name("FILE");
  command.add_option("--plot", options->plot, "Write errors as a plot to this file, whose name ends in .svg")
      .value_name("FILE.svg");
  command.add_option("--threads", options->threads, "Threads; 0: all cores").shows_default().range(0, 4096);
  command.action([=] {
    check(*options, *given);
    set_thread_count(static_cast<int>(options->threads));
    settle(*options, given->target_error.is_given());
    options->advice.bounds_polynomials = given->target[0].is_given();
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
      program.add_subcommand("analyze", "Error, weights and norms of attention, and what would serve better");
  analyze.require_subcommand();
  add_attention(analyze);
}

}  // namespace furlong::command_line
