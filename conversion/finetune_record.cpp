#include "conversion/finetune_record.h"

#include <nlohmann/json.hpp>

#include "formats/json_text.h"
#include "framework/core/error.h"
#include "framework/core/json_output.h"
#include "framework/io/atomic_file.h"
#include "framework/io/text_file.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t longest_record = std::uint64_t{1} << 24;

}  // namespace

FinetuneRecord::FinetuneRecord(fs::path run_directory) : directory_(std::move(run_directory)) {
  const fs::path path = directory_ / "finetune.json";
  if (!fs::exists(path)) return;
  constexpr const char* remedy = "choose another --run-dir, or remove this run";
  nlohmann::json json;
  try {
    json = foreign::parse_json(read_text_file(path, longest_record), path.string());
  } catch (const UserError& error) {
    throw UserError("{}; {}", error.what(), remedy);
  }
  try {
    json.at("source").get_to(source);
    json.at("source_fingerprint").get_to(source_fingerprint);
    json.at("beginnings").get_to(start_fingerprints);
    data_fingerprint = json.value("data_fingerprint", "");  // missing in files of earlier versions
  } catch (const nlohmann::json::exception&) {
    throw UserError("{}: is not what furlong finetune writes; {}", path.string(), remedy);
  }
}

void FinetuneRecord::write() const {
  const nlohmann::ordered_json json{{"source", source},
                                    {"source_fingerprint", source_fingerprint},
                                    {"beginnings", start_fingerprints},
                                    {"data_fingerprint", data_fingerprint}};
  write_file_atomically(directory_ / "finetune.json", json_text(json));
}

}  // namespace furlong
