#include "conversion/attention_request.h"

#include <algorithm>
#include <charconv>

#include "framework/core/log.h"
#include "layers/attention/linear/random_projection.h"
#include "layers/attention/mechanism.h"

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

/// Selects "5" or "5-7" in `chosen`.
void mark(std::string_view item, std::vector<bool>& chosen, const std::string& option, std::string_view whole,
          const std::string& things) {
  const std::vector<std::string_view> ends = split(item, '-');
  const auto first = whole_number(ends[0]), last = whole_number(ends.back());
  const auto count = static_cast<std::int64_t>(chosen.size());
  if (ends.size() > 2 || !first || !last || *first > *last)
    throw UserError("{} {}: '{}' is neither a number nor a range; expected {} like 0,1,5-7", option, whole, item,
                    things);
  if (*last >= count)
    throw UserError("{} {}: there is no number {} among {} {}; they are numbered from 0", option, whole, *last, count,
                    things);
  std::fill(chosen.begin() + *first, chosen.begin() + *last + 1, true);
}

bool has_features(const std::string& mechanism) { return layers::mechanism_info(mechanism).has_features; }

bool is_hybrid(const std::string& mechanism) { return layers::mechanism_info(mechanism).is_hybrid; }
bool projects_sequence(const std::string& mechanism) { return layers::mechanism_info(mechanism).projects_sequence; }

bool any_of_heads(const HeadMechanisms& mechanisms, bool (*wanted)(const std::string&)) {
  return std::any_of(mechanisms.begin(), mechanisms.end(),
                     [&](const auto& heads) { return std::any_of(heads.begin(), heads.end(), wanted); });
}

/// Returns the mechanisms of the layers that `layers` does not contain.
HeadMechanisms unchanged_layers(const HeadMechanisms& all, const std::vector<bool>& layers) {
  HeadMechanisms others;
  for (std::size_t layer = 0; layer < all.size(); ++layer) {
    if (!layers[layer]) others.push_back(all[layer]);
  }
  return others;
}

/// Throws UserError if layers outside `layers` use settings that differ between `before` and `after`.
void refuse_changing_others(const layers::ModelConfig& before, const std::vector<bool>& layers,
                            layers::AttentionConfig after) {
  const HeadMechanisms others = unchanged_layers(head_mechanisms(before), layers);
  const layers::AttentionConfig& theirs = before.attention;
  const auto refuse = [](const std::string& what) {
    throw UserError(
        "--attention: the layers that --layers leaves unchanged use {}, and a model has one feature map, window and "
        "projected length for all heads; convert these layers too, or choose the same",
        what);
  };
  if (any_of_heads(others, is_hybrid) && after.softmax_window != theirs.softmax_window)
    refuse(fmt::format("a window of {} tokens", theirs.softmax_window));
  if (any_of_heads(others, projects_sequence) && after.projected_length != theirs.projected_length)
    refuse(fmt::format("a projected length of {}", theirs.projected_length));
  after.softmax_window = theirs.softmax_window;  // of the converted layers alone
  after.projected_length = theirs.projected_length;
  if (after.n_features == 0) after.n_features = theirs.n_features;  // follows from the map
  if (any_of_heads(others, has_features) && !(after == theirs)) refuse(features_of_others(before, layers));
}

}  // namespace

AttentionRequest attention_request(const std::string& text) {
  AttentionRequest request;
  const std::string head = text.substr(0, text.find_first_of(":+"));
  const layers::MechanismInfo* info = layers::find_mechanism(head);
  if (!info || head == layers::linear_attention) {  // the name of a feature map selects linear attention
    request.mechanism = layers::linear_attention;
    request.candidate = attention_candidate(text, "--attention");
    return request;
  }
  request.mechanism = head;
  const std::size_t plus = std::min(text.find('+'), text.size());
  const bool sized = text.size() > head.size() && text[head.size()] == ':';
  const std::string size = sized ? text.substr(head.size() + 1, plus - head.size() - 1) : "";
  if (sized && !info->size) throw UserError("--attention {}: {} takes no number; expected {}", text, head, head);
  if (!size.empty()) {
    const auto value = whole_number(size);
    if (!value || *value == 0)
      throw UserError("--attention {}: found '{}' after the colon; expected a number of tokens above 0", text, size);
    request.size = *value;
  }
  if (!info->has_features) {
    if (plus != text.size())
      throw UserError("--attention {}: {} has no feature map; expected {}{}", text, head, head,
                      info->size ? fmt::format(" or {}:R", head) : "");
    return request;
  }
  if (info->is_hybrid && request.size == 0)
    throw UserError("--attention {}: the window is missing; expected its number of tokens, as in {}:64", text, head);
  request.candidate =
      attention_candidate(plus == text.size() ? "favor_positive" : text.substr(plus + 1), "--attention");
  return request;
}

HeadMechanisms head_mechanisms(const layers::ModelConfig& model) {
  HeadMechanisms all;
  for (std::int64_t layer = 0; layer < model.n_layers; ++layer) {
    std::vector<std::string> heads = layers::head_mechanisms_of(model.attention, static_cast<std::size_t>(layer));
    if (heads.size() == 1) heads.resize(static_cast<std::size_t>(model.attention.n_heads), std::string(heads[0]));
    all.push_back(std::move(heads));
  }
  return all;
}

