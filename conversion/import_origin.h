#pragma once
// Where an imported model came from, as its checkpoint tells it: enough to give it back.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conversion/architecture.h"
#include "trainers/checkpoint/checkpoint_origin.h"

namespace furlong {

struct Origin {
  std::string model_type;  ///< of the architecture in whose terms the tensors were read
  std::string source;      ///< last component of the path
  std::string format;      ///< safetensors, pytorch, gguf
  std::string config;      ///< config.json as it was, byte by byte; of GGUF what it would have been
  Spelling spelling;
  std::map<std::string, std::string> stored_types;  ///< of every tensor of the file, by its name
  std::vector<std::string> file_names;              ///< of the tokenizer and its like; contents in `files`
  std::vector<std::string> files;
  std::vector<CheckpointOrigin::Tensor> carried;

  /// The content of one of `files`; empty where it is not there.
  std::string file(std::string_view name) const;

  CheckpointOrigin to_checkpoint() const;
  /// Throws UserError, beginning with `path`, for what to_checkpoint() does not write.
  static Origin from_checkpoint(const CheckpointOrigin& origin, const std::string& path);
};

/// Where Hugging Face keeps a chat template, in Jinja; a GGUF file has it in its metadata, and its origin under this
/// name.
inline constexpr const char* chat_template_file = "chat_template.jinja";

/// Names, inside a model's directory, of the files that collect_files() takes.
const std::vector<std::string>& files_beside_models();

/// Adds the files beside a Hugging Face model that say how its tokens are made and its outputs used, as far as they are
/// there, none of them larger than 256 MiB.
void collect_files(const std::filesystem::path& directory, Origin& origin);

}  // namespace furlong
