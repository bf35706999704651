#pragma once
// Checkpoints in several files, as Hugging Face writes them: an index names the file of each tensor.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "formats/tensor_file.h"

namespace furlong::foreign {

using Opener = std::function<std::unique_ptr<TensorFile>(const std::filesystem::path&)>;

/// What `directory` has: the file `whole` ("model.safetensors"), or the shards of its index
/// ("model.safetensors.index.json"), each opened by `open`. Throws UserError where there is neither, where a shard is
/// not a plain file name (so that nothing outside the directory is read), or where index and shards disagree about
/// which tensors there are.
std::unique_ptr<TensorFile> open_in_directory(const std::filesystem::path& directory, const std::string& whole,
                                              const Opener& open);

}  // namespace furlong::foreign
