#include "layers/attention/mechanism.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "framework/core/lower_case.h"
#include "framework/primitives/arithmetic.h"
#include "layers/attention/linear/linear_mechanism.h"
#include "layers/attention/linformer/linformer_mechanism.h"
#include "layers/attention/mixed/mixed_mechanism.h"
#include "layers/attention/softmax/softmax_mechanism.h"
#include "layers/attention/windowed/windowed_mechanism.h"

namespace furlong::layers {

Tensor repeated_row(const Stream& stream, const Tensor& row, std::int64_t batch) {
  if (!row.defined()) return {};
  require(row.extent(0) == 1, "a state of {} sequences, of which one is to be repeated", row.extent(0));
  Shape shape = row.shape();
  shape[0] = batch;
  const Tensor rows = Tensor::empty(shape, row.dtype(), row.device());
  for (std::int64_t i = 0; i < batch; ++i) ops::convert(stream, rows.narrow(0, i, 1), row);
  return rows;
}

const std::vector<MechanismInfo>& attention_mechanisms() {
  static const std::vector<MechanismInfo> mechanisms{
      softmax_mechanism(),
      linear_mechanism(),
      windowed_mechanism(),
      linformer_mechanism(),
  };
  return mechanisms;
}

const MechanismInfo* find_mechanism(const std::string& name) {
  const auto& all = attention_mechanisms();
  const auto found = std::find_if(all.begin(), all.end(), [&](const MechanismInfo& info) { return name == info.name; });
  return found == all.end() ? nullptr : &*found;
}

const MechanismInfo& mechanism_info(const std::string& name) {
  if (const MechanismInfo* info = find_mechanism(name)) return *info;
  std::string known;
  for (const MechanismInfo& info : attention_mechanisms())
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  const std::string hint = attention_name_hint(name);
  throw UserError("attention mechanism '{}' is unknown; expected one of {}{}{}", name, known, hint.empty() ? "" : "; ",
                  hint);
}

const AttentionName* find_attention_name(const std::string& name) {
  static constexpr AttentionName names[] = {
      {"performer", linear_attention, "favor_positive"}, {"favor", linear_attention, "favor_positive"},
      {"favor+", linear_attention, "favor_positive"},    {"linear_transformer", linear_attention, "elu1"},
      {"linear_attention", linear_attention, "elu1"},
  };
  const std::string wanted = lower_case(name);
  const auto* const found =
      std::find_if(std::begin(names), std::end(names), [&](const AttentionName& one) { return wanted == one.name; });
  return found == std::end(names) ? nullptr : found;
}

std::string attention_name_hint(const std::string& name) {
  const AttentionName* const found = find_attention_name(name);
  if (!found) return {};
  return fmt::format("did you mean mechanism: {} with feature_map: {}?", found->mechanism, found->feature_map);
}

AttentionCost attention_cost(const AttentionConfig& config, std::int64_t n) {
  std::map<std::string, std::int64_t> heads;
  for (const std::string& name : config.head_mechanisms) ++heads[name];
  if (heads.empty()) heads[config.mechanism] = config.n_heads;
  AttentionCost sum;
  for (const auto& [name, n_heads] : heads) {
    AttentionConfig part = config;
    part.n_heads = n_heads;
    part.n_kv_heads = n_heads * config.n_kv_heads / config.n_heads;
    const AttentionCost cost = mechanism_info(name).cost(part, n);
    sum.forward += cost.forward;
    sum.with_backward += cost.with_backward;
    sum.maps += cost.maps;
    sum.segment += cost.segment;
  }
  return sum;
}

std::vector<std::string> mechanisms_where(const std::function<bool(const MechanismInfo&)>& wanted) {
  std::vector<std::string> names;
  for (const MechanismInfo& info : attention_mechanisms())
    if (wanted(info)) names.emplace_back(info.name);
  return names;
}

std::vector<std::string> mechanisms_in(const std::string& entry) {
  std::vector<std::string> names;
  std::istringstream words(entry);
  for (std::string word; words >> word;) names.push_back(word);
  return names;
}

std::vector<std::string> head_mechanisms_of(const AttentionConfig& config, std::size_t layer) {
  if (!config.layer_mechanisms.empty()) return mechanisms_in(config.layer_mechanisms.at(layer));
  return config.head_mechanisms.empty() ? std::vector{config.mechanism} : config.head_mechanisms;
}

std::vector<const MechanismInfo*> mechanisms_of(const AttentionConfig& config) {
  const auto& lists = config.layer_mechanisms.empty() ? config.head_mechanisms : config.layer_mechanisms;
  std::vector<const MechanismInfo*> used;
  const auto add = [&](const std::string& name) {
    const MechanismInfo* info = &mechanism_info(name);
    if (std::find(used.begin(), used.end(), info) == used.end()) used.push_back(info);
  };
  if (lists.empty()) add(config.mechanism);
  for (const std::string& entry : lists)
    for (const std::string& name : mechanisms_in(entry)) add(name);
  return used;
}

std::string attention_text(const AttentionConfig& config) {
  std::string text;
  for (const MechanismInfo* info : mechanisms_of(config))
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", info->name,
                        info->has_features ? fmt::format(" ({})", config.feature_map) : "");
  return text;
}

const MechanismInfo* first_mechanism(const AttentionConfig& config, bool MechanismInfo::*capability, bool has) {
  for (const MechanismInfo* info : mechanisms_of(config))
    if (info->*capability == has) return info;
  return nullptr;
}

std::unique_ptr<AttentionMechanism> make_attention(ParameterStore& store, const std::string& name,
                                                   const AttentionConfig& config) {
  if (!config.head_mechanisms.empty()) return make_mixed_mechanism(store, name, config);
  const MechanismInfo& info = mechanism_info(config.mechanism);
  require(!config.rotate_numerator || info.rotates_numerator, "{}: rotate_numerator with mechanism {}", name,
          info.name);
  return info.make(store, name, config);
}

}  // namespace furlong::layers
