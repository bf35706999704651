// furlong evaluate: measures a trained model on held-out data.
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/attention_options.h"
#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/evaluate_report.h"
#include "cli/held_output.h"
#include "cli/json_output.h"
#include "datasets/samplers/labeled_source.h"
#include "evaluation/data_change.h"
#include "evaluation/measures/confusion_matrix.h"
#include "evaluation/measures/label_measures.h"
#include "evaluation/predictions.h"
#include "evaluation/sequences/hidden_states.h"
#include "framework/core/device.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"
#include "trainers/model/objective.h"
#include "trainers/train/validation.h"

namespace furlong::command_line {
namespace {

/// Returns what to do about a dataset whose vocabulary differs from the model's.
std::string hint_of(const Model& model, const Vocabulary& vocabulary) {
  if (model.settings.objective.learns_labels() && vocabulary.labels().empty())
    return "; furlong predict applies this model to sequences without labels";
  return difference_hint(vocabulary, model.vocabulary);
}

/// Returns ", labels no, yes" for a model that predicts labels.
std::string labels_of(const Settings& settings, const Vocabulary& vocabulary) {
  if (!settings.objective.learns_labels()) return "";
  return vocabulary.labels().empty() ? ", no labels" : ", labels " + config::join(vocabulary.labels(), ", ");
}

struct EvaluateArguments {
  std::string run, dataset, split = "validation", sampler, device = "auto", weights = "ema", suite;
  std::int64_t sequence_length = 0, batch_size = 0, threads = 0, max_batches = 0, samples = 64;
  std::vector<std::int64_t> lengths;
  std::optional<std::uint64_t> resamples, seed;
  std::filesystem::path predictions;
  bool by_position = false, json = false;
};

/// A split of a dataset, as a model reads it.
struct SplitData {
  std::unique_ptr<Dataset> data;
  Split split;
  std::int64_t length, batch_size;

