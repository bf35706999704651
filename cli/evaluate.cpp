// furlong evaluate: how good a trained model is on held-out data.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "evaluation/chance.h"
#include "framework/core/device.h"
#include "framework/core/parallel.h"
#include "trainers/model/objective.h"
#include "trainers/train/validation.h"

namespace furlong::command_line {
namespace {

struct Options {
  std::string run, store, split = "validation", sampler, device = "auto", weights = "averaged";
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

/// ", labels no, yes" where labels are learned.
std::string labels_of(const Settings& settings, const Vocabulary& vocabulary) {
  if (!settings.objective.learns_labels()) return "";
  return vocabulary.labels().empty() ? ", no labels" : ", labels " + config::join(vocabulary.labels(), ", ");
}

/// Nothing where a token has no length in bytes of its own, or the targets are not all of the text.
std::optional<double> bits_per_byte(const Evaluation& found, const Chance& chance) {
  if (chance.bytes == 0) return std::nullopt;
  return found.bits_per_token() * (static_cast<double>(found.targets) / static_cast<double>(chance.bytes));
}

/// What was measured, by name: labels have neither perplexity nor bits a token.
nlohmann::ordered_json as_json(const Evaluation& found, const Chance& chance, const Model& model) {
  const ObjectiveSettings& objective = model.settings.objective;
  nlohmann::ordered_json object{{"objective", name_of(objective.name)}, {"loss", found.loss}};
  if (!objective.learns_labels()) {
    const auto bits = bits_per_byte(found, chance);
    object["perplexity"] = found.perplexity();
    object["bits_per_token"] = found.bits_per_token();
    object["bits_per_byte"] = bits ? nlohmann::ordered_json(*bits) : nlohmann::ordered_json();
  }
  object["accuracy"] = found.accuracy;
  object["chance_loss"] = chance.loss;
  object["chance_accuracy"] = chance.accuracy;
  object["targets"] = found.targets;
  object["tokens"] = found.tokens;
  object["tokens_per_second"] = static_cast<double>(found.tokens) / std::max(found.seconds, 1e-9);
  return object;
}

void print(const Evaluation& found, const Chance& chance, const Model& model) {
  const ObjectiveSettings& objective = model.settings.objective;
  const double rate = static_cast<double>(found.tokens) / std::max(found.seconds, 1e-9);
  if (objective.learns_labels()) {
    fmt::print("  loss           {:.5f} nats a label\n  accuracy       {:.4f} of {} labels\n", found.loss,
               found.accuracy, found.targets);
  } else {
    fmt::print(
        "  loss           {:.5f} nats a token{}\n  perplexity     {:.4f}\n  bits a {:<8} {:.4f}\n  accuracy       "
        "{:.4f}\n",
        found.loss,
        objective.name == Objective::masked_tokens ? fmt::format(", over {} masked ones", found.targets) : "",
        found.perplexity(), unit_of(model.vocabulary), found.bits_per_token(), found.accuracy);
  }
  const auto bits = bits_per_byte(found, chance);
  if (bits && model.vocabulary.tokenizer()) fmt::print("  bits a byte     {:.4f}\n", *bits);
  fmt::print("  by chance      loss {:.5f}, accuracy {:.4f}, from the frequency of {} alone\n", chance.loss,
             chance.accuracy, objective.learns_labels() ? "labels" : "tokens");
  fmt::print("  speed          {:.0f} tokens/s\n", rate);
}

void run(const Options& options) {
  set_thread_count(static_cast<int>(options.threads));
  const std::filesystem::path path = checkpoint_of(options.run);
  const CheckpointReader checkpoint = CheckpointReader::open(path);
  Model model = load_model(checkpoint, device_from_name(options.device),
                           options.weights == "raw" ? Weights::raw : Weights::averaged_if_present);
  const Settings& settings = model.settings;
  require_output_layer(settings, path.string());
  if (!options.sampler.empty()) {
    if (settings.data.task != "none" || settings.data.carry_state || settings.objective.learns_labels())
      throw UserError("--sampler: the rows of this model's data are given by {}",
                      settings.data.task != "none" ? "data.task"
                      : settings.data.carry_state  ? "data.carry_state"
                                                   : "objective.name");
    model.settings.data.sampler = options.sampler == "documents" ? "documents" : "sequential";
  }
  if (settings.data.task == "none" && settings.data.store.empty() && options.store.empty())
    throw UserError("{}: its config names no token store, since the model was not trained here; expected --data STORE",
                    path.string());
  if (settings.data.task != "none" && !options.store.empty())
    throw UserError("--data: the model was trained on {} and has no use for a store", open_data(settings.data)->path());
  DataSettings data_settings = settings.data;
  if (!options.store.empty()) data_settings.store = options.store;
  const std::unique_ptr<Dataset> opened = open_data(data_settings);
  const Dataset& data = *opened;
  const std::string& store = data.path();
  if (!(model_vocabulary(settings, data.vocabulary()) == model.vocabulary))
    throw UserError("{}: its vocabulary ({}{}) is not the model's ({}{})", store, data.vocabulary().description(),
                    labels_of(settings, data.vocabulary()), model.vocabulary.description(),
                    labels_of(settings, model.vocabulary));
  const std::int64_t length = options.sequence_length > 0 ? options.sequence_length : settings.data.sequence_length;
  if (settings.model.position == layers::Position::learned && length > settings.model.max_sequence_length) {
    throw UserError("--sequence-length: {} is longer than the model's {} learned positions", length,
                    settings.model.max_sequence_length);
  }
  if (settings.objective.pooling == ops::Pooling::first && length < 2)
    throw UserError(
        "--sequence-length: {} leaves no room beside the <class> token of objective.pooling: class_token; expected at "
        "least 2",
        length);
  const Split split = split_from_name(options.split);
  const std::int64_t batch_size = options.batch_size > 0 ? options.batch_size : settings.data.batch_size;
  const Evaluation found = evaluate(model, data, split, length, batch_size, options.max_batches);
  const Chance by_chance = chance(settings, model.vocabulary, data, split, length, batch_size, options.max_batches);
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
  const Command command = program.add_subcommand(
      "evaluate",
      "Loss, perplexity, bits per byte and accuracy of a trained model on held-out data, beside those of chance");
  const auto options = std::make_shared<Options>();
  command
      .add_option("run", options->run,
                  "A run directory (its best checkpoint, or the newest where there is no best; of furlong finetune, "
                  "of the\nlast stage) or one checkpoint")
      .required()
      .value_name("RUN|CHECKPOINT");
  command
      .add_option("--data", options->store,
                  "The token store (default: the one it was trained on; an imported model has none)")
      .value_name("STORE");
  command.add_option("--split", options->split, "Which part of the store")
      .shows_default()
      .one_of({"train", "validation", "test"});
  command
      .add_option("--sequence-length", options->sequence_length,
                  "Tokens in a window, longest document (default: as in training)")
      .range(1, 1000000000);
  command
      .add_option("--sampler", options->sampler,
                  "windows: rows of equal length, across documents; documents: a row is one\ndocument, or a part of "
                  "it (default: as in training)")
      .one_of({"windows", "documents"});
  command.add_option("--batch-size", options->batch_size, "Windows at once (default: as in training)")
      .range(1, 1000000);
  command
      .add_option("--max-batches", options->max_batches,
                  "Only so many batches from the split's beginning (default: all)")
      .positive();
  command
      .add_option("--weights", options->weights,
                  "averaged: the moving average where the checkpoint has one; raw: the weights that were trained")
      .shows_default()
      .one_of({"averaged", "raw"});
  command.footer(
      "Chance is what the frequency of tokens (labels) alone gives: as loss their frequencies in the training split, "
      "as accuracy the share among the targets of the one that is most frequent there.");
  command.add_option("--device", options->device, "auto, cpu, cuda or cuda:N").shows_default();
  command.add_option("--threads", options->threads, "Threads; 0: all cores").shows_default().range(0, 4096);
  command.add_flag("--json", options->json, "Print JSON");
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
