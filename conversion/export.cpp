#include "conversion/export.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "conversion/export_plan.h"
#include "conversion/merge_adapters.h"
#include "conversion/performer_directory.h"
#include "conversion/read_parameters.h"
#include "conversion/symbol_tokenizer.h"
#include "conversion/tokenizer_export.h"
#include "conversion/transformers_model.h"
#include "evaluation/sequences/hidden_states.h"
#include "formats/safetensors_writer.h"
#include "framework/core/dtype.h"
#include "framework/io/json_bounds.h"
#include "framework/io/text_file.h"
#include "layers/attention/mechanism.h"
#include "layers/linear.h"
#include "trainers/train/signals.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A tensor to write: rows of a parameter in their foreign layout.
struct Output {
  ForeignTensor tensor;
  Part part;
  const Parameter* parameter = nullptr;  ///< null: a carried tensor
  std::size_t begin = 0;                 ///< offset of the first element in the parameter
};

const char* foreign_dtype(const std::string& dtype) {
  if (dtype == "bfloat16") return "BF16";
  if (dtype == "float16") return "F16";
  return "F32";
}

/// Throws UserError if a value is not finite, or becomes infinite in the type.
void check_range(const std::string& name, const std::string& type, std::span<const float> values) {
  for (const float value : values) {
    if (!std::isfinite(value))
      throw UserError("tensor {} contains {}; expected finite weights, so the checkpoint is not one to export", name,
                      value);
  }
  if (type != "F16" && type != "BF16") return;
  const bool half = type == "F16";
  for (const float value : values) {
    const float stored = half ? static_cast<float>(static_cast<_Float16>(value)) : static_cast<float>(bfloat16(value));
    if (!std::isfinite(stored))
      throw UserError("tensor {}: found {}; expected values that {} can represent, so export with --dtype {}", name,
                      value, half ? "float16" : "bfloat16", half ? "bfloat16 or float32" : "float32");
  }
}

std::int64_t rounded_values(std::span<const float> values, const std::string& type) {
  if (type == "F32") return 0;
  std::int64_t count = 0;
  for (const float value : values) {
    if (type == "BF16") {
      count += (std::bit_cast<std::uint32_t>(value) & 0xffffU) != 0;
    } else {
      count += static_cast<float>(static_cast<_Float16>(value)) != value;
    }
  }
  return count;
}

class Exporter {
 public:
  Exporter(SourceModel& source, const ExportOptions& options)
      : model_(source.model), origin_(source.origin), options_(options), plan_(export_plan(model_, origin_)) {
    if (plan_.for_hugging_face) {
      add_table();
    } else {
      add_own();
    }
    add_rest();
    add_carried();
  }

  ExportReport write(ExportDirectory& directory) {
    report_.model_type = plan_.for_hugging_face ? plan_.architecture->model_type : transformers_model_type;
    report_.for_hugging_face = plan_.for_hugging_face;
    report_.reason = plan_.reason;
    const StopRequests stop_requests;
    write_tensors(directory, stop_requests);
    write_files(directory);
    directory.add_config(config_text());
    report_.files.emplace_back("config.json");
    stop_requests.check_before_writing(directory.path());  // later it would leave a part of the files
    report_.removed = directory.commit();
    return report_;
  }

 private:
  bool of_gguf() const { return origin_ && origin_->format == "gguf"; }
  bool was_in_source(const std::string& name) const { return origin_ && origin_->stored_types.contains(name); }

  std::string type_of(const std::string& name) const {
    if (options_.dtype != "original") return foreign_dtype(options_.dtype);
    if (!origin_ || of_gguf()) return "F32";
    const auto found = origin_->stored_types.find(name);
    if (found == origin_->stored_types.end()) return "F32";
    return found->second == "F16" || found->second == "BF16" ? found->second : "F32";
  }

  void add(const Part& part, const Parameter& parameter, std::size_t begin) {
    outputs_.push_back({{part.name, part.shape, type_of(part.name)}, part, &parameter, begin});
  }