  /// The dataset with the split: of a mixture, only the first dataset is evaluated.
  const std::string& path() const { return data->stores().empty() ? data->path() : data->stores().front()->path(); }
};

SplitData open_split(Model& model, const EvaluateArguments& options, const std::string& path) {
  const Settings& settings = model.settings;
  if (!options.sampler.empty()) {
    if (settings.data.task != "none" || settings.data.stateful || settings.objective.learns_labels())
      throw UserError("--sampler does not apply: {} determines the rows of this model's data; remove it",
                      settings.data.task != "none" ? "data.task"
                      : settings.data.stateful     ? "data.stateful"
                                                   : "objective.name");
    model.settings.data.sampler = options.sampler == "documents" ? "documents" : "sequential";
  }
  if (settings.data.task == "none" && settings.data.mixture().empty() && options.dataset.empty())
    throw UserError("{}: the model was imported, its config names no dataset; add --data DATASET", path);
  if (settings.data.task != "none" && !options.dataset.empty())
    throw UserError("--data does not apply: the model was trained on {}; remove it", open_data(settings.data)->path());
  DataSettings data_settings = settings.data;
  if (!options.dataset.empty()) data_settings.use(options.dataset);
  SplitData found{open_data(data_settings), split_from_name(options.split),
                  options.sequence_length > 0 ? options.sequence_length : settings.data.sequence_length,
                  options.batch_size > 0 ? options.batch_size : settings.data.batch_size};
  const Dataset& data = *found.data;
  const Vocabulary vocabulary = model_vocabulary(settings, data.vocabulary());
  if (!(vocabulary == model.vocabulary))
    throw UserError("{}: the dataset's vocabulary ({}{}) differs from the model's ({}{}){}", data.path(),
                    vocabulary.description(), labels_of(settings, vocabulary), model.vocabulary.description(),
                    labels_of(settings, model.vocabulary), hint_of(model, vocabulary));
  if (settings.model.position == layers::Position::learned && found.length > settings.model.max_sequence_length) {
    throw UserError("--sequence-length {}: the model has {} learned positions; expected at most as many", found.length,
                    settings.model.max_sequence_length);
  }
  if (settings.objective.pooling == ops::Pooling::first && found.length < 2)
    throw UserError(
        "--sequence-length {}: the <class> token of objective.pooling: class_token takes one position; expected at "
        "least 2",
        found.length);
  return found;
}

/// Returns whether each document, or pair, has one class.
bool learns_classes(const Settings& settings) {
  return settings.objective.learns_labels() && settings.objective.label_kind() == LabelKind::classes;
}

/// Warns about labels that no sample has: means over labels look as if they covered them.
void warn_of_absent_labels(const Json& measures, bool counted_as_zero, const EvaluateArguments& options,
                           const std::string& path) {
  constexpr std::size_t most_named = 5;
  if (!measures.contains("labels")) return;
  std::vector<std::string> absent;
  for (const auto& [label, of_label] : measures["labels"].items())
    if (of_label.value("samples", 1) == 0) absent.push_back(foreign::printable(label));
  if (absent.empty()) return;
  const std::size_t n_absent = absent.size();
  absent.resize(std::min(n_absent, most_named));
  log_warn("{}: {}{} split has no samples of {} of {} labels: {}{}; {}", path,
           options.max_batches > 0 ? "the evaluated part of the " : "the ", options.split, n_absent,
           measures["labels"].size(), config::join(absent, ", "),
           n_absent > most_named ? fmt::format(" and {} more", n_absent - most_named) : "",
           counted_as_zero ? "f1_macro counts them as 0" : "means over labels do not measure them");
}

std::unique_ptr<BatchSource> source_of(const Model& model, const SplitData& on, const EvaluateArguments& options) {
  return evaluation_source(model.settings, model.vocabulary, *on.data, on.split, on.length, on.batch_size,
                           options.max_batches);
}

/// Returns the index in the dataset of each sample's document or pair; empty for models of tokens.
std::vector<std::uint64_t> documents_of(const Model& model, const SplitData& on, const EvaluateArguments& options) {
  if (!model.settings.objective.learns_labels()) return {};
  const auto source = source_of(model, on, options);
  return dynamic_cast<const LabeledSource&>(*source).documents();
}

/// What is measured in one pass over a split.
struct Findings {
  Evaluation found;
  UnigramBaseline baseline;
  std::vector<Metric> metrics;     ///< of classes
  Json measures = Json::object();  ///< of labels
  std::vector<ContextRange> positions;
  std::vector<LengthLoss> lengths;
};

/// Rows of the longest of --lengths in a batch: by default as many as hold the tokens of a training batch.
std::int64_t rows_of_longest(const Settings& settings, const EvaluateArguments& options) {
  if (options.batch_size > 0) return options.batch_size;
  const std::int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  return std::max<std::int64_t>(1, settings.data.batch_size * settings.data.sequence_length / longest);
}

/// `file`: of the predictions, or null.
Findings measure(Model& model, const SplitData& on, const EvaluateArguments& options, const Bootstrap& bootstrap,
                 PredictionFile* file) {
  const Settings& settings = model.settings;
  Findings findings;
  if (options.by_position) require_causal(model, "--by-position");
  if (file != nullptr) {
    refuse_replacing_inputs({on.path()}, options.predictions, "--predictions");
    file->set_documents(documents_of(model, on, options));
  }
  if (!options.lengths.empty())
    findings.lengths = losses_by_length(model, *on.data, on.split, options.lengths, rows_of_longest(settings, options),
                                        options.max_batches);
  if (learns_classes(settings)) {
    const auto source = source_of(model, on, options);
    const LabelPredictions predicted = predict_labels(model, *source, on.batch_size, options.max_batches);
    findings.found = predicted.found;
    findings.metrics = class_metrics(predicted.classes, bootstrap);
    findings.measures = ConfusionMatrix(predicted.classes).to_json(model.vocabulary.labels());
    if (file) file->write_labels(predicted.classes, model.vocabulary.labels());
  } else if (settings.objective.learns_labels()) {
    LabelMeasures measures(model);
    const LabelKind kind = settings.objective.label_kind();
    const auto write_tokens = [&](std::uint64_t first, const Batch& batch, const ops::CrossEntropyResult&) {
      file->write_token_labels(first, batch, measures.logits(), model.vocabulary);
    };
    findings.found = evaluate(model, *on.data, on.split, on.length, on.batch_size, options.max_batches, measures.loss(),
                              {}, file && kind == LabelKind::tokens ? BatchObserver(write_tokens) : BatchObserver());
    findings.measures = measures.to_json();
    const std::vector<std::string>& labels = model.vocabulary.labels();
    if (file && kind == LabelKind::numbers)
      file->write_numbers(measures.predicted(), on.data->stores().front()->label_numbers(), labels);
    if (file && kind == LabelKind::sets) file->write_sets(measures.predicted(), measures.targets(), labels);
  } else {
    ContextLosses positions(settings.data.stateful);
    const auto observe = [&](std::uint64_t first, const Batch& batch, const ops::CrossEntropyResult& result) {
      const std::vector<double> losses = doubles_of(result.row_losses);
      if (options.by_position) positions.add(batch, losses);
      if (file) file->write_rows(first, batch, losses);
    };
    const bool observes = options.by_position || file;
    findings.found = evaluate(model, *on.data, on.split, on.length, on.batch_size, options.max_batches, {}, {},
                              observes ? BatchObserver(observe) : BatchObserver());
    findings.positions = positions.ranges();
  }
  findings.baseline =
      chance(settings, model.vocabulary, *on.data, on.split, on.length, on.batch_size, options.max_batches);
  if (file) file->commit();
  return findings;
}

/// Returns what a row of an evaluation is, as --sampler names it.
std::string rows_of(const Settings& settings) {
  if (settings.data.sampler == "documents" || settings.objective.learns_labels()) return "documents";
  return settings.data.stateful || settings.data.sampler == "stream" ? "stream" : "windows";
}

/// After the results are printed: a script must not continue with them.
void require_finite(bool finite, const std::string& path) {
  if (!finite)
    throw MachineError("{}: a loss is not finite, because numbers overflow in the model; check its weights and dtype",
                       path);
}

bool is_finite(const Findings& findings) {
  return std::isfinite(findings.found.loss) &&
         std::all_of(findings.lengths.begin(), findings.lengths.end(),
                     [](const LengthLoss& one) { return std::isfinite(one.found.loss); });
}

void run_suite(Model& model, const EvaluateArguments& options) {
  const RecallSuiteOptions suite{
      .lengths = options.lengths, .samples = options.samples, .seed = options.seed.value_or(1)};
  bool begun = false;
  const auto print_row = [&](const RecallResult& result) {
    if (!std::exchange(begun, true)) {
      fmt::print("{} (step {}): suite {}, {} sequences of each task and length, seed {}\n", model.checkpoint,
                 model.step, options.suite, suite.samples, suite.seed);
      print_recall_head();
    }
    print_recall(result);
  };
  const auto results =
      recall_suite(model, suite, options.json ? std::function<void(const RecallResult&)>() : print_row);
  if (options.json) {
    Json object = origin_of(model);
    object.update(
        {{"suite", options.suite}, {"samples", suite.samples}, {"seed", suite.seed}, {"results", as_json(results)}});
    print_json(object);
  }
  require_finite(
      std::all_of(results.begin(), results.end(), [](const RecallResult& one) { return std::isfinite(one.loss); }),
      model.checkpoint);
}

void run(const EvaluateArguments& options) {
  set_thread_count(static_cast<int>(options.threads));
  const std::filesystem::path path = checkpoint_of(options.run);
  std::optional<PredictionFile> file;  // from now on: a wrong path and a second writer fail before the reading
  if (!options.predictions.empty()) {
    refuse_replacing_inputs(files_of_run(options.run), options.predictions, "--predictions");
    refuse_replacing_data(options.predictions, "--predictions");
    file.emplace(options.predictions);
  }
  const CheckpointReader checkpoint = CheckpointReader::open(path);
  Model model = load_model(checkpoint, device_from_name(options.device), weights_named(options.weights));
  const Settings& settings = model.settings;
  require_output_layer(settings, path.string());
  if (!options.suite.empty()) return run_suite(model, options);
  const bool classes = learns_classes(settings);
  if (!classes && (options.resamples || options.seed))
    throw UserError("{0} applies only to {1}; remove {0}", options.resamples ? "--bootstrap" : "--seed",
                    options.resamples ? "classification models" : "--suite and --bootstrap");
  if (options.seed && options.resamples == 0)
    throw UserError("--seed has no effect with --bootstrap 0; remove it, or give a number of resamples");
  const Bootstrap bootstrap{.resamples = static_cast<std::int64_t>(options.resamples.value_or(1000)),
                            .seed = options.seed.value_or(1)};
  const SplitData on = open_split(model, options, path.string());
  const std::optional<bool> changed =
      has_changed_since_training(checkpoint, settings.data, options.dataset, *on.data, on.split);
  const Findings findings = measure(model, on, options, bootstrap, file ? &*file : nullptr);
  const bool of_sets = settings.objective.learns_labels() && settings.objective.label_kind() == LabelKind::sets;
  warn_of_absent_labels(findings.measures, of_sets, options, on.path());
  if (options.json) {
    Json object = origin_of(model);
    object.update({{"data", on.path()},
                   {"data_changed", changed ? Json(*changed) : Json()},
                   {"split", options.split},
                   {"sampler", rows_of(settings)},
                   {"sequence_length", on.length},
                   {"batch_size", on.batch_size},
                   {"max_batches", options.max_batches > 0 ? Json(options.max_batches) : Json()}});
    object.update(as_json(findings.found, findings.baseline, model));
    if (classes) object["metrics"] = as_json(findings.metrics, model.vocabulary.labels());
    object.update(findings.measures);
    if (options.by_position) object["by_position"] = as_json(findings.positions);
    if (!options.lengths.empty()) object["lengths"] = as_json(findings.lengths);
    print_json(object);
    return require_finite(is_finite(findings), path.string());
  }
  const std::string rows = rows_of(settings);
  fmt::print("{} (step {}) on the {} split of {}, {} tokens in {} {}\n", model.checkpoint, model.step, options.split,
             on.path(), findings.found.tokens,
             rows == "documents" ? "documents of at most"
             : rows == "stream"  ? "segments of at most"
                                 : "windows of",
             on.length);
  print_evaluation(findings.found, findings.baseline, model);
  if (classes) print_metrics(findings.metrics, bootstrap, model.vocabulary.labels());
  print_measures(findings.measures);
  if (options.by_position) print_positions(findings.positions);
  if (!options.lengths.empty()) print_lengths(findings.lengths);
  require_finite(is_finite(findings), path.string());
}

}  // namespace

void add_evaluate(Command program, int& /*status*/) {
  constexpr const char* suite_section = "Options of --suite recall";
  const Command command =
      program.add_subcommand("evaluate", "Evaluate loss, accuracy and other metrics on held-out data");
  const auto options = std::make_shared<EvaluateArguments>();
  command.add_option("run", options->run, checkpoint_description).required().value_name("RUN|CHECKPOINT");
  std::vector<Option> of_data;  // options that need a dataset
  of_data.push_back(
      command
          .add_option("--data", options->dataset,
                      "Tokenized dataset (default: that of the model's training; required for an imported model)")
          .value_name("DATASET"));
  of_data.push_back(add_split(command, options->split));
  of_data.push_back(command
                        .add_option("--sequence-length", options->sequence_length,
                                    "Tokens in a window, or in the longest document (default: as in training)")
                        .range(1, 1000000000));
  of_data.push_back(
      command.add_option("--batch-size", options->batch_size, "Sequences in a batch (default: as in training)")
          .range(1, 1000000));
  of_data.push_back(
      command
          .add_option("--max-batches", options->max_batches,
                      "Evaluate only N batches: the first ones, or random ones of documents with labels (default: all)")
          .positive()
          .value_name("N"));
  of_data.push_back(
      command
          .add_option("--sampler", options->sampler,
                      "windows: rows of equal length, across documents; documents: a row is one document, or a part "
                      "of it (default: as in training)")
          .one_of({"windows", "documents"}));
  of_data.push_back(
      command.add_flag("--by-position", options->by_position, "Report the loss by position in the context"));
  command
      .add_option("--lengths", options->lengths,
                  "Report the loss of the same tokens with windows, or documents, of each length, such as 1k,4k (k: "
                  "1,024). With --suite: lengths of its sequences")
      .separated_by(',')
      .in_tokens()
      .range(1, 1000000000)
      .value_name("N,...");
  of_data.push_back(command
                        .add_option("--predictions", options->predictions,
                                    "File of the prediction for each sample, or labeled token, or the loss of "
                                    "each sequence: .tsv or .jsonl")
                        .value_name("FILE"));
  of_data.push_back(
      command
          .add_option("--bootstrap", options->resamples,
                      "Classification: number of bootstrap resamples for 95% confidence intervals; 0: none "
                      "(default: 1000)")
          .range(0, 1000000)
          .value_name("N"));
  const Option suite = command
                           .add_option("--suite", options->suite,
                                       "Measure in-context recall (associative recall and others) on synthetic "
                                       "sequences. Needs no dataset; options that describe one do not apply")
                           .one_of({"recall"})
                           .section(suite_section);
  command.add_option("--samples", options->samples, "Sequences of each task and length of --suite")
      .shows_default()
      .range(1, 1024)
      .needs(suite)
      .value_name("N")
      .section(suite_section);
  command.add_option("--seed", options->seed, "Seed of --suite and --bootstrap (default: 1)").value_name("N");
  add_weights(command, options->weights);
  add_device(command, options->device);
  add_threads(command, options->threads);
  add_json(command, options->json);
  command.footer(
      "The baseline predicts from frequencies alone. Its loss uses the frequencies of tokens (or labels) in the "
      "training split. Its accuracy is the fraction of targets equal to the most frequent token (or label). "
      "docs/evaluate.md describes all measurements.");
  command.examples({
      "furlong evaluate runs/quickstart",
      "furlong evaluate runs/quickstart --split test --weights raw --json",
      "furlong evaluate runs/quickstart --by-position --lengths 256,1k,4k",
      "furlong evaluate runs/quickstart --suite recall",
  });
  command.action([=] {
    for (const Option& option : of_data) refuse_unless(!suite.is_given(), option, "evaluation without --suite");
    run(*options);
  });
}

}  // namespace furlong::command_line
