#pragma once
// Records what a run directory of furlong finetune was made from, so that a later run cannot mix up its models.
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace furlong {

/// Returns a hash of a model's content, independent of its path. For a Furlong checkpoint it is the stored checksum.
/// For a foreign model it covers config.json, the tokenizer's files and all weights.
std::string fingerprint_of_source(const std::filesystem::path& source);
/// Returns the stored checksum of a Furlong checkpoint. Throws UserError if the file is not one.
std::string fingerprint_of_checkpoint(const std::filesystem::path& checkpoint);

/// The file RUN/finetune.json.
class FinetuneRecord {
 public:
  /// Reads the file if it exists. Throws UserError if its content is not what write() produces.
  explicit FinetuneRecord(std::filesystem::path run_directory);

  std::string source;              ///< path of the source, for messages
  std::string source_fingerprint;  ///< empty: the run has no files yet
  /// Fingerprint of the checkpoint that each stage started from, by folder name (1_attention_transfer).
  std::map<std::string, std::string> start_fingerprints;

  /// Throws UserError if the run was made from another model than `wanted`.
  void check_source(const std::filesystem::path& wanted, const std::string& fingerprint) const;
  /// Writes the file atomically.
  void write() const;

 private:
  std::filesystem::path directory_;
};

}  // namespace furlong
