#include "conversion/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "conversion/import_model.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"
#include "trainers/model/model.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

class Hash {
 public:
  Hash() : state_(XXH3_createState()) {
    if (!state_) throw MachineError("out of memory");
    XXH3_64bits_reset(state_);
  }
  ~Hash() { XXH3_freeState(state_); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  void add_file(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw_file_error(path, "read", errno);
    std::vector<char> block(std::size_t{1} << 20);
    while (in.read(block.data(), static_cast<std::streamsize>(block.size())), in.gcount() > 0)
      XXH3_64bits_update(state_, block.data(), static_cast<std::size_t>(in.gcount()));
    if (in.bad()) throw MachineError("{}: cannot read: input/output error", path.string());
  }
  std::string text() const { return fmt::format("{:016x}", XXH3_64bits_digest(state_)); }

 private:
  XXH3_state_t* state_;
};

/// Returns the files that a fingerprint covers: config.json, the tokenizer's files, the weights and their index; for
/// GGUF the file itself. `earlier` leaves out files that older fingerprints did not cover.
std::vector<fs::path> files_of(const fs::path& source, bool earlier = false) {
  if (source.extension() == ".gguf" ||
      (fs::is_regular_file(source) && !fs::exists(source.parent_path() / "config.json")))
    return {source};
  std::vector<fs::path> files;
  const fs::path folder = fs::is_directory(source) ? source : source.parent_path();
  const bool safetensors = fs::is_directory(source) ? fs::exists(folder / "model.safetensors") ||
                                                          fs::exists(folder / "model.safetensors.index.json")
                                                    : source.extension() == ".safetensors";
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path& path = entry.path();
    const std::string extension = path.extension().string();
    const bool of_weights =
        extension == (safetensors ? ".safetensors" : ".bin") || (!safetensors && extension == ".pt");
    static const std::vector<std::string> others{"config.json",
                                                 "tokenizer.json",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "vocab.txt",
                                                 "spiece.model",
                                                 "tokenizer.model",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json"};
    const std::string name = path.filename().string();
    const bool is_index = name == (safetensors ? "model.safetensors.index.json" : "pytorch_model.bin.index.json");
    if (earlier && (is_index || name == "special_tokens_map.json" || name == "added_tokens.json")) continue;
    const bool is_other = is_index || std::find(others.begin(), others.end(), name) != others.end();
    if (entry.is_regular_file() && (is_other || of_weights)) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string fingerprint_of_files(const std::vector<fs::path>& files) {
  Hash hash;
  for (const fs::path& file : files) hash.add_file(file);
  return hash.text();
}

}  // namespace

std::string fingerprint_of_checkpoint(const fs::path& checkpoint) {
  const auto checksum = checkpoint_checksum(checkpoint);
  if (!checksum) throw UserError("{}: is not a Furlong checkpoint", checkpoint.string());
  return fmt::format("{:016x}", *checksum);
}

std::string fingerprint_of_source(const fs::path& source) {
  if (!fs::exists(source))
    throw_missing("finetune.source: " + source.string(),
                  "a Hugging Face directory, a GGUF file, a checkpoint or a run directory");
  if (!is_foreign_model(source)) return fingerprint_of_checkpoint(checkpoint_of(source));
  return fingerprint_of_files(files_of(source));
}

void check_source(const FinetuneRecord& record, const fs::path& wanted, const std::string& fingerprint) {
  if (record.source_fingerprint.empty() || record.source_fingerprint == fingerprint) return;
  if (is_foreign_model(wanted) && record.source_fingerprint == fingerprint_of_files(files_of(wanted, true))) return;
  throw UserError(
      "{}: was made from another model than {} has now (finetune.json names {}); choose another --run-dir, or remove "
      "this run",
      record.directory().string(), wanted.string(), foreign::printable(record.source));
}

}  // namespace furlong
