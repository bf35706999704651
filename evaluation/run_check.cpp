#include "evaluation/run_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "framework/core/error.h"
#include "framework/core/json_output.h"
#include "framework/io/text_file.h"
#include "trainers/checkpoint/checkpoints.h"

namespace furlong {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

void refuse_other_run(const Settings& settings) {
  const fs::path file = settings.run_directory / "config.yaml";
  if (!fs::exists(file) || !newest_complete_checkpoint(settings.run_directory / "checkpoints")) return;
  constexpr std::uint64_t max_bytes = 1 << 24;
  const auto flat = [](const Settings& one) {
    Json json = to_json(one);
    for (const char* key : {"run_directory", "threads", "log"}) json.erase(key);  // the result does not depend on them
    return json.flatten();
  };
  const Json here = flat(settings);
  Json there = flat(from_checkpoint_text(read_text_file(file, max_bytes), file.string()).settings);
  constexpr std::size_t most_named = 5;
  std::string differences;
  std::size_t n_differences = 0;
  const auto compare = [&](const std::string& key, const Json& found, const Json& expected) {
    if (found == expected || ++n_differences > most_named) return;
    std::string name = key.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    differences += fmt::format("{} is {} instead of {}; ", name, json_line(found), json_line(expected));
  };
  for (const auto& [key, value] : here.items()) {
    compare(key, there.value(key, Json()), value);
    there.erase(key);
  }
  for (const auto& [key, value] : there.items()) compare(key, value, Json());
  if (n_differences > most_named) differences += fmt::format("and {} more; ", n_differences - most_named);
  if (!differences.empty())
    throw UserError(
        "{}: the directory holds a run with other settings: {}use them, another output directory, or remove {}",
        file.string(), differences, settings.run_directory.string());
}

}  // namespace furlong