void set_head_mechanisms(layers::ModelConfig& model, const HeadMechanisms& mechanisms) {
  layers::AttentionConfig& attention = model.attention;
  attention.mechanism = layers::AttentionConfig{}.mechanism;
  attention.layer_mechanisms.clear();
  attention.head_mechanisms.clear();
  const auto uniform = [](const std::vector<std::string>& heads) {
    return std::all_of(heads.begin(), heads.end(), [&](const std::string& name) { return name == heads[0]; });
  };
  const bool same =
      std::all_of(mechanisms.begin(), mechanisms.end(), [&](const auto& heads) { return heads == mechanisms[0]; });
  if (same && uniform(mechanisms[0])) {
    attention.mechanism = mechanisms[0][0];
  } else if (same) {
    attention.head_mechanisms = mechanisms[0];
  } else if (model.shared_layers) {
    throw UserError("--layers: all {} layers of this model share one block; expected the same attention in all of them",
                    model.n_layers);
  } else {
    for (const auto& heads : mechanisms)
      attention.layer_mechanisms.push_back(uniform(heads) ? heads[0] : config::join(heads, " "));
  }
}

std::vector<bool> parse_selection(const std::string& text, std::int64_t count, const std::string& option,
                                  const std::string& things) {
  std::vector<bool> chosen(static_cast<std::size_t>(count), text.empty());
  if (text.empty()) return chosen;
  for (const std::string_view item : split(text, ',')) mark(item, chosen, option, text, things);
  return chosen;
}

std::vector<std::vector<bool>> parse_head_selection(const std::string& text, const layers::ModelConfig& model) {
  constexpr const char* option = "--heads-keep-softmax";
  std::vector<std::vector<bool>> chosen(static_cast<std::size_t>(model.n_layers),
                                        std::vector<bool>(static_cast<std::size_t>(model.attention.n_heads)));
  if (text.empty()) return chosen;
  for (const std::string_view item : split(text, ',')) {
    const std::vector<std::string_view> parts = split(item, ':');
    if (parts.size() != 2)
      throw UserError("{} {}: '{}' is not of the form LAYER:HEAD; expected a list such as 0:3,2:0-1", option, text,
                      item);
    std::vector<bool> layers(chosen.size());
    mark(parts[0], layers, option, text, "layers");
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      if (layers[layer]) mark(parts[1], chosen[layer], option, text, "heads");
    }
  }
  return chosen;
}

void set_features(const AttentionCandidate& candidate, std::int64_t features, layers::AttentionConfig& attention) {
  const layers::AttentionConfig defaults;
  attention.feature_map = ops::feature_map_info(candidate.map).name;
  const bool polynomial = ops::feature_map_info(candidate.map).highest_order > 0;
  attention.map_options.order = polynomial ? candidate.map_options.order : defaults.map_options.order;
  if (!polynomial) attention.map_options.max_features = defaults.map_options.max_features;
  attention.n_features = features;
  attention.centering = candidate.centering;
  attention.scaling = candidate.saderf ? layers::Scaling::saderf : layers::Scaling::none;
  if (candidate.is_random()) {
    attention.random_projection = candidate.kind;
  } else {
    attention.random_projection = defaults.random_projection;
    attention.redraw_every = defaults.redraw_every;
  }
  if (!ops::can_cancel(candidate.map)) attention.denominator_guard = defaults.denominator_guard;
}

std::string features_of_others(const layers::ModelConfig& model, const std::vector<bool>& layers) {
  if (!any_of_heads(unchanged_layers(head_mechanisms(model), layers), has_features)) return "";
  return fmt::format("{} (m = {})", model.attention.feature_map, model.attention.n_features);
}

void warn_of_lost_window(std::int64_t before, const layers::AttentionConfig& after) {
  const auto mechanisms = layers::mechanisms_of(after);
  const bool lost = std::any_of(mechanisms.begin(), mechanisms.end(), [](const layers::MechanismInfo* info) {
    return info->window != &layers::AttentionConfig::window;
  });
  if (before > 0 && lost)
    log_warn(
        "the source attends to a sliding window of {} tokens (model.attention.window), which linear and softmax "
        "attention keep; windowed and linformer attend to all tokens",
        before);
}

void apply_request(const AttentionRequest& request, std::int64_t features, const std::vector<bool>& layers,
                   const std::vector<std::vector<bool>>& keep_softmax, layers::ModelConfig& model) {
  HeadMechanisms mechanisms = head_mechanisms(model);
  const HeadMechanisms others = unchanged_layers(mechanisms, layers);
  for (std::size_t layer = 0; layer < mechanisms.size(); ++layer) {
    if (!layers[layer]) continue;
    for (std::size_t head = 0; head < mechanisms[layer].size(); ++head)
      mechanisms[layer][head] = keep_softmax[layer][head] ? layers::softmax_attention : request.mechanism;
  }
  layers::AttentionConfig& attention = model.attention;
  const layers::ModelConfig before = model;
  if (request.candidate) {
    const bool same = features == 0 && any_of_heads(others, has_features);
    set_features(*request.candidate, same ? attention.n_features : features, attention);
  } else if (features > 0) {
    throw UserError("--features {}: {} has no features; remove --features", features, request.mechanism);
  }
  const auto size = layers::mechanism_info(request.mechanism).size;
  if (size && (request.size > 0 || !any_of_heads(others, projects_sequence))) attention.*size = request.size;
  refuse_changing_others(before, layers, attention);
  if (!any_of_heads(mechanisms, has_features)) {  // reset all keys that only features use
    layers::AttentionConfig plain = attention.plain();
    plain.window = attention.window;
    plain.projected_length = attention.projected_length;
    plain.projection = attention.projection;
    plain.sharing = attention.sharing;
    attention = plain;
  }
  const layers::AttentionConfig defaults;
  if (!any_of_heads(mechanisms, is_hybrid)) attention.softmax_window = defaults.softmax_window;
  if (!any_of_heads(mechanisms, projects_sequence)) {
    attention.projected_length = defaults.projected_length;
    attention.projection = defaults.projection;
    attention.sharing = defaults.sharing;
  }
  set_head_mechanisms(model, mechanisms);
}

}  // namespace furlong
