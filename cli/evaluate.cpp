// furlong evaluate: measures a trained model on held-out data.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "evaluation/unigram_baseline.h"
#include "framework/core/device.h"
#include "framework/core/parallel.h"
#include "trainers/model/objective.h"
#include "trainers/train/validation.h"

namespace furlong::command_line {
namespace {

struct Options {
  std::string run, dataset, split = "validation", sampler, device = "auto", weights = "ema";
  std::int64_t sequence_length = 0, batch_size = 0, threads = 0, max_batches = 0;
  bool json = false;
};

const char* unit_of(const Vocabulary& vocabulary) {
  switch (vocabulary.kind()) {
    case Vocabulary::Kind::bytes:
      return "byte";
    case Vocabulary::Kind::protein:
      return "residue";
    case Vocabulary::Kind::copy:
      return "symbol";
    case Vocabulary::Kind::tokenizer:
      return "token";
    default:
      return "base";
  }
}

/// Returns ", labels no, yes" for a model that predicts labels.
std::string labels_of(const Settings& settings, const Vocabulary& vocabulary) {
  if (!settings.objective.learns_labels()) return "";
  return vocabulary.labels().empty() ? ", no labels" : ", labels " + config::join(vocabulary.labels(), ", ");
}

/// Returns nothing if tokens have no length in bytes, or if the targets are not the whole text.
std::optional<double> bits_per_byte(const Evaluation& found, const UnigramBaseline& chance) {
  if (chance.bytes == 0) return std::nullopt;
  return found.bits_per_token() * (static_cast<double>(found.targets) / static_cast<double>(chance.bytes));
}

/// Returns the measurements by name. Labels have neither perplexity nor bits per token.
nlohmann::ordered_json as_json(const Evaluation& found, const UnigramBaseline& chance, const Model& model) {
  const ObjectiveSettings& objective = model.settings.objective;
  nlohmann::ordered_json object{{"objective", name_of(objective.name)}, {"loss", found.loss}};
  if (!objective.learns_labels()) {
    const auto bits = bits_per_byte(found, chance);
    object["perplexity"] = found.perplexity();
    object["bits_per_token"] = found.bits_per_token();
    object["bits_per_byte"] = bits ? nlohmann::ordered_json(*bits) : nlohmann::ordered_json();
  }
  object["accuracy"] = found.accuracy;
  object["baseline_loss"] = chance.loss;
  object["baseline_accuracy"] = chance.accuracy;
  object["targets"] = found.targets;
  object["tokens"] = found.tokens;
  object["tokens_per_second"] = static_cast<double>(found.tokens) / std::max(found.seconds, 1e-9);
  return object;
}

void print(const Evaluation& found, const UnigramBaseline& chance, const Model& model) {
  const ObjectiveSettings& objective = model.settings.objective;
  const double rate = static_cast<double>(found.tokens) / std::max(found.seconds, 1e-9);
  if (objective.learns_labels()) {
    fmt::print("  loss           {:.5f} nats per label\n  accuracy       {:.4f} of {} labels\n", found.loss,
               found.accuracy, found.targets);
  } else {
    fmt::print(
        "  loss           {:.5f} nats per token{}\n  perplexity     {:.4f}\n  bits per {:<6} {:.4f}\n  accuracy       "
        "{:.4f}\n",
        found.loss,
        objective.name == Objective::masked_tokens ? fmt::format(", over {} masked ones", found.targets) : "",
        found.perplexity(), unit_of(model.vocabulary), found.bits_per_token(), found.accuracy);
  }
  const auto bits = bits_per_byte(found, chance);
  if (bits && model.vocabulary.tokenizer()) fmt::print("  bits per byte  {:.4f}\n", *bits);
  fmt::print("  baseline       loss {:.5f}, accuracy {:.4f}, from the frequencies of {} alone\n", chance.loss,
             chance.accuracy, objective.learns_labels() ? "labels" : "tokens");
  fmt::print("  speed          {:.0f} tokens/s\n", rate);
}

void run(const Options& options) {
  set_thread_count(static_cast<int>(options.threads));
  const std::filesystem::path path = checkpoint_of(options.run);
  const CheckpointReader checkpoint = CheckpointReader::open(path);
  Model model = load_model(checkpoint, device_from_name(options.device),
                           options.weights == "raw" ? Weights::raw : Weights::ema_if_present);
  const Settings& settings = model.settings;
  require_output_layer(settings, path.string());
  if (!options.sampler.empty()) {
    if (settings.data.task != "none" || settings.data.stateful || settings.objective.learns_labels())
      throw UserError("--sampler does not apply: {} determines the rows of this model's data; remove it",
                      settings.data.task != "none" ? "data.task"
                      : settings.data.stateful     ? "data.stateful"
                                                   : "objective.name");
    model.settings.data.sampler = options.sampler == "documents" ? "documents" : "sequential";
  }
  if (settings.data.task == "none" && settings.data.dataset.empty() && options.dataset.empty())
    throw UserError("{}: the model was imported, its config names no dataset; add --data DATASET", path.string());
  if (settings.data.task != "none" && !options.dataset.empty())
    throw UserError("--data does not apply: the model was trained on the task {}; remove it",
                    open_data(settings.data)->path());
  DataSettings data_settings = settings.data;
  if (!options.dataset.empty()) data_settings.dataset = options.dataset;
  const std::unique_ptr<Dataset> opened = open_data(data_settings);
  const Dataset& data = *opened;
  const std::string& store = data.path();
  if (!(model_vocabulary(settings, data.vocabulary()) == model.vocabulary))
    throw UserError("{}: the dataset's vocabulary ({}{}) differs from the model's ({}{})", store,
                    data.vocabulary().description(), labels_of(settings, data.vocabulary()),
                    model.vocabulary.description(), labels_of(settings, model.vocabulary));
  const std::int64_t length = options.sequence_length > 0 ? options.sequence_length : settings.data.sequence_length;
  if (settings.model.position == layers::Position::learned && length > settings.model.max_sequence_length) {
    throw UserError("--sequence-length {}: the model has {} learned positions; expected at most as many", length,
                    settings.model.max_sequence_length);
  }
  if (settings.objective.pooling == ops::Pooling::first && length < 2)
    throw UserError(
        "--sequence-length {}: the <class> token of objective.pooling: class_token takes one position; expected at "
        "least 2",
        length);
  const Split split = split_from_name(options.split);
  const std::int64_t batch_size = options.batch_size > 0 ? options.batch_size : settings.data.batch_size;
  const Evaluation found = evaluate(model, data, split, length, batch_size, options.max_batches);
  const UnigramBaseline by_chance =
      chance(settings, model.vocabulary, data, split, length, batch_size, options.max_batches);
  const std::int64_t step = checkpoint.has("step") ? checkpoint.integer("step") : 0;
  if (options.json) {
    nlohmann::ordered_json object{{"checkpoint", path.string()},
                                  {"step", step},
                                  {"data", store},
                                  {"split", options.split},
                                  {"sequence_length", length}};
    object.update(as_json(found, by_chance, model));
    fmt::print("{}\n", object.dump(2));
    return;
  }
  const bool documents = settings.data.sampler == "documents" || settings.objective.learns_labels();
  fmt::print("{} (step {}) on the {} split of {}, {} tokens in {} {}\n", path.string(), step, options.split, store,
             found.tokens, documents ? "documents of at most" : "windows of", length);
  print(found, by_chance, model);
}

}  // namespace

void add_evaluate(Command program, int& /*status*/) {
  const Command command =
      program.add_subcommand("evaluate", "Measure loss, perplexity, bits per byte and accuracy on held-out data");
  const auto options = std::make_shared<Options>();
  command.add_option("run", options->run, checkpoint_description).required().value_name("RUN|CHECKPOINT");
  command
      .add_option("--data", options->dataset,
                  "Tokenized dataset (default: that of the model's training; required for an imported model)")
      .value_name("DATASET");
  add_split(command, options->split);
  command
      .add_option("--sequence-length", options->sequence_length,
                  "Tokens in a window, or in the longest document (default: as in training)")
      .range(1, 1000000000);
  command.add_option("--batch-size", options->batch_size, "Sequences in a batch (default: as in training)")
      .range(1, 1000000);
  command.add_option("--max-batches", options->max_batches, "Evaluate only the first N batches (default: all)")
      .positive()
      .value_name("N");
  command
      .add_option("--sampler", options->sampler,
                  "windows: rows of equal length, across documents; documents: a row is one document, or a part of it "
                  "(default: as in training)")
      .one_of({"windows", "documents"});
  add_weights(command, options->weights);
  add_device(command, options->device);
  add_threads(command, options->threads);
  add_json(command, options->json);
  command.footer(
      "The baseline predicts from frequencies alone. Its loss uses the frequencies of tokens (or labels) in the "
      "training split. Its accuracy is the fraction of targets equal to the most frequent token (or label).");
  command.examples({
      "furlong evaluate runs/quickstart",
      "furlong evaluate runs/quickstart --split test --weights raw --json",
  });
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
