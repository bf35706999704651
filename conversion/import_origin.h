#pragma once
// What a checkpoint stores about the origin of an imported model: enough to export it bit for bit.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conversion/architecture.h"
#include "trainers/checkpoint/checkpoint_origin.h"

namespace furlong {

/// Origin of an imported model.
struct Origin {
  std::string model_type;  ///< the Architecture that read the tensors
  std::string source;      ///< last component of the path
  std::string format;      ///< safetensors, pytorch, gguf
  std::string config;      ///< config.json byte for byte; for GGUF, the equivalent config.json
  TensorNaming naming;
  std::map<std::string, std::string> stored_types;  ///< dtype of every tensor in the file, by name
  std::vector<std::string> file_names;              ///< of the tokenizer and related files
  std::vector<std::string> files;                   ///< their contents, in the same order
  std::vector<CheckpointOrigin::Tensor> carried;

  /// Returns the content of one of `files`, or an empty string if it is missing.
  std::string file(std::string_view name) const;

  /// Returns the form that checkpoints store.
  CheckpointOrigin to_checkpoint() const;
  /// Inverse of to_checkpoint(). Throws UserError starting with `path` if the text is not what to_checkpoint() writes.
  static Origin from_checkpoint(const CheckpointOrigin& origin, const std::string& path);
};

/// Hugging Face's file name of a chat template (Jinja). A GGUF file stores the template in its metadata; its Origin
/// stores it under this name.
inline constexpr const char* chat_template_file = "chat_template.jinja";

/// Returns the names of the files that collect_files() reads, relative to the model's directory.
const std::vector<std::string>& model_file_names();

/// Reads the tokenizer's and related files of a Hugging Face directory into `origin`. Missing files are skipped. Throws
/// UserError if a file is larger than 256 MiB.
void collect_files(const std::filesystem::path& directory, Origin& origin);

}  // namespace furlong
