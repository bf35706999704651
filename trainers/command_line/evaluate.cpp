// furlong evaluate: how good a trained model is on held-out data.
#include <memory>
#include <nlohmann/json.hpp>

#include "framework/core/device.h"
#include "framework/core/parallel.h"
#include "trainers/command_line/command_line.h"
#include "trainers/evaluate.h"
#include "trainers/objective.h"

namespace furlong::command_line {
namespace {

struct Options {
  std::string run, store, split = "validation", device = "auto", weights = "averaged";
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
    default:
      return "base";
  }
}

/// ", labels no, yes" where labels are learned.
std::string labels_of(const Settings& settings, const Vocabulary& vocabulary) {
  if (!settings.objective.learns_labels()) return "";
  return vocabulary.labels().empty() ? ", no labels" : ", labels " + config::join(vocabulary.labels(), ", ");
}

/// What was measured, by name: labels have neither perplexity nor bits a token.
nlohmann::ordered_json as_json(const Evaluation& found, const Model& model) {
  const ObjectiveSettings& objective = model.settings.objective;
  nlohmann::ordered_json object{{"objective", objective.name}, {"loss", found.loss}};
  if (!objective.learns_labels()) {
    const bool bytes = model.vocabulary.kind() == Vocabulary::Kind::bytes && objective.which() == ObjectiveSettings::Name::next_token;
    object["perplexity"] = found.perplexity();
    object["bits_per_token"] = found.bits_per_token();
    object["bits_per_byte"] = bytes ? nlohmann::ordered_json(found.bits_per_token()) : nlohmann::ordered_json();
  }
  object["accuracy"] = found.accuracy;
  object["targets"] = found.targets;
  object["tokens"] = found.tokens;
  object["tokens_per_second"] = static_cast<double>(found.tokens) / std::max(found.seconds, 1e-9);
  return object;
}

void print(const Evaluation& found, const Model& model) {
  const ObjectiveSettings& objective = model.settings.objective;
  const double rate = static_cast<double>(found.tokens) / std::max(found.seconds, 1e-9);
  if (objective.learns_labels()) {
    fmt::print("  loss           {:.5f} nats a label\n  accuracy       {:.4f} of {} labels\n", found.loss, found.accuracy, found.targets);
  } else {
    fmt::print("  loss           {:.5f} nats a token{}\n  perplexity     {:.4f}\n  bits a {:<8} {:.4f}\n  accuracy       {:.4f}\n",
               found.loss,
               objective.which() == ObjectiveSettings::Name::masked_tokens ? fmt::format(", over {} masked ones", found.targets) : "",
               found.perplexity(), unit_of(model.vocabulary), found.bits_per_token(), found.accuracy);
  }
  fmt::print("  speed          {:.0f} tokens/s\n", rate);
}

void run(const Options& options) {
  set_thread_count(static_cast<int>(options.threads));
  const std::filesystem::path path = checkpoint_of(options.run);
  const CheckpointReader checkpoint = CheckpointReader::open(path);
  Model model =
      load_model(checkpoint, device_from_name(options.device), options.weights == "raw" ? Weights::raw : Weights::averaged_if_present);
  const Settings& settings = model.settings;
  if (settings.data.task != "none" && !options.store.empty())
    throw UserError("--data: the model was trained on {} and has no use for a store", open_data(settings.data)->path());
  DataSettings data_settings = settings.data;
  if (!options.store.empty()) data_settings.store = options.store;
  const std::unique_ptr<Dataset> opened = open_data(data_settings);
  const Dataset& data = *opened;
  const std::string& store = data.path();
  if (!(model_vocabulary(settings, data.vocabulary()) == model.vocabulary))
    throw UserError("{}: its vocabulary ({}{}) is not the model's ({}{})", store, data.vocabulary().kind_name(),
                    labels_of(settings, data.vocabulary()), model.vocabulary.kind_name(), labels_of(settings, model.vocabulary));
  const std::int64_t length = options.sequence_length > 0 ? options.sequence_length : settings.data.sequence_length;
  if (settings.model.position == "learned" && length > settings.model.max_sequence_length) {
    throw UserError("--sequence-length: {} is longer than the model's {} learned positions", length, settings.model.max_sequence_length);
  }
  if (settings.objective.pooling == "class_token" && length < 2)
    throw UserError("--sequence-length: {} leaves no room beside the <class> token of objective.pooling: class_token; expected at least 2",
                    length);
  const Split split = split_from_name(options.split);
  const Evaluation found =
      evaluate(model, data, split, length, options.batch_size > 0 ? options.batch_size : settings.data.batch_size, options.max_batches);
  if (options.json) {
    nlohmann::ordered_json object{{"checkpoint", path.string()},
                                  {"step", checkpoint.integer("step")},
                                  {"data", store},
                                  {"split", options.split},
                                  {"sequence_length", length}};
    object.update(as_json(found, model));
    fmt::print("{}\n", object.dump(2));
    return;
  }
  fmt::print("{} (step {}) on the {} split of {}, {} tokens in windows of {}\n", path.string(), checkpoint.integer("step"), options.split,
             store, found.tokens, length);
  print(found, model);
}

}  // namespace

void add_evaluate(CLI::App& program, int& /*status*/) {
  auto* command = program.add_subcommand("evaluate", "Loss, perplexity, bits per byte and accuracy of a trained model on held-out data");
  const auto options = std::make_shared<Options>();
  command->add_option("run", options->run, "A run directory (its best checkpoint, or the newest where there is no best) or one checkpoint")
      ->required()
      ->type_name("RUN|CHECKPOINT");
  command->add_option("--data", options->store, "The token store (default: the one it was trained on)")->type_name("STORE");
  command->add_option("--split", options->split, "Which part of the store")
      ->capture_default_str()
      ->check(CLI::IsMember({"train", "validation", "test"}));
  command->add_option("--sequence-length", options->sequence_length, "Tokens in a window, longest document (default: as in training)")
      ->check(CLI::Range(1, 1000000000));
  command->add_option("--batch-size", options->batch_size, "Windows at once (default: as in training)")->check(CLI::Range(1, 1000000));
  command->add_option("--max-batches", options->max_batches, "Only so many batches from the split's beginning (default: all)")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--weights", options->weights,
                   "averaged: the moving average where the checkpoint has one; raw: the weights that were trained")
      ->capture_default_str()
      ->check(CLI::IsMember({"averaged", "raw"}));
  command->add_option("--device", options->device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--threads", options->threads, "Threads; 0: all cores")->capture_default_str()->check(CLI::Range(0, 4096));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { run(*options); });
}

}  // namespace furlong::command_line
