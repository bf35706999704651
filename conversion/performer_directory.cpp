#include "conversion/performer_directory.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "conversion/read_parameters.h"
#include "conversion/transformers_model.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "framework/io/text_file.h"
#include "trainers/model/stored_model.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::optional<Origin> origin_of(const ForeignConfig& section, const fs::path& directory) {
  if (!section.has("origin")) return std::nullopt;
  CheckpointOrigin kept;
  Json json = section.json().at("origin");
  if (json.is_object()) json["files"] = Json::array();  // collect_files() reads the files from the directory
  kept.json = json.dump();
  Origin origin = Origin::from_checkpoint(kept, section.origin());
  collect_files(directory, origin);
  return origin;
}

std::int64_t elements_of(const TensorFile& file) {
  std::int64_t elements = 0;
  for (const ForeignTensor& tensor : file.tensors()) elements += tensor.shape.elements();
  return elements;
}

/// Returns the settings without machine-specific paths, and without the sections of distillation that contain them.
Json portable_settings(Settings settings) {
  settings.teacher = {};
  settings.finetune = {};
  const config::Table table = settings_table(settings);
  Json json = to_json(settings);
  for (const config::Key& key : table.keys()) {
    const bool has_path = key.holds<fs::path>() || key.holds<std::vector<config::Item>>();
    if (!has_path || table.unmet(key)) continue;
    std::string section = key.section().empty() ? "" : "/" + key.section();
    std::replace(section.begin(), section.end(), '.', '/');
    json.at(Json::json_pointer(section)).erase(key.name());
  }
  return json;
}

// Directories of earlier versions, which only Furlong reads: tensors have the names of the source's architecture if it
// has them, otherwise "furlong.PARAMETER".
constexpr const char* old_model_type = "furlong_performer";
constexpr const char* old_tensor_prefix = "furlong.";

bool is_old(const ForeignConfig& config) { return config.json().at("model_type") == old_model_type; }

/// Returns the rows of the architecture's table whose parameter exists in this model with the table's shape.
std::vector<Mapping> shared_mappings(const Architecture& architecture, const Model& model, const TensorNaming& naming) {
  layers::ModelConfig settings = model.settings.model;
  settings.vocabulary_size = model.store->find("token_embedding.weight").shape()[0];
  std::map<std::string, Shape> shapes;
  for (const Parameter& parameter : model.store->parameters()) shapes.emplace(parameter.name(), parameter.shape());
  std::vector<Mapping> shared;
  for (Mapping& mapping : architecture.mappings(settings, naming)) {
    const auto found = shapes.find(mapping.parameter);
    if (found != shapes.end() && found->second == mapping.shape()) shared.push_back(std::move(mapping));
  }
  return shared;
}

}  // namespace

bool is_performer_config(const ForeignConfig& config) {
  return config.has("model_type") && (config.json().at("model_type") == transformers_model_type || is_old(config));
}

Vocabulary written_vocabulary(const fs::path& directory) {
  const fs::path file = directory / performer_vocabulary_file;
  return Vocabulary::from_json(read_text_file(file, std::uint64_t{256} << 20), file.string());
}

Json performer_config(const Model& model, const std::optional<Origin>& origin) {
  Json section{{"version", version()}, {"settings", portable_settings(model.settings)}};
  if (origin) {
    Origin written = *origin;
    if (origin->format == "gguf") {  // a later export gives its tensors the names and types of Hugging Face
      written.format = "safetensors";
      written.naming = {find_architecture(origin->model_type)->prefixes[0]};
      written.stored_types.clear();
    }
    section["origin"] = Json::parse(written.to_checkpoint().json);
  }
  Json config = transformers_config(model);
  config["furlong"] = section;
  return config;
}

SourceModel open_performer_directory(const fs::path& directory, const ForeignConfig& config, const TensorFile& file,
                                     const ImportOptions& options) {
  if (!options.architecture.empty())
    throw UserError("--architecture: {} has its settings in config.json; remove --architecture", directory.string());
  if (!options.tokenizer.empty())
    throw UserError("--tokenizer: {} has its vocabulary in {}; remove --tokenizer", directory.string(),
                    performer_vocabulary_file);
  const ForeignConfig section = config.section("furlong");
  if (!section.has("settings"))
    section.fail("settings", "this key is missing; expected the settings that furlong export writes");
  // JSON is a subset of YAML, so the strict config reader can read these settings.
  const StoredModel stored{
      from_checkpoint_text(section.json().at("settings").dump(), config.origin() + " (furlong.settings)").settings,
      written_vocabulary(directory), elements_of(file), directory.string()};
  const Settings& settings = stored.settings;
  std::optional<Origin> origin = origin_of(section, directory);
  SourceModel result{options.allow_missing
                         ? make_model(settings, stored.vocabulary, Device{}, DType::float32, all_frozen)
                         : make_empty_model(stored, Device{}, DType::float32, all_frozen),
                     {},
                     {},
                     ""};
  std::vector<Mapping> table;
  std::vector<Duplicate> duplicates;
  const Architecture* architecture = is_old(config) && origin ? find_architecture(origin->model_type) : nullptr;
  if (architecture) {
    TensorNaming naming = origin->naming;
    table = shared_mappings(*architecture, result.model, naming);
    duplicates = architecture->duplicates(settings.model, naming);
  }
  // transformers saves a model without a head without the prefix that the same tensors have in models with one.
  const bool is_bare = std::none_of(file.tensors().begin(), file.tensors().end(), [](const ForeignTensor& tensor) {
    return tensor.name.starts_with(base_model_prefix);
  });
  std::set<std::string> mapped;
  for (const Mapping& mapping : table) mapped.insert(mapping.parameter);
  for (const Parameter& parameter : result.model.store->parameters()) {
    if (mapped.contains(parameter.name())) continue;
    std::string name =
        is_old(config) ? old_tensor_prefix + parameter.name() : transformers_name(parameter.name(), result.model);
    if (is_bare && name.starts_with(base_model_prefix)) name.erase(0, base_model_prefix.size());
    table.push_back({parameter.name(), {{name, parameter.shape()}}});
  }
  const std::string_view carried = is_old(config) ? "" : carried_tensor_prefix;
  result.report = match_tensors(file, table, duplicates, [&](std::string_view name) {
    return is_old(config) ? architecture && architecture->is_carried(name) : name.starts_with(carried);
  });
  check_report(result.report, file, config.origin(), options);
  std::set<std::string> whole;
  for (const TensorReport::Matched& one : result.report.matched) whole.insert(one.parameter);
  for (const Mapping& mapping : table) {
    const Parameter& parameter = result.model.store->find(mapping.parameter);
    if (whole.contains(mapping.parameter)) {
      read_parameter(file, mapping, duplicates, values_of(parameter));
    } else {
      result.report.reinitialized.push_back(
          {mapping.parameter, parameter.shape(), "initial values: the file lacks it"});
    }
  }
  result.model.store->refresh_compute_values(Stream{});
  if (origin) {
    for (const TensorReport::Named& one : result.report.carried) {
      if (!can_be_stored(one.name)) continue;
      origin->carried.push_back(carried_tensor(file, *file.find(one.name)));
      origin->carried.back().name.erase(0, carried.size());
    }
  }
  result.origin = std::move(origin);
  result.description = fmt::format("{} of {} layers from {}", name_of(settings.model.architecture),
                                   settings.model.n_layers, directory.string());
  return result;
}

}  // namespace furlong
