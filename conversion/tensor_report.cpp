#include "conversion/tensor_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "framework/core/printable.h"

namespace furlong {
namespace {

/// Replaces the layer index in a name by "N" and returns it, or -1 without one. The index follows a word such as
/// "blocks" or "layers".
std::pair<std::string, std::int64_t> without_layer(const std::string& name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t dot = std::min(name.find('.', begin), name.size());
    const std::string_view word = std::string_view(name).substr(begin, dot - begin);
    if (word == "blocks" || word == "h" || word == "layers" || word == "layer" || word == "blk") {
      std::int64_t layer = 0;
      const char* const first = name.data() + std::min(dot + 1, name.size());
      const auto [last, error] = std::from_chars(first, name.data() + name.size(), layer);
      if (error == std::errc{} && layer >= 0 && last != name.data() + name.size() && *last == '.')
        return {name.substr(0, dot + 1) + "N" + last, layer};
    }
    begin = dot + 1;
  }
  return {name, -1};
}

/// Collects lines in the order of their first appearance. Equal lines share the list of their layers.
class Lines {
 public:
  void add(const std::string& text, std::int64_t layer) {
    const auto [at, fresh] = layers_.try_emplace(text);
    if (fresh) order_.push_back(text);
    at->second.push_back(layer);
  }
  std::string text() const {
    std::string result;
    for (const std::string& line : order_) {
      const std::vector<std::int64_t>& layers = layers_.at(line);
      const auto [least, most] = std::minmax_element(layers.begin(), layers.end());
      std::string which;
      if (*least >= 0) {
        const bool all = *most - *least + 1 == static_cast<std::int64_t>(layers.size());
        which = *least == *most ? fmt::format("  (N = {})", *least)
                : all           ? fmt::format("  (N = {} to {})", *least, *most)
                                : fmt::format("  (N = {})", fmt::join(layers, ", "));
      }
      result += "    " + line + which + "\n";
    }
    return result;
  }

 private:
  std::vector<std::string> order_;
  std::map<std::string, std::vector<std::int64_t>> layers_;
};

std::string matched_text(const std::vector<TensorReport::Matched>& list) {
  Lines lines;
  for (const TensorReport::Matched& one : list) {
    const auto [name, layer] = without_layer(one.parameter);
    std::vector<std::string> theirs;
    for (const std::string& each : one.foreign) theirs.push_back(foreign::printable(without_layer(each).first));
    const std::string from =
        theirs.empty() ? "" : fmt::format(" <- {} ({})", fmt::join(theirs, " + "), one.stored_type);
    lines.add(fmt::format("{} {}{}", name, one.shape.text(), from), layer);
  }
  return lines.text();
}

std::string named_text(const std::vector<TensorReport::Named>& list) {
  Lines lines;
  for (const TensorReport::Named& one : list) {
    const auto [name, layer] = without_layer(one.name);
    lines.add(
        fmt::format("{} {}{}", foreign::printable(name), one.shape.text(), one.note.empty() ? "" : ": " + one.note),
        layer);
  }
  return lines.text();
}

nlohmann::ordered_json shape_json(const Shape& shape) {
  auto array = nlohmann::ordered_json::array();
  for (const std::int64_t extent : shape) array.push_back(extent);
  return array;
}

nlohmann::ordered_json named_json(const std::vector<TensorReport::Named>& list) {
  auto array = nlohmann::ordered_json::array();
  for (const TensorReport::Named& one : list) {
    nlohmann::ordered_json object{{"name", one.name}, {"shape", shape_json(one.shape)}};
    if (!one.note.empty()) object["note"] = one.note;
    array.push_back(object);
  }
  return array;
}

void add_fault(std::string& faults, const char* what, const std::vector<TensorReport::Named>& list) {
  if (list.empty()) return;
  constexpr std::size_t most = 3;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(most, list.size()); ++i) {
    const auto& [name, shape, note] = list[i];
    names.push_back(foreign::printable(name) + " " + shape.text() + (note.empty() ? "" : ", " + note));
  }
  if (list.size() > most) names.emplace_back("...");
  faults += fmt::format("{}{} {} ({})", faults.empty() ? "" : ", ", list.size(), what, fmt::join(names, "; "));
}

}  // namespace

bool TensorReport::is_faultless(bool allow_missing, bool allow_unexpected) const {
  return (allow_missing || missing.empty()) && (allow_unexpected || unexpected.empty()) && misshapen.empty() &&
         unequal.empty();
}

std::string TensorReport::faults(bool allow_missing, bool allow_unexpected) const {
  std::string text;
  add_fault(text, "misshapen", misshapen);
  if (!allow_missing) add_fault(text, "missing", missing);
  if (!allow_unexpected) add_fault(text, "unexpected", unexpected);
  add_fault(text, "unequal to the tensor that they should repeat", unequal);
  return text;
}

std::string TensorReport::text() const {
  std::string result;
  const auto section = [&](const char* title, std::size_t count, const std::string& lines) {
    if (count > 0) result += fmt::format("  {} {}\n{}", count, title, lines);
  };
  section("matched", matched.size(), matched_text(matched));
  section("reinitialized", reinitialized.size(), named_text(reinitialized));
  section("stored for export only", carried.size(), named_text(carried));
  section("dropped with the old attention", left_behind.size(), named_text(left_behind));
  section("missing", missing.size(), named_text(missing));
  section("unexpected", unexpected.size(), named_text(unexpected));
  section("misshapen", misshapen.size(), named_text(misshapen));
  section("unequal to the tensor that they should repeat", unequal.size(), named_text(unequal));
  return result;
}

nlohmann::ordered_json TensorReport::json() const {
  auto matches = nlohmann::ordered_json::array();
  for (const Matched& one : matched) {
    nlohmann::ordered_json object{{"parameter", one.parameter}, {"shape", shape_json(one.shape)}};
    if (!one.foreign.empty()) object["tensors"] = one.foreign;
    if (!one.stored_type.empty()) object["stored_type"] = one.stored_type;
    matches.push_back(object);
  }
  return {{"matched", matches},
          {"missing", named_json(missing)},
          {"unexpected", named_json(unexpected)},
          {"misshapen", named_json(misshapen)},
          {"unequal", named_json(unequal)},
          {"reinitialized", named_json(reinitialized)},
          {"left_behind", named_json(left_behind)},
          {"carried", named_json(carried)}};
}

}  // namespace furlong
