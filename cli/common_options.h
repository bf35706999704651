#pragma once
// Options that several subcommands share, described in the same words.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/arguments.h"

namespace furlong {
enum class Weights;
struct Model;
}  // namespace furlong

namespace furlong::command_line {

/// Describes an argument that names a model: a checkpoint or a run directory.
inline constexpr const char* checkpoint_description =
    "A checkpoint, or a run directory: its best checkpoint, or the newest if none is marked as best. Of a furlong "
    "finetune run, the last stage";

Option add_split(Command command, std::string& split, const std::string& description = "Part of the dataset");
/// --weights ema|raw, and the value it names.
Option add_weights(Command command, std::string& weights);
Weights weights_named(const std::string& name);
/// --set KEY=VALUE, repeatable. `example` is one such pair.
Option add_overrides(Command command, std::vector<std::string>& overrides, const std::string& example);
Option add_device(Command command, std::string& device);
Option add_threads(Command command, std::int64_t& threads);
Option add_json(Command command, bool& json, const std::string& description = "Print the result as JSON");

/// Returns the program and the weights that results come from: `furlong`, `checkpoint`, `step`, `weights`.
nlohmann::ordered_json origin_of(const Model& model);

}  // namespace furlong::command_line
