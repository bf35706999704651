#include "conversion/merge_adapters.h"

#include <algorithm>

#include "conversion/read_parameters.h"

namespace furlong {

std::vector<std::string> merge_adapters(Model& model) {
  layers::AdapterConfig& adapter = model.settings.model.adapter;
  std::vector<std::string> changed;
  if (adapter.rank == 0) return changed;
  const auto scale = static_cast<float>(adapter.scale());
  constexpr std::string_view suffix = ".lora_a.weight";
  for (const Parameter& a : model.store->parameters()) {
    if (!a.name().ends_with(suffix)) continue;
    const std::string stem = a.name().substr(0, a.name().size() - suffix.size());
    const Parameter &b = model.store->find(stem + ".lora_b.weight"), &weight = model.store->find(stem + ".weight");
    const std::span<const float> a_values = values_of(a);
    const std::span<float> b_values = values_of(b), target = values_of(weight);
    const auto rank = static_cast<std::size_t>(a.shape()[0]), inner = static_cast<std::size_t>(a.shape()[1]);
    for (std::size_t row = 0; row < target.size() / inner; ++row) {
      for (std::size_t r = 0; r < rank; ++r) {
        const float factor = scale * b_values[row * rank + r];
        for (std::size_t i = 0; i < inner; ++i) target[row * inner + i] += factor * a_values[r * inner + i];
      }
    }
    std::fill(b_values.begin(), b_values.end(), 0.0F);
    changed.push_back(weight.name());
  }
  adapter.rank = 0;
  model.store->refresh_compute_values(model.stream);
  return changed;
}

}  // namespace furlong
