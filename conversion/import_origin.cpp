#include "conversion/import_origin.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/json_text.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"
#include "framework/io/text_file.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// Files of tokenizers, generation and sentence-transformers. config.json and weights are stored elsewhere.
constexpr const char* known_files[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "vocab.txt",
                                       "tokenizer.model",
                                       "spiece.model",
                                       "generation_config.json",
                                       chat_template_file,
                                       "modules.json",
                                       "sentence_bert_config.json",
                                       "config_sentence_transformers.json",
                                       "1_Pooling/config.json"};

}  // namespace

std::string Origin::file(std::string_view name) const {
  const auto found = std::find(file_names.begin(), file_names.end(), name);
  return found == file_names.end() ? "" : files[static_cast<std::size_t>(found - file_names.begin())];
}

CheckpointOrigin Origin::to_checkpoint() const {
  const nlohmann::ordered_json object{{"model_type", model_type},
                                      {"source", source},
                                      {"format", format},
                                      {"prefix", naming.prefix},
                                      {"gamma_beta", naming.gamma_beta},
                                      {"head", naming.head},
                                      {"config", config},
                                      {"stored_types", stored_types},
                                      {"files", file_names}};
  return {object.dump(), files, carried};
}

Origin Origin::from_checkpoint(const CheckpointOrigin& kept, const std::string& path) {
  Origin origin;
  const auto object = foreign::parse_ordered_json(kept.json, path + ": its text 'origin'");
  try {
    object.at("model_type").get_to(origin.model_type);
    object.at("source").get_to(origin.source);
    object.at("format").get_to(origin.format);
    object.at("prefix").get_to(origin.naming.prefix);
    object.at("gamma_beta").get_to(origin.naming.gamma_beta);
    object.at("head").get_to(origin.naming.head);
    object.at("config").get_to(origin.config);
    object.at("stored_types").get_to(origin.stored_types);
    object.at("files").get_to(origin.file_names);
  } catch (const nlohmann::json::exception&) {
    throw UserError("{}: its text 'origin' is not what furlong convert writes; import the model again", path);
  }
  if (!find_architecture(origin.model_type)) {
    std::vector<std::string> known;
    for (const Architecture& one : architectures()) known.emplace_back(one.model_type);
    throw UserError("{}: its text 'origin' has the model_type '{}'; expected one of {}; import the model again", path,
                    foreign::printable(origin.model_type), fmt::join(known, ", "));
  }
  foreign::check_ordered_json(origin.config, path + ": config.json in its text 'origin'");
  if (!nlohmann::ordered_json::accept(origin.config))
    throw UserError("{}: config.json in its text 'origin' is not valid JSON; import the model again", path);
  if (origin.file_names.size() != kept.files.size())
    throw UserError("{}: its text 'origin' names {} files, but there are {}; import the model again", path,
                    origin.file_names.size(), kept.files.size());
  // An export writes them, so a forged checkpoint must not choose names.
  for (const std::string& name : origin.file_names)
    if (std::find(std::begin(known_files), std::end(known_files), name) == std::end(known_files))
      throw UserError(
          "{}: its text 'origin' names the file '{}', which is none of a model's tokenizer; import the "
          "model again",
          path, foreign::printable(name));
  origin.files = kept.files;
  origin.carried = kept.carried;
  return origin;
}

const std::vector<std::string>& model_file_names() {
  static const std::vector<std::string> names(std::begin(known_files), std::end(known_files));
  return names;
}

namespace {

/// A repository that was cloned can contain links to private files of this machine.
void warn_of_link_outside(const fs::path& directory, const fs::path& file) {
  std::error_code failure;
  const fs::path real = fs::canonical(file, failure), folder = fs::canonical(directory, failure);
  const auto is_in = [&](const fs::path& parent) {
    return std::mismatch(parent.begin(), parent.end(), real.begin(), real.end()).first == parent.end();
  };
  // The cache of Hugging Face: snapshots/COMMIT/FILE is a link to blobs/HASH.
  const fs::path blobs = fs::weakly_canonical(folder.parent_path().parent_path() / "blobs", failure);
  if (failure || is_in(folder) || is_in(blobs)) return;
  log_warn("{}: is a link to {}, outside the model's directory; checkpoints and exports get that file's content",
           file.string(), real.string());
}

}  // namespace

void collect_files(const fs::path& directory, Origin& origin) {
  constexpr std::uintmax_t most = std::uintmax_t{256} << 20;
  for (const char* name : known_files) {
    std::error_code missing;
    const fs::path file = directory / name;
    const std::uintmax_t size = fs::file_size(file, missing);
    if (missing) continue;
    if (size > most)
      throw UserError("{}: has {} bytes; expected at most 256 MiB for a file of a model's tokenizer", file.string(),
                      size);
    warn_of_link_outside(directory, file);
    origin.file_names.emplace_back(name);
    origin.files.push_back(read_text_file(file, most));
  }
}

}  // namespace furlong
