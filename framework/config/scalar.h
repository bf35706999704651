#pragma once
// Strict reading of one value: the types of YAML 1.2's core schema, narrowed, whatever yaml-cpp would convert.
#include "framework/config/table.h"
#include "framework/config/yaml_source.h"

namespace furlong::config {

/// The node as a value of the key's type. Numbers are decimal (an integer may be written 1e6), booleans are true and
/// false, quoted text is never a number. Throws UserError, with the place, when the type, the range or the choice is
/// wrong.
Value parse_value(const Key& key, const YAML::Node& node, const YamlSource& source);

/// A node as errors show it: `4`, `the text "4"`, `a list`, `nothing`; one line, cut when long.
std::string describe(const YAML::Node& node);

/// A path with a leading "~/" and every ${NAME} and ${NAME:-default} replaced ("$$" stands for "$"). An empty variable
/// counts as not set. Throws UserError that begins with `where` for a variable that is not set and has no default, and
/// for broken syntax.
std::string expand_path(const std::string& text, const std::string& where);

}  // namespace furlong::config