  void add_table() {
    layers::ModelConfig settings = model_.settings.model;
    settings.vocabulary_size = model_.store->find("token_embedding.weight").shape()[0];
    const std::vector<Duplicate> duplicates = plan_.architecture->duplicates(settings, plan_.naming);
    for (const Mapping& mapping : plan_.architecture->mappings(settings, plan_.naming)) {
      const Parameter& parameter = model_.store->find(mapping.parameter);
      mapped_.insert(mapping.parameter);
      std::size_t begin = 0;
      for (const Part& part : mapping.parts) {
        // If the file had only the duplicate name of a tensor, the tensor is written under that name.
        bool own = !origin_ || of_gguf() || was_in_source(part.name);
        for (const Duplicate& duplicate : duplicates) {
          if (duplicate.of != part.name || of_gguf() || !was_in_source(duplicate.name)) continue;
          if (duplicate.may_differ && was_in_source(part.name)) continue;
          Part other = part;
          other.name = duplicate.name;
          add(other, parameter, begin);
        }
        // A tensor that the source lacked, and that was initialized here, is written too.
        const bool written = std::any_of(outputs_.begin(), outputs_.end(), [&](const Output& one) {
          return one.parameter == &parameter && one.begin == begin && one.part.shape == part.shape;
        });
        if (own || !written) add(part, parameter, begin);
        begin += static_cast<std::size_t>(part.elements());
      }
    }
  }

  /// Every parameter under its name in modeling_furlong.py, in the type that all of its foreign parts have, if one.
  void add_own() {
    std::map<std::string, std::set<std::string>> types;
    if (plan_.architecture) {
      layers::ModelConfig settings = model_.settings.model;
      settings.vocabulary_size = model_.store->find("token_embedding.weight").shape()[0];
      for (const Mapping& mapping : plan_.architecture->mappings(settings, origin_->naming))
        for (const Part& part : mapping.parts) types[mapping.parameter].insert(type_of(part.name));
    }
    for (const Parameter& parameter : model_.store->parameters()) {
      mapped_.insert(parameter.name());
      if (layers::is_adapter(parameter.name())) continue;
      add({transformers_name(parameter.name(), model_), parameter.shape()}, parameter, 0);
      std::string& type = outputs_.back().tensor.stored_type;
      const auto found = types.find(parameter.name());
      if (found != types.end()) type = found->second.size() == 1 ? *found->second.begin() : "F32";
      // The random projection and constants of features stay exact, whatever type the weights are stored in.
      if (model_.store->is_buffer(parameter)) type = "F32";
    }
  }

  void add_rest() {
    for (const Parameter& parameter : model_.store->parameters())
      if (!mapped_.contains(parameter.name()) && !layers::is_adapter(parameter.name()))
        report_.left_out.push_back(parameter.name());
  }

  void add_carried() {
    if (!origin_ || of_gguf()) return;
    for (const Output& output : outputs_)
      if (plan_.for_hugging_face && output.part.unused_rows > 0) in_parts_.insert(unused_rows_name(output.part));
    for (const CheckpointOrigin::Tensor& tensor : origin_->carried) {
      if (is_in_a_part(tensor) || is_outdated(tensor)) continue;
      Shape shape;
      for (const std::int64_t extent : tensor.shape) shape.push_back(extent);
      std::string type = type_of(tensor.name);
      if (tensor.dtype == "int64") {
        const auto found = origin_->stored_types.find(tensor.name);
        const bool written = found != origin_->stored_types.end() &&
                             (found->second.starts_with("I") || found->second == "U8" || found->second == "BOOL");
        type = written ? found->second : "I64";
      }
      outputs_.push_back({{carried_name(tensor.name), shape, type}, {}, nullptr, 0});
    }
  }

  /// Returns true for a tensor that follows from settings which have changed.
  bool is_outdated(const CheckpointOrigin::Tensor& tensor) const {
    return plan_.for_hugging_face &&
           std::any_of(plan_.outdated.begin(), plan_.outdated.end(),
                       [&](const std::string& part) { return tensor.name.find(part) != std::string::npos; });
  }

  /// Returns true for the unused rows of a tensor that is written as a whole.
  bool is_in_a_part(const CheckpointOrigin::Tensor& tensor) const { return in_parts_.contains(tensor.name); }

  /// Fills the rows that no parameter holds: with those of the source, or with zeros.
  void fill_unused_rows(const Part& part, std::span<float> rows) const {
    std::fill(rows.begin(), rows.end(), 0.0F);
    if (!origin_) return;
    for (const CheckpointOrigin::Tensor& tensor : origin_->carried) {
      if (tensor.name == unused_rows_name(part) && tensor.data.size() == rows.size_bytes())
        std::memcpy(rows.data(), tensor.data.data(), tensor.data.size());
    }
  }

  std::string carried_name(const std::string& name) const {
    return plan_.for_hugging_face ? name : carried_tensor_prefix + name;
  }

