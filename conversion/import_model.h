#pragma once
// Models that were trained elsewhere, as ours.
#include <filesystem>
#include <functional>
#include <optional>

#include "conversion/import_origin.h"
#include "conversion/tensor_report.h"
#include "trainers/model/model.h"

namespace furlong {

struct ImportOptions {
  std::filesystem::path tokenizer;  ///< a directory or file; empty: the source's own
  bool allow_missing =
      false;  ///< tensors that the file lacks begin with initial values, and are reported as reinitialised
  bool allow_unexpected = false;  ///< tensors that belong nowhere are reported, and carried along for export
  /// Called with the whole report where it is faulty, before the UserError that sums it up.
  std::function<void(const TensorReport&)> on_fault;
};

/// A model that is to be converted, from wherever it came, on the CPU and in float32.
struct SourceModel {
  Model model;
  std::optional<Origin> origin;  ///< none for a model that was trained here from its first step
  TensorReport report;
  std::string description;  ///< "bert of 8 layers from models/antiberty (pytorch)"
};

/// Whether a path is a model of another program: a directory with config.json, a file of weights with config.json
/// beside it, or GGUF.
bool is_foreign_model(const std::filesystem::path& path);

/// Reads a Hugging Face directory (gpt2, llama, bert, albert; safetensors or PyTorch), a GGUF file (llama), what
/// furlong export has written, or a checkpoint or run directory of our own. Throws UserError in one line that names the
/// file, and the key or tensors, where the config asks for what is not computed here, or the tensors are not those that
/// it describes, and all of them.
SourceModel open_source_model(const std::filesystem::path& path, const ImportOptions& options = {});

/// Writes a checkpoint of a model before its first step: config, vocabulary, parameters, and what its origin brought
/// along. Nothing appears where it throws, and it throws StoppedBySignal for the signals of StopRequests.
void write_model(const Model& model, const std::optional<Origin>& origin, const std::filesystem::path& path);

/// Settings in which a model of another program stands until somebody sets others: the architecture's, and for data
/// what suits it. `origin` begins errors.
Settings complete_settings(Settings settings, const std::string& origin);

/// For models that are read, changed and written, and never trained: frozen parameters have no gradients, which would
/// double the memory.
bool all_frozen(const Parameter& parameter);

}  // namespace furlong
