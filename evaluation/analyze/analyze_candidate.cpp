// Parses and prints the names of candidates.
#include <fmt/ranges.h>

#include "evaluation/analyze/analyze_attention.h"
#include "framework/config/nearest.h"
#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char letter : text) {
    if (letter == separator) {
      parts.emplace_back();
    } else {
      parts.back().push_back(letter);
    }
  }
  return parts;
}

ops::FeatureMap map_named(const std::string& name, const std::string& whole, const std::string& option) {
  std::vector<std::string> known;
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) {
    if (name == info.name) return info.map;
    known.emplace_back(info.name);
  }
  std::string near = config::nearest(name, known);
  if (const layers::AttentionName* const known_name = layers::find_attention_name(name)) near = known_name->feature_map;
  if (name == layers::linear_attention) near = "favor_positive";  // linear attention goes by its feature map here
  throw UserError("{} {}: unknown feature map '{}'{}; expected one of {}", option, whole, name,
                  near.empty() ? "" : fmt::format(", did you mean {}?", near), fmt::join(known, ", "));
}

bool has_order(ops::FeatureMap map) { return ops::feature_map_info(map).highest_order > 0; }

}  // namespace

std::string AttentionCandidate::name() const {
  std::string text = ops::feature_map_info(map).name;
  if (has_order(map)) text += ":" + std::to_string(map_options.order);
  if (centering) text += "+centering";
  if (saderf) text += "+saderf";
  return text;
}

std::int64_t AttentionCandidate::features(std::int64_t asked, std::int64_t d) const {
  try {
    return ops::feature_count(map, map_options, d, is_random() ? ops::projection_count(map, asked) : 0);
  } catch (const UserError& error) {
    throw UserError("{}: {}", is_random() ? fmt::format("--features {}", asked) : "--feature-maps " + name(),
                    error.what());
  }
}

AttentionCandidate attention_candidate(const std::string& name, const std::string& option) {
  const std::vector<std::string> parts = split(name, '+');
  const std::vector<std::string> map = split(parts[0], ':');
  AttentionCandidate candidate;
  candidate.map = map_named(map[0], name, option);
  if (map.size() > 1) {
    if (!has_order(candidate.map)) throw UserError("{} {}: {} has no order; expected {}", option, name, map[0], map[0]);
    const bool digit = map.size() == 2 && map[1].size() == 1 && map[1][0] >= '1' && map[1][0] <= '9';
    if (!digit) throw UserError("{} {}: expected an order after the colon, for example {}:2", option, name, map[0]);
    candidate.map_options.order = map[1][0] - '0';
  }
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (parts[i] != "centering" && parts[i] != "saderf")
      throw UserError("{} {}: unknown modifier '{}'; expected centering or saderf", option, name, parts[i]);
    (parts[i] == "centering" ? candidate.centering : candidate.saderf) = true;
  }
  if (parts.size() > 1 && !ops::feature_map_info(candidate.map).estimates_softmax)
    throw UserError("{} {}: {} applies only to feature maps that estimate exp(q·k/√d); expected {} alone", option, name,
                    parts[1], map[0]);
  return candidate;
}

}  // namespace furlong