  void write_tensors(ExportDirectory& directory, const StopRequests& stop_requests) {
    std::vector<ForeignTensor> tensors;
    for (const Output& output : outputs_) tensors.push_back(output.tensor);
    SafetensorsWriter& file = directory.add_weights(std::move(tensors));
    std::vector<float> buffer;
    for (const Output& output : outputs_) {
      stop_requests.check_before_writing(directory.path());
      if (!output.parameter) continue;
      const std::span<const float> values =
          values_of(*output.parameter).subspan(output.begin, static_cast<std::size_t>(output.part.elements()));
      report_.rounded += rounded_values(values, output.tensor.stored_type) > 0;
      if (output.part.layout == Layout::plain && output.part.unused_rows == 0) {
        check_range(output.tensor.name, output.tensor.stored_type, values);
        file.write(output.tensor.name, values);
      } else {
        buffer.resize(static_cast<std::size_t>(output.part.shape.elements()));
        fill_unused_rows(output.part, std::span(buffer).first(static_cast<std::size_t>(output.part.unused_elements())));
        to_foreign(output.part, values, buffer);
        check_range(output.tensor.name, output.tensor.stored_type, buffer);
        file.write(output.tensor.name, buffer);
      }
    }
    if (origin_ && !of_gguf()) write_carried(file);
    file.flush();
    report_.tensors = static_cast<std::int64_t>(outputs_.size());
    report_.files.emplace_back("model.safetensors");
  }

  void write_carried(SafetensorsWriter& file) const {
    for (const CheckpointOrigin::Tensor& tensor : origin_->carried) {
      if (is_in_a_part(tensor) || is_outdated(tensor)) continue;
      if (tensor.dtype == "int64") {
        file.write_integers(carried_name(tensor.name), {reinterpret_cast<const std::int64_t*>(tensor.data.data()),
                                                        tensor.data.size() / sizeof(std::int64_t)});
      } else {
        const std::span values(reinterpret_cast<const float*>(tensor.data.data()), tensor.data.size() / sizeof(float));
        check_range(tensor.name, type_of(tensor.name), values);
        file.write(carried_name(tensor.name), values);
      }
    }
  }

  void write_file(ExportDirectory& directory, const std::string& name, std::string_view text) {
    directory.add(name, text);
    report_.files.push_back(name);
  }

  void write_files(ExportDirectory& directory) {
    vocabulary_files_ = make_vocabulary_files();
    // Read back from tokenizer.json, a SentencePiece model would be a tokenizer of another kind than the data's.
    const bool is_converted = has_sentencepiece() && holds(vocabulary_files_, "tokenizer.json") &&
                              holds(vocabulary_files_, "tokenizer.model");
    const Vocabulary vocabulary = marked_vocabulary();
    if (!plan_.for_hugging_face || is_converted || vocabulary.ends_documents())
      write_file(directory, performer_vocabulary_file, vocabulary.to_json());
    if (!plan_.for_hugging_face) {
      for (const auto& [name, text] : transformers_sources()) write_file(directory, name, text);
      if (may_write_card(directory.path()))
        write_file(directory, transformers_card_file,
                   transformers_card(model_, origin_ ? origin_->source : "", report_.tokenizer_obstacle));
    }
    for (const auto& [name, text] : vocabulary_files_) write_file(directory, name, text);
  }

  /// Returns the vocabulary, and what frame_of() adds to the tokenizer's frame because of the data: the settings in the
  /// directory name none.
  Vocabulary marked_vocabulary() const {
    const Vocabulary& own = model_.vocabulary;
    return own.tokenizer() && frame_of(model_).back != own.frame_back() ? own.with_ended_documents() : own;
  }

  /// A card that somebody has written stays.
  static bool may_write_card(const fs::path& directory) {
    const fs::path path = directory / transformers_card_file;
    return !fs::exists(path) ||
           read_text_file(path, std::uint64_t{1} << 26).find(transformers_card_mark) != std::string::npos;
  }

  using Files = std::vector<std::pair<std::string, std::string>>;

  static bool holds(const Files& files, std::string_view name) {
    return std::any_of(files.begin(), files.end(), [&](const auto& file) { return file.first == name; });
  }

