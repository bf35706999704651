#pragma once
// Strict parsing of one value: a narrowed subset of YAML 1.2's core schema, independent of yaml-cpp's conversions.
#include "framework/config/table.h"
#include "framework/config/yaml_source.h"

namespace furlong::config {

/// Returns the node as a value of the key's type. Numbers are decimal (an integer may be written 1e6); booleans are
/// true and false; quoted text is never a number. Throws UserError with the place if type, range or choice is wrong.
Value parse_value(const Key& key, const YAML::Node& node, const YamlSource& source);

/// Returns a node as errors show it: `4`, `the text "4"`, `a list`, `nothing`. One line, truncated when long.
std::string describe(const YAML::Node& node);

/// Returns a path with a leading "~/" and every ${NAME} and ${NAME:-default} expanded ("$$" is a literal "$"). An empty
/// variable counts as unset. Throws UserError that starts with `where` for an unset variable without a default and for
/// invalid syntax.
std::string expand_path(const std::string& text, const std::string& where);

}  // namespace furlong::config
