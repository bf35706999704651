#pragma once
// Imports models of other programs, and opens Furlong's own.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "conversion/import_origin.h"
#include "conversion/tensor_report.h"
#include "framework/io/atomic_file.h"
#include "trainers/model/model.h"

namespace furlong {

/// How a model is read. Tokenizer, family and tolerance apply to models of other programs, weights to checkpoints.
struct ImportOptions {
  std::filesystem::path tokenizer;  ///< a directory or file; empty: the source's own
  std::string architecture;         ///< model family, for a config.json without model_type; empty: not given
  /// Accept missing tensors: their parameters keep initial values and are reported as reinitialized.
  bool allow_missing = false;
  /// Accept unexpected tensors: they are reported and stored for export.
  bool allow_unexpected = false;
  Weights weights = Weights::ema_if_present;
  /// Called with the complete report if it has faults, before the UserError that summarizes it. May be empty.
  std::function<void(const TensorReport&)> on_fault;
};

/// An opened source model, on the CPU and in float32.
struct SourceModel {
  Model model;
  std::optional<Origin> origin;  ///< empty for a model that Furlong trained from scratch
  TensorReport report;
  std::string description;  ///< "bert of 8 layers from models/antiberty (pytorch)"
};

/// Returns true if the path is a model of another program: a directory with config.json, a GGUF file, or a weights file
/// (.safetensors, .bin, .pt).
bool is_foreign_model(const std::filesystem::path& path);
/// Returns the files that open_source_model() may read: those of a run (files_of_run), or of a foreign model and its
/// directory; none if the path does not exist. Throws as files_of_run().
std::vector<std::string> files_of_model(const std::filesystem::path& path);

/// Opens a Hugging Face directory (of the families in architectures(); safetensors or PyTorch), a GGUF file, a
/// directory written by furlong export, or a Furlong checkpoint or run directory. Throws a one-line UserError naming
/// the file and the key if the config asks for something that Furlong does not support. Throws a UserError naming the
/// tensors if they do not match the config.
SourceModel open_source_model(const std::filesystem::path& path, const ImportOptions& options = {});

/// Writes a checkpoint of an untrained model atomically: config, vocabulary, parameters, and the files and tensors of
/// its origin. Throws StoppedBySignal on the signals of StopRequests, unless the checkpoint is complete.
void write_model(const Model& model, const std::optional<Origin>& origin, const std::filesystem::path& path);
/// The same, to an empty file that the caller opened before the model was known.
void write_model(const Model& model, const std::optional<Origin>& origin, std::unique_ptr<AtomicFile> output);

/// Completes the settings of an imported model with defaults: the sequence length and, for encoders, the sampler.
/// Throws UserError starting with `origin` if the result is invalid.
Settings complete_settings(Settings settings, const std::string& origin);

/// Selects every parameter as frozen, for models that are converted and never trained. Frozen parameters have no
/// gradients, which halves the memory.
bool all_frozen(const Parameter& parameter);

}  // namespace furlong
