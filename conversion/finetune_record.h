#pragma once
// Records what a run directory of furlong finetune was made from, so that a later run cannot mix up its models.
#include <filesystem>
#include <map>
#include <string>

namespace furlong {

/// The file RUN/finetune.json.
class FinetuneRecord {
 public:
  /// Reads the file if it exists. Throws UserError if its content is not what write() produces.
  explicit FinetuneRecord(std::filesystem::path run_directory);

  std::string source;              ///< path of the source, for messages
  std::string source_fingerprint;  ///< empty: the run has no files yet
  std::string data_fingerprint;    ///< of the data when RUN/student.h5 was written; empty: unknown
  /// Fingerprint of the checkpoint that each stage started from, by folder name (1_attention_transfer).
  std::map<std::string, std::string> start_fingerprints;

  /// Writes the file atomically.
  void write() const;
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
};

}  // namespace furlong
