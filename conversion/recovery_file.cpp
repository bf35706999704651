#include "conversion/recovery_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/json_text.h"
#include "framework/core/error.h"
#include "framework/core/json_output.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/text_file.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t longest_record = std::uint64_t{1} << 26;

bool is_stage(const std::string& name) { return name != "teacher" && name != "before"; }

/// Returns "1_attention_transfer" for RUN/1_attention_transfer/checkpoints/best.h5.
std::string folder_of(const fs::path& checkpoint) { return checkpoint.parent_path().parent_path().filename().string(); }

std::vector<std::string> folders_of(const Recovery& recovery) {
  std::vector<std::string> folders;
  for (const MeasuredModel& model : recovery.models)
    if (is_stage(model.candidate.name)) folders.push_back(folder_of(model.candidate.checkpoint));
  return folders;
}

/// Returns the folders of the stages in a recovery.json that still exist. Returns none if the file has another format.
std::vector<std::string> folders_in(const fs::path& file) {
  std::vector<std::string> folders;
  Json json;
  try {
    json = foreign::parse_ordered_json(read_text_file(file, longest_record), file.string());
  } catch (const UserError&) {
    return folders;
  }
  if (!json.is_object() || !json.contains("models")) return folders;
  const auto text = [](const Json& model, const char* key) {
    return model.is_object() && model.contains(key) && model[key].is_string() ? model[key].get<std::string>()
                                                                              : std::string();
  };
  for (const Json& model : json["models"]) {
    const std::string folder = is_stage(text(model, "name")) ? folder_of(text(model, "checkpoint")) : "";
    std::error_code failure;  // the record may name anything
    if (!folder.empty() && fs::exists(file.parent_path() / folder / "checkpoints", failure)) folders.push_back(folder);
  }
  return folders;
}

fs::path place_of(const fs::path& run, const std::vector<std::string>& measured) {
  const fs::path usual = run / "recovery.json";
  const std::vector<std::string> before = folders_in(usual);
  const auto is_measured = [&](const std::string& folder) {
    return std::find(measured.begin(), measured.end(), folder) != measured.end();
  };
  if (std::all_of(before.begin(), before.end(), is_measured)) return usual;
  const fs::path place =
      run / fmt::format("recovery_{}.json", measured.empty() ? "before" : config::join(measured, "_"));
  log_info("{} holds other stages ({}) and stays unchanged; writing these measurements to {}", usual.string(),
           config::join(before, ", "), place.string());
  return place;
}

}  // namespace

fs::path write_recovery(const FinetunePlan& plan, const FinetuneOptions& options, const Recovery& recovery) {
  Json json{
      {"source", plan.student.finetune.source.string()},
      {"config", options.config.string()},
      {"overrides", options.overrides},
      {"attention", to_json(plan.student)["model"]["attention"]},
      {"version", version()},
      {"commit", commit()},
      {"machine", {{"cpu", read_machine().cpu.model}, {"device", plan.student.device}, {"threads", thread_count()}}}};
  json.update(to_json(recovery));
  for (std::size_t i = 0; i < recovery.models.size(); ++i) {
    const Candidate& stage = recovery.models[i].candidate;
    if (!is_stage(stage.name)) continue;
    const std::string text = CheckpointReader::open(stage.checkpoint).text("config");
    json["models"][i]["settings"] =
        to_json(from_checkpoint_text(text, stage.checkpoint.string() + " (config)").settings);
  }
  const fs::path place = place_of(plan.student.run_directory, folders_of(recovery));
  write_file_atomically(place, json_text(json));
  return place;
}

}  // namespace furlong
