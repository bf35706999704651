#include "conversion/import_model.h"

#include <set>

#include "conversion/performer_directory.h"
#include "conversion/read_parameters.h"
#include "datasets/tokenizers/tokenizer.h"
#include "formats/gguf.h"
#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "framework/io/text_file.h"
#include "trainers/checkpoint/checkpoint_tensors.h"
#include "trainers/model/stored_model.h"
#include "trainers/train/signals.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// An opened foreign checkpoint whose tensors are not read yet.
struct ForeignSource {
  std::unique_ptr<TensorFile> file;
  ForeignConfig config;
  std::string config_text;
  std::string format;
  fs::path directory;  ///< empty for GGUF
};

std::string text_of(const fs::path& file) { return read_text_file(file, std::uint64_t{256} << 20); }

ForeignSource open_foreign(const fs::path& path) {
  if (is_gguf(path)) {
    std::unique_ptr<GgufFile> file = open_gguf(path);
    ForeignConfig config(config_of_gguf(*file), path.string());
    std::string text = config.json().dump(2) + "\n";
    return {std::move(file), std::move(config), std::move(text), "gguf", {}};
  }
  const fs::path directory = fs::is_directory(path) ? path : path.parent_path();
  ForeignConfig config = ForeignConfig::read(directory / "config.json");
  std::string text = text_of(directory / "config.json");
  std::unique_ptr<TensorFile> file = open_tensor_file(path);
  // open_tensor_file prefers safetensors in a directory that has them.
  const bool safetensors = fs::is_directory(path) ? fs::exists(path / "model.safetensors") ||
                                                        fs::exists(path / "model.safetensors.index.json")
                                                  : path.extension() == ".safetensors";
  std::string format = safetensors ? "safetensors" : "pytorch";
  return {std::move(file), std::move(config), std::move(text), std::move(format), directory};
}

Vocabulary vocabulary_of(const fs::path& path, const ImportOptions& options, std::int64_t most) {
  const fs::path from = options.tokenizer.empty() ? path : options.tokenizer;
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = load_tokenizer(from);
  } catch (const UserError& error) {
    if (!options.tokenizer.empty()) throw;
    throw UserError("{}; pass another tokenizer with --tokenizer PATH", error.what());
  }
  if (tokenizer->size() > most)
    throw UserError(
        "{}: this tokenizer has {} tokens, but the model's embedding has {}; pass the tokenizer that the model was "
        "trained with (--tokenizer)",
        from.string(), tokenizer->size(), most);
  const Vocabulary vocabulary = Vocabulary::of_tokenizer(std::move(tokenizer));
  const bool ends_documents = fs::exists(from / performer_vocabulary_file) && written_vocabulary(from).ends_documents();
  return ends_documents ? vocabulary.with_ended_documents() : vocabulary;
}

/// Keeps a GGUF file's default chat template. Its list of further templates is ignored.
void keep_chat_template(const GgufFile& file, Origin& origin) {
  const auto found = file.metadata().find("tokenizer.chat_template");
  if (found == file.metadata().end() || !std::holds_alternative<std::string>(found->second)) return;
  origin.file_names.emplace_back(chat_template_file);
  origin.files.push_back(std::get<std::string>(found->second));
}

/// Checks that token dropout and the tokenizer agree on the mask token.
void check_mask_token(const Settings& settings, const Vocabulary& vocabulary, const ForeignConfig& config) {
  if (!settings.model.token_dropout || settings.model.mask_token == vocabulary.mask_id()) return;
  config.fail("mask_token_id", fmt::format("found {}; expected {}, the tokenizer's mask token; pass the tokenizer that "
                                           "the model was trained with (--tokenizer)",
                                           settings.model.mask_token, vocabulary.mask_id().value_or(-1)));
}

