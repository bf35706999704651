#pragma once
// Fingerprints of models, by which a run of furlong finetune recognizes what it was made from.
#include <filesystem>
#include <string>

#include "conversion/finetune_record.h"

namespace furlong {

/// Returns a hash of a model's content, independent of its path. For a Furlong checkpoint it is the stored checksum.
/// For an imported model (Hugging Face or GGUF) it covers config.json, the tokenizer's files and all weights.
std::string fingerprint_of_source(const std::filesystem::path& source);
/// Returns the stored checksum of a Furlong checkpoint. Throws UserError if the file is not one.
std::string fingerprint_of_checkpoint(const std::filesystem::path& checkpoint);

/// Throws UserError if `record` belongs to a different model than `wanted`, which has this fingerprint.
void check_source(const FinetuneRecord& record, const std::filesystem::path& wanted, const std::string& fingerprint);

}  // namespace furlong
