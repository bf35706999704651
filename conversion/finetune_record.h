#pragma once
// What a run directory of furlong finetune was made from, so that nothing in it is taken for something else.
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace furlong {

/// The content of a model, whatever its path: of our checkpoints the checksum that they state, of a foreign model a
/// hash of config.json, the tokenizer's files and its weights, read whole.
std::string fingerprint_of_source(const std::filesystem::path& source);
std::string fingerprint_of_checkpoint(const std::filesystem::path& checkpoint);

/// RUN/finetune.json.
class FinetuneRecord {
 public:
  /// Reads the file where there is one. Throws UserError where it is not what write() leaves.
  explicit FinetuneRecord(std::filesystem::path run_directory);

  std::string source;              ///< path, for people
  std::string source_fingerprint;  ///< empty: nothing has been made here
  std::map<std::string, std::string>
      beginnings;  ///< by folder (1_transfer): fingerprint of the checkpoint that the stage began from

  /// Throws UserError where the run was made from another model than `source`.
  void check_source(const std::filesystem::path& wanted, const std::string& fingerprint) const;
  void write() const;

 private:
  std::filesystem::path directory_;
};

}  // namespace furlong