SourceModel import_foreign(const fs::path& path, const ImportOptions& options) {
  ForeignSource source = open_foreign(path);
  if (is_performer_config(source.config))
    return open_performer_directory(source.directory, source.config, *source.file, options);
  const TensorFile& file = *source.file;
  const Architecture& architecture = architecture_of(source.config, options.architecture);
  const TensorNaming naming = detect_naming(architecture, file);
  const Settings settings = complete_settings(architecture.settings(source.config, naming), source.config.origin());
  const std::vector<Mapping> table = architecture.mappings(settings.model, naming);
  const std::vector<Duplicate> duplicates = architecture.duplicates(settings.model, naming);
  TensorReport report = match_tensors(file, table, duplicates, architecture.is_carried);
  check_report(report, file, source.config.origin(), options);
  const std::int64_t rows = settings.model.vocabulary_size;
  const Vocabulary vocabulary = vocabulary_of(path, options, rows);
  if (model_vocabulary(settings, vocabulary).size() > rows)
    throw UserError(
        "{}: its tokenizer of {} tokens has no mask or class token, and the model's embedding of {} no row for it; add "
        "a "
        "row to the model (resize_token_embeddings of transformers), or pass another tokenizer with --tokenizer",
        path.string(), vocabulary.size(), rows);
  SourceModel result{make_empty_model(settings, vocabulary, Device{}, DType::float32, all_frozen), Origin{},
                     std::move(report),
                     fmt::format("{} of {} layers from {} ({})", architecture.model_type, settings.model.n_layers,
                                 path.string(), source.format)};
  check_mask_token(settings, result.model.vocabulary, source.config);
  if (source.config.has("auto_map"))
    log_warn(
        "{}: auto_map names code of the model's own, which Furlong does not run; it computes as {} of transformers",
        source.config.origin(), architecture.class_name);
  const auto draw = [&](Parameter& parameter, const char* reason) {
    result.model.store->draw(parameter, static_cast<std::uint64_t>(settings.seed));
    result.report.reinitialized.push_back({parameter.name(), parameter.shape(), reason});
  };
  std::set<std::string> whole, mapped;
  for (const TensorReport::Matched& one : result.report.matched) whole.insert(one.parameter);
  for (const Mapping& mapping : table) {
    mapped.insert(mapping.parameter);
    Parameter& parameter = result.model.store->find(mapping.parameter);
    require(parameter.shape() == mapping.shape(), "import: {} is {} in the model and {} in the table",
            mapping.parameter, parameter.shape().text(), mapping.shape().text());
    if (whole.contains(mapping.parameter)) {
      read_parameter(file, mapping, duplicates, values_of(parameter));
      for (const Part& part : mapping.parts)
        if (part.unused_rows > 0) result.origin->carried.push_back(unused_rows(file, part));
    } else {
      draw(parameter, "initial values: the file lacks it");
    }
  }
  for (const Parameter& parameter : result.model.store->parameters()) {
    if (!mapped.contains(parameter.name()))
      draw(result.model.store->find(parameter.name()), "initial values: the source has no such head");
  }
  result.model.store->refresh_compute_values(Stream{});

  Origin& origin = *result.origin;
  origin.model_type = architecture.model_type;
  origin.source = fs::weakly_canonical(path).filename().string();
  origin.format = source.format;
  origin.config = source.config_text;
  origin.naming = naming;
  for (const ForeignTensor& tensor : file.tensors()) origin.stored_types[tensor.name] = tensor.stored_type;
  for (const auto* list : {&result.report.carried, &result.report.unexpected}) {
    for (const TensorReport::Named& one : *list) {
      if (can_be_stored(one.name)) origin.carried.push_back(carried_tensor(file, *file.find(one.name)));
    }
  }
  if (!source.directory.empty()) collect_files(source.directory, origin);
  if (const auto* gguf = dynamic_cast<const GgufFile*>(&file)) keep_chat_template(*gguf, origin);
  return result;
}

SourceModel open_checksummed(const fs::path& path, const ImportOptions& options) {
  if (!options.architecture.empty())
    throw UserError("--architecture: {} is a Furlong checkpoint, which contains its settings; remove --architecture",
                    path.string());
  if (!options.tokenizer.empty())
    throw UserError("--tokenizer: {} is a Furlong checkpoint, which contains its vocabulary; remove --tokenizer",
                    path.string());
  if (options.allow_missing || options.allow_unexpected) {
    const char* const option = options.allow_missing ? "--allow-missing" : "--allow-unexpected";
    throw UserError("{0}: {1} is a Furlong checkpoint, which has exactly its model's tensors; remove {0}", option,
                    path.string());
  }
  const fs::path file = checkpoint_of(path);
  const CheckpointReader checkpoint = CheckpointReader::open(file);
  const StoredModel stored = stored_model(checkpoint);
  const Settings& settings = stored.settings;
  SourceModel result{make_empty_model(stored, Device{}, DType::float32, all_frozen), {}, {}, ""};
  load_parameters(checkpoint, result.model, options.weights);
  for (const Parameter& parameter : result.model.store->parameters())
    result.report.matched.push_back({parameter.name(), parameter.shape(), {}, {}});
  if (const auto kept = CheckpointOrigin::read(checkpoint))
    result.origin = Origin::from_checkpoint(*kept, file.string());
  result.description = fmt::format("{} of {} layers from {}", name_of(settings.model.architecture),
                                   settings.model.n_layers, file.string());
  return result;
}

