#include "conversion/attention_request.h"

#include <algorithm>
#include <charconv>

#include "layers/attention/linear/directions.h"
#include "layers/blocks/block.h"

namespace furlong {
namespace {

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// Marks "5" or "5-7" in `chosen`.
void mark(std::string_view item, std::vector<bool>& chosen, const std::string& option, std::string_view whole,
          const std::string& things) {
  const std::vector<std::string_view> ends = split(item, '-');
  const auto first = whole_number(ends[0]), last = whole_number(ends.back());
  const auto count = static_cast<std::int64_t>(chosen.size());
  if (ends.size() > 2 || !first || !last || *first > *last)
    throw UserError("{} {}: '{}' is neither a number nor a range; expected {} like 0,1,5-7", option, whole, item,
                    things);
  if (*last >= count)
    throw UserError("{} {}: there is no number {} among {} {}; they count from 0", option, whole, *last, count, things);
  std::fill(chosen.begin() + *first, chosen.begin() + *last + 1, true);
}

bool has_features(const std::string& mechanism) { return mechanism == "linear" || mechanism == "windowed"; }

bool any_of_heads(const HeadMechanisms& mechanisms, bool (*wanted)(const std::string&)) {
  return std::any_of(mechanisms.begin(), mechanisms.end(),
                     [&](const auto& heads) { return std::any_of(heads.begin(), heads.end(), wanted); });
}

}  // namespace

AttentionRequest attention_request(const std::string& text) {
  AttentionRequest request;
  const std::string head = text.substr(0, text.find_first_of(":+"));
  if (text == "softmax") return request;
  if (head != "windowed" && head != "linformer") {
    request.mechanism = "linear";
    request.candidate = attention_candidate(text, "--attention");
    return request;
  }
  request.mechanism = head;
  const std::size_t plus = std::min(text.find('+'), text.size());
  const std::string size =
      text.size() > head.size() && text[head.size()] == ':' ? text.substr(head.size() + 1, plus - head.size() - 1) : "";
  if (!size.empty()) {
    const auto value = whole_number(size);
    if (!value || *value == 0)
      throw UserError("--attention {}: found '{}' after the colon; expected a number of tokens above 0", text, size);
    request.size = *value;
  }
  if (head == "linformer") {
    if (plus != text.size())
      throw UserError("--attention {}: linformer has no feature map; expected linformer or linformer:R", text);
    return request;
  }
  if (request.size == 0)
    throw UserError(
        "--attention {}: expected how many of the nearest tokens keep softmax's exact weights, as in windowed:64",
        text);
  request.candidate =
      attention_candidate(plus == text.size() ? "favor_positive" : text.substr(plus + 1), "--attention");
  return request;
}

HeadMechanisms head_mechanisms(const ModelSettings& model) {
  const AttentionSettings& attention = model.attention;
  HeadMechanisms all;
  for (std::int64_t layer = 0; layer < model.n_layers; ++layer) {
    std::vector<std::string> heads(static_cast<std::size_t>(model.n_heads), attention.mechanism);
    if (!attention.heads.empty()) heads = attention.heads;
    if (!attention.layers.empty()) {
      const std::vector<std::string> names = layers::mechanisms_in(attention.layers[static_cast<std::size_t>(layer)]);
      if (names.size() == 1) {
        std::fill(heads.begin(), heads.end(), names[0]);
      } else {
        heads = names;
      }
    }
    all.push_back(std::move(heads));
  }
  return all;
}

void set_head_mechanisms(ModelSettings& model, const HeadMechanisms& mechanisms) {
  AttentionSettings& attention = model.attention;
  attention.mechanism = "softmax";
  attention.layers.clear();
  attention.heads.clear();
  const auto uniform = [](const std::vector<std::string>& heads) {
    return std::all_of(heads.begin(), heads.end(), [&](const std::string& name) { return name == heads[0]; });
  };
  const bool same =
      std::all_of(mechanisms.begin(), mechanisms.end(), [&](const auto& heads) { return heads == mechanisms[0]; });
  if (same && uniform(mechanisms[0])) {
    attention.mechanism = mechanisms[0][0];
  } else if (same) {
    attention.heads = mechanisms[0];
  } else if (model.shared_layers) {
    throw UserError(
        "--layers: the layers of this model are one block, used {} times; expected the same attention in all of them",
        model.n_layers);
  } else {
    for (const auto& heads : mechanisms)
      attention.layers.push_back(uniform(heads) ? heads[0] : config::join(heads, " "));
  }
}

std::vector<bool> chosen_numbers(const std::string& text, std::int64_t count, const std::string& option,
                                 const std::string& things) {
  std::vector<bool> chosen(static_cast<std::size_t>(count), text.empty());
  if (text.empty()) return chosen;
  for (const std::string_view item : split(text, ',')) mark(item, chosen, option, text, things);
  return chosen;
}

std::vector<std::vector<bool>> chosen_heads(const std::string& text, const ModelSettings& model) {
  constexpr const char* option = "--heads-keep-softmax";
  std::vector<std::vector<bool>> chosen(static_cast<std::size_t>(model.n_layers),
                                        std::vector<bool>(static_cast<std::size_t>(model.n_heads)));
  if (text.empty()) return chosen;
  for (const std::string_view item : split(text, ',')) {
    const std::vector<std::string_view> parts = split(item, ':');
    if (parts.size() != 2)
      throw UserError("{} {}: '{}' is not of the form LAYER:HEAD; expected for instance 0:3,2:0-1", option, text, item);
    std::vector<bool> layers(chosen.size());
    mark(parts[0], layers, option, text, "layers");
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      if (layers[layer]) mark(parts[1], chosen[layer], option, text, "heads");
    }
  }
  return chosen;
}

