#pragma once
// Writes a table and its bound settings as YAML, JSON, JSON Schema and a reference page.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "framework/config/table.h"

namespace furlong::config {

/// Returns all keys with their values. Keys without an effect in this combination are commented out because reading
/// rejects them. Reading the result gives the same settings. With `comments` each key is followed by its meaning and
/// unit. With `only` the result has only those of its keys that have an effect.
std::string to_yaml(const Table& table, bool comments = false, const Origins* only = nullptr);

/// Returns all keys with an effect, or those of `only`, as nested objects, with their values as they are: a dollar sign
/// in a path is not doubled as in YAML.
nlohmann::ordered_json to_json(const Table& table, const Origins* only = nullptr);

/// Returns a JSON Schema (draft 7) of the files that `table` reads, for editors. `table` must be bound to default
/// settings.
nlohmann::ordered_json json_schema(const Table& table, const std::string& title);

/// Returns Markdown: a heading and a table of keys (type, unit, default, range, meaning) for each section. `table` must
/// be bound to default settings.
std::string reference_markdown(const Table& table);

}  // namespace furlong::config