SourceModel open_model(const fs::path& path, const ImportOptions& options) {
  if (!fs::exists(path)) throw_missing(path, "a Hugging Face directory, a GGUF file, a checkpoint or a run directory");
  if (is_foreign_model(path)) {
    if (options.weights == Weights::raw)
      throw UserError("--weights: {} is a model of another program, which has one set of weights; remove --weights",
                      path.string());
    return import_foreign(path, options);
  }
  if (fs::is_directory(path) && !fs::exists(path / "checkpoints") && !fs::exists(path / "config.yaml")) {
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".gguf")
        throw UserError("{}: config.json is missing in this directory; to import {}, pass the path of that file",
                        path.string(), entry.path().filename().string());
    }
  }
  return open_checksummed(path, options);
}

}  // namespace

bool all_frozen(const Parameter&) { return true; }

bool is_foreign_model(const fs::path& path) {
  if (fs::is_directory(path)) return fs::exists(path / "config.json");
  if (!fs::is_regular_file(path)) return false;
  return is_gguf(path) || path.extension() == ".safetensors" || path.extension() == ".bin" || path.extension() == ".pt";
}

std::vector<std::string> files_of_model(const fs::path& path) {
  if (!fs::exists(path)) return {};
  if (!is_foreign_model(path)) return files_of_run(path);
  if (!fs::is_directory(path)) return {path.string()};
  std::vector<std::string> files;
  const std::set<std::string> read{".json", ".safetensors", ".bin", ".pt", ".gguf", ".model", ".txt", ".jinja"};
  for (const auto& entry : fs::directory_iterator(path))
    if (read.contains(entry.path().extension().string())) files.push_back(entry.path().string());
  return files;
}

SourceModel open_source_model(const fs::path& path, const ImportOptions& options) {
  return foreign::with_single_line_errors([&] { return open_model(path, options); });
}

Settings complete_settings(Settings settings, const std::string& origin) {
  DataSettings& data = settings.data;
  data.sequence_length = std::min<std::int64_t>(settings.model.max_sequence_length, 1024);
  if (settings.model.architecture == layers::Architecture::encoder) data.sampler = "documents";
  // Checks the values that the strict config reader would reject.
  const config::Table table = settings_table(settings, false);
  for (const config::Key& key : table.keys()) {
    if (!key.accepts(key.get()))
      throw UserError("{}: gives {} the value {}; expected {}", origin, key.path(), config::to_text(key.get()),
                      key.expected());
  }
  try {
    check(settings);
  } catch (const UserError& error) {
    throw UserError("{}: {}", origin, error.what());
  }
  return resolve(std::move(settings));
}

void write_model(const Model& model, const std::optional<Origin>& origin, const fs::path& path) {
  write_model(model, origin, std::make_unique<AtomicFile>(path));
}

void write_model(const Model& model, const std::optional<Origin>& origin, std::unique_ptr<AtomicFile> output) {
  const StopRequests stop_requests;
  CheckpointWriter file(std::move(output));
  for (const Parameter& parameter : model.store->parameters()) {
    stop_requests.check_before_writing(file.path());
    write_tensor(file, "parameters/" + parameter.name(), parameter.master());
  }
  if (origin) origin->to_checkpoint().write(file);
  file.text("config", to_yaml(model.settings));
  file.text("vocabulary", model.vocabulary.to_json());
  file.text("version", version());
  file.text("commit", commit());
  file.integer("step", 0);
  file.integer("tokens", 0);
  file.flush();
  stop_requests.check_before_writing(file.path());
  file.finish();
}

}  // namespace furlong
