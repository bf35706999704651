#include "conversion/export_directory.h"

#include <unistd.h>

#include <algorithm>
#include <regex>

#include "conversion/import_origin.h"
#include "conversion/performer_directory.h"
#include "conversion/transformers_model.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/interrupted_writes.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

constexpr const char* config_name = "config.json";
constexpr const char* weights_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

/// Returns whether there was such a file.
bool remove_file(const fs::path& path) {
  std::error_code failure;
  const bool removed = fs::remove(path, failure);
  if (failure && failure != std::errc::no_such_file_or_directory && failure != std::errc::not_a_directory)
    throw_file_error(path, "remove", failure.value());
  return removed;
}

/// Returns the names that files of a model can have, besides its config and a single file of weights.
std::vector<std::string> names_of_model(const fs::path& directory) {
  static const std::regex shard("model-[0-9]{5}-of-[0-9]{5}\\.safetensors");
  std::vector<std::string> names = model_file_names();
  names.insert(names.end(), {performer_vocabulary_file, index_name});
  for (const auto& [name, text] : transformers_sources()) names.push_back(name);
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && std::regex_match(name, shard)) names.push_back(name);
  }
  return names;
}

}  // namespace

ExportDirectory::ExportDirectory(fs::path path, bool overwrite) : path_(std::move(path)), overwrite_(overwrite) {
  created_.create(path_);
  config_ = std::make_unique<AtomicFile>(path_ / config_name, overwrite_);
  for (const char* name : {weights_name, index_name}) refuse_existing(path_ / name, overwrite_);
  for (const char* name : {config_name, weights_name, index_name})
    holds_model_ = holds_model_ || fs::exists(path_ / name);
}

SafetensorsWriter& ExportDirectory::add_weights(std::vector<ForeignTensor> tensors) {
  weights_ = std::make_unique<SafetensorsWriter>(path_ / weights_name, std::move(tensors), overwrite_);
  return *weights_;
}

void ExportDirectory::add(const std::string& name, std::string_view text) {
  created_.create((path_ / name).parent_path());
  files_.push_back(std::make_unique<AtomicFile>(path_ / name, overwrite_));
  files_.back()->write(text);
  files_.back()->flush();
}

void ExportDirectory::add_config(std::string_view text) {
  config_->write(text);
  config_->flush();
}

std::vector<std::string> ExportDirectory::commit() {
  const DelayedSignals delayed;  // the earlier model must not be gone without the new one
  std::vector<std::string> earlier, removed;
  if (holds_model_) {
    earlier = earlier_files();
    for (const std::string& name : earlier)
      if (::access((path_ / name).parent_path().c_str(), W_OK | X_OK) != 0)
        throw_file_error(path_ / name, "remove", errno);
    // From here on the earlier model is incomplete and cannot be loaded. A symbolic link stays, because config_
    // replaces its target.
    std::error_code missing;
    const fs::path config = fs::canonical(path_ / config_name, missing);
    if (!missing) remove_file(config);
  }
  std::vector<fs::path> named;
  try {
    weights_->finish();
    named.push_back(path_ / weights_name);
    for (const auto& file : files_) {
      file->commit();
      named.push_back(file->path());
    }
    removed = remove_earlier(earlier);
    config_->commit();
  } catch (...) {
    // Otherwise these files would refuse the same command.
    std::error_code ignored;
    for (const fs::path& file : named) {
      if (!overwrite_) fs::remove(fs::canonical(file, ignored), ignored);
    }
    throw;
  }
  return removed;
}

bool ExportDirectory::adds(const std::string& name) const {
  // A symbolic link can give a new file the name of an earlier one.
  const auto is_it = [&](const fs::path& path) {
    std::error_code missing;
    return path == path_ / name || fs::equivalent(path, path_ / name, missing);
  };
  return is_it(path_ / weights_name) ||
         std::any_of(files_.begin(), files_.end(), [&](const auto& file) { return is_it(file->path()); });
}

std::vector<std::string> ExportDirectory::earlier_files() const {
  std::vector<std::string> names;
  for (const std::string& name : names_of_model(path_)) {
    std::error_code missing;
    const fs::file_status status = fs::symlink_status(path_ / name, missing);
    const bool is_file = fs::is_regular_file(status) || fs::is_symlink(status);  // a folder is the user's own
    if (is_file && !adds(name)) names.push_back(name);
  }
  return names;
}

/// The new weights have their name: what cannot be removed now must not keep the model from its config.
std::vector<std::string> ExportDirectory::remove_earlier(const std::vector<std::string>& names) const {
  std::vector<std::string> removed;
  for (const std::string& name : names) {
    try {
      if (!remove_file(path_ / name)) continue;
    } catch (const Error& error) {
      log_warn("{}; it is of the earlier model: remove it", error.what());
      continue;
    }
    removed.push_back(name);
    const fs::path folder = path_ / fs::path(name).parent_path();
    std::error_code ignored;
    if (name.find('/') != std::string::npos && fs::is_directory(folder, ignored) && fs::is_empty(folder, ignored))
      fs::remove(folder, ignored);
  }
  return removed;
}

}  // namespace furlong