void set_features(const AttentionCandidate& candidate, std::int64_t features, AttentionSettings& attention) {
  const AttentionSettings defaults;
  attention.feature_map = ops::feature_map_info(candidate.map).name;
  const bool polynomial = ops::feature_map_info(candidate.map).highest_order > 0;
  attention.order = polynomial ? candidate.map_options.order : defaults.order;
  if (!polynomial) attention.most_features = defaults.most_features;
  attention.n_features = features;
  attention.centering = candidate.centering;
  attention.scaling = candidate.saderf ? "saderf" : "none";
  if (candidate.is_random()) {
    attention.directions = layers::directions_kinds()[static_cast<std::size_t>(candidate.kind)].second;
  } else {
    attention.directions = defaults.directions;
    attention.redraw_every = defaults.redraw_every;
  }
  if (!ops::can_cancel(candidate.map)) attention.denominator_guard = defaults.denominator_guard;
}

void apply_request(const AttentionRequest& request, std::int64_t features, const std::vector<bool>& layers,
                   const std::vector<std::vector<bool>>& keep_softmax, ModelSettings& model) {
  HeadMechanisms mechanisms = head_mechanisms(model);
  HeadMechanisms others;  // of layers that stay as they are
  for (std::size_t layer = 0; layer < mechanisms.size(); ++layer) {
    if (!layers[layer]) {
      others.push_back(mechanisms[layer]);
      continue;
    }
    for (std::size_t head = 0; head < mechanisms[layer].size(); ++head)
      mechanisms[layer][head] = keep_softmax[layer][head] ? "softmax" : request.mechanism;
  }
  AttentionSettings& attention = model.attention;
  if (request.candidate) {
    const AttentionSettings before = attention;
    set_features(*request.candidate, features, attention);
    if (any_of_heads(others, has_features) && !(attention == before))
      throw UserError(
          "--attention: layers that --layers leaves as they are have {}, and a model has one feature map for all of "
          "its heads; convert them too, or take the same",
          before.feature_map);
  } else if (features > 0) {
    throw UserError("--features {}: {} has no features; leave it out", features, request.mechanism);
  }
  if (!any_of_heads(mechanisms, has_features)) {  // no key of features may stay where nothing reads it
    AttentionSettings plain;
    plain.window = attention.window;
    plain.projected_length = attention.projected_length;
    plain.projection = attention.projection;
    plain.sharing = attention.sharing;
    attention = plain;
  }
  const auto uses = [&](const char* name) {
    return std::any_of(mechanisms.begin(), mechanisms.end(),
                       [&](const auto& heads) { return std::find(heads.begin(), heads.end(), name) != heads.end(); });
  };
  attention.softmax_window = request.mechanism == "windowed" ? request.size
                             : uses("windowed")              ? attention.softmax_window
                                                             : 0;
  if (request.mechanism == "linformer") {
    attention.projected_length = request.size;
  } else if (!uses("linformer")) {
    const AttentionSettings defaults;
    attention.projected_length = defaults.projected_length;
    attention.projection = defaults.projection;
    attention.sharing = defaults.sharing;
  }
  set_head_mechanisms(model, mechanisms);
}

}  // namespace furlong