  /// Returns the tokenizer's files: those that the model came with, and what AutoTokenizer needs besides. Next to a
  /// model with code it reads no vocab.txt.
  Files make_vocabulary_files() {
    Files files;
    const auto add = [&](Files others) {
      for (auto& file : others) {
        const auto present =
            std::find_if(files.begin(), files.end(), [&](const auto& one) { return one.first == file.first; });
        if (present == files.end())
          files.push_back(std::move(file));
        else if (file.first == "tokenizer_config.json")
          present->second = completed_tokenizer_config(present->second, file.second);
      }
    };
    for (std::size_t i = 0; origin_ && !of_gguf() && i < origin_->files.size(); ++i)
      files.emplace_back(origin_->file_names[i], origin_->files[i]);
    const bool keeps_config = !plan_.verbatim.empty() && holds(files, "tokenizer_config.json");
    const SequenceFrame frame = frame_of(model_);
    TokenizerExport own = export_tokenizer(model_.vocabulary, frame, of_gguf() ? origin_->file(chat_template_file) : "",
                                           model_.settings.model.n_segments > 0);
    // A class of transformers that reads the source's tokenizer.model stays in charge of it.
    const bool has_class = has_sentencepiece() && holds(files, "tokenizer_config.json");
    const bool completes = holds(own.files, "tokenizer.json") && !holds(files, "tokenizer.json") && !has_class;
    if (!holds(files, "tokenizer.json") && !has_class) report_.tokenizer_obstacle = own.obstacle;
    if (files.empty() || completes) add(std::move(own.files));
    if (!holds(files, "tokenizer.json") && !holds(files, "tokenizer_config.json"))
      add(symbol_tokenizer_files(model_.vocabulary, frame));
    for (auto& [name, text] : files) {
      if (name == "tokenizer_config.json" && !keeps_config) text = with_longest_text(text);
    }
    return files;
  }

  /// Tokenizers of transformers cut texts to `model_max_length`, by default to none. A source's number stays if it is
  /// at least the length that the model was trained on, and at most what its positions allow.
  std::string with_longest_text(const std::string& tokenizer_config) const {
    foreign::check_ordered_json(tokenizer_config, "tokenizer_config.json");
    Json config = Json::parse(tokenizer_config, nullptr, false);
    if (!config.is_object()) return tokenizer_config;
    const std::int64_t longest = longest_sequence(model_), trained = model_.settings.data.sequence_length;
    const auto own = config.find("model_max_length");
    const bool has_number = own != config.end() && own->is_number();
    const double number = has_number ? own->get<double>() : std::numeric_limits<double>::infinity();
    if (number >= static_cast<double>(trained) && (longest == 0 || number <= static_cast<double>(longest)))
      return tokenizer_config;
    config["model_max_length"] = longest > 0 ? longest : trained;
    return config.dump(2) + "\n";
  }

  bool has_sentencepiece() const {
    return model_.vocabulary.tokenizer() && model_.vocabulary.tokenizer()->kind() == "sentencepiece";
  }

  /// Returns the class of the tokenizer, which AutoTokenizer next to a model with code, and pipeline() of transformers
  /// 4.x, look for in config.json.
  std::string tokenizer_class() const {
    for (const auto& [name, text] : vocabulary_files_) {
      if (name != "tokenizer_config.json") continue;
      foreign::check_ordered_json(text, name);
      const Json config = Json::parse(text, nullptr, false);
      if (config.is_object() && config.contains("tokenizer_class") && config["tokenizer_class"].is_string())
        return config["tokenizer_class"];
    }
    return holds(vocabulary_files_, "tokenizer.json") ? "PreTrainedTokenizerFast" : "";
  }

  std::string config_text() const {
    if (!plan_.verbatim.empty() && (options_.dtype == "original" && !of_gguf())) return plan_.verbatim;
    Json config = plan_.config;
    if (const std::string name = plan_.for_hugging_face ? "" : tokenizer_class(); !name.empty())
      config["tokenizer_class"] = name;
    const std::string dtype = options_.dtype == "original" ? "float32" : options_.dtype;
    // transformers 5 and later call it dtype.
    const bool typed = options_.dtype != "original" || of_gguf() || !origin_;
    if (typed) config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype;
    return config.dump(2) + "\n";
  }

  Model& model_;
  const std::optional<Origin>& origin_;
  const ExportOptions& options_;
  ExportPlan plan_;
  std::vector<Output> outputs_;
  std::set<std::string> in_parts_;  // carried tensors that outputs contain
  std::set<std::string> mapped_;
  Files vocabulary_files_;
  ExportReport report_;
};

}  // namespace

Json ExportReport::json() const {
  return {{"model_type", model_type},
          {"for_hugging_face", for_hugging_face},
          {"reason", reason},
          {"tensors", tensors},
          {"rounded", rounded},
          {"files", files},
          {"left_out", left_out},
          {"removed", removed},
          {"tokenizer_obstacle", tokenizer_obstacle}};
}

ExportReport export_model(SourceModel& source, ExportDirectory& directory, const ExportOptions& options) {
  merge_adapters(source.model);
  return Exporter(source, options).write(directory);
}

ExportReport export_model(SourceModel& source, const fs::path& directory, const ExportOptions& options) {
  ExportDirectory claimed(directory, options.overwrite);
  return export_model(source, claimed, options);
}

}  // namespace furlong
