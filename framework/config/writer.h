#pragma once
// What a table and the settings that it is bound to look like as YAML, JSON, JSON Schema and a reference page.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "framework/config/table.h"

namespace furlong::config {

/// All keys with their values. Keys without an effect in this combination stand in comments, because reading refuses
/// them; what is read back equals what was written. With `comments` each key is followed by its meaning and unit.
std::string to_yaml(const Table& table, bool comments = false);

/// The same as nested objects, without the keys that have no effect.
nlohmann::ordered_json to_json(const Table& table);

/// JSON Schema (draft 7) of the files that `table` reads, for editors. `table` must be bound to default settings.
nlohmann::ordered_json json_schema(const Table& table, const std::string& title);

/// Markdown: a heading and a table of keys (type, unit, default, range, meaning) for each section. Bound to default
/// settings.
std::string reference_markdown(const Table& table);

}  // namespace furlong::config
