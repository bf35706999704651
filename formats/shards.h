#pragma once
// Sharded Hugging Face checkpoints: an index names the file of each tensor.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "formats/tensor_file.h"

namespace furlong::foreign {

using Opener = std::function<std::unique_ptr<TensorFile>(const std::filesystem::path&)>;

/// Opens the checkpoint in `directory`: the file `whole` ("model.safetensors"), or the shards of its index
/// ("model.safetensors.index.json"). `open` opens each file. Throws UserError if neither exists, if a shard is not a
/// plain file name (nothing outside the directory is read), or if index and shards list different tensors.
std::unique_ptr<TensorFile> open_in_directory(const std::filesystem::path& directory, const std::string& whole,
                                              const Opener& open);

}  // namespace furlong::foreign
