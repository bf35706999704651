#include "conversion/approximation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "conversion/attention_request.h"
#include "framework/core/log.h"
#include "framework/core/shape.h"
#include "layers/attention/mechanism.h"
#include "layers/blocks/block.h"

namespace furlong {
namespace {

/// Returns the mechanism of each layer, found by running the model over a few tokens.
std::vector<const layers::AttentionMechanism*> mechanisms_of(Model& model, const DeviceBatch& batch) {
  std::vector<const layers::AttentionMechanism*> found;
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  context.observe_attention = [&](const layers::ObservedAttention& seen) { found.push_back(&seen.mechanism); };
  const Tensor tokens =
      batch.inputs.narrow(0, 0, 1).narrow(1, 0, std::min<std::int64_t>(8, batch.inputs.extent(1))).clone();
  if (model.encoder) {
    model.encoder->hidden(context, tokens);
  } else {
    model.decoder->hidden(context, tokens);
  }
  return found;
}

/// Runs the teacher over all batches and calls visit(context, attention, batch, layer).
template <class Visit>
void run_layers(ObservedModel& teacher, const Visit& visit) {
  std::size_t batch = 0;
  std::int64_t layer = 0;
  teacher.run(teacher.batches(),
              [&](layers::ForwardContext& context, const layers::ObservedAttention& seen, std::size_t now) {
                if (now != batch) layer = 0;
                batch = now;
                visit(context, seen, now, layer++);
              });
}

/// Applies a mechanism to a layer's queries, keys and values, with the same masks and positions.
Tensor applied(const layers::AttentionMechanism& mechanism, layers::ForwardContext context,
               const layers::ObservedAttention& seen) {
  context.observe_attention = nullptr;
  return mechanism.forward(context, seen.query, seen.key, seen.value).value();
}

/// Returns the number of layers, at least one, whose samples fit in 1 GiB.
std::int64_t layers_at_once(const ObservedModel& teacher) {
  const layers::AttentionConfig config = layers::attention_config(teacher.settings().model);
  double numbers = 0;
  for (std::size_t i = 0; i < teacher.batches(); ++i)
    numbers += static_cast<double>(teacher.batch(i).inputs.elements() * (3 * config.n_heads + 2 * config.n_kv_heads) *
                                   config.d_head);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(0x1p30 / (8 * numbers)));
}

}  // namespace

void sample_layers(ObservedModel& teacher, const std::vector<bool>& wanted, Model* student,
                   const std::function<void(LayerSample&&)>& done) {
  std::vector<const layers::AttentionMechanism*> mechanisms;
  if (student) mechanisms = mechanisms_of(*student, teacher.batch(0));
  const std::int64_t most = layers_at_once(teacher), n_layers = static_cast<std::int64_t>(wanted.size());
  for (std::int64_t first = 0; first < n_layers;) {
    std::vector<std::int64_t> group;
    for (; first < n_layers && static_cast<std::int64_t>(group.size()) < most; ++first) {
      if (wanted[at(first)]) group.push_back(first);
    }
    if (group.empty()) return;
    std::vector<std::vector<AttentionSample>> samples(group.size());
    std::vector<std::vector<Tensor>> outputs(group.size());
    run_layers(teacher, [&](const layers::ForwardContext& context, const layers::ObservedAttention& seen,
                            std::size_t batch, std::int64_t layer) {
      const auto found = std::find(group.begin(), group.end(), layer);
      if (found == group.end()) return;
      const auto place = static_cast<std::size_t>(found - group.begin());
      const auto config = layers::attention_of_layer(teacher.settings().model, layer);
      samples[place].push_back(observed_sample(context, seen, config, teacher.real(batch)));
      if (student) outputs[place].push_back(as_float64(applied(*mechanisms[at(layer)], context, seen)));
    });
    for (std::size_t i = 0; i < group.size(); ++i)
      done({group[i], AttentionData(std::move(samples[i]), false), std::move(outputs[i])});
  }
}

bool has_constants(const Settings& settings) {
  const layers::AttentionConfig& attention = settings.model.attention;
  if (!layers::uses(attention, &layers::MechanismInfo::has_features)) return false;
  return attention.centering || attention.scaling != layers::Scaling::none ||
         ops::feature_map_info(attention.feature_map).needs_oprf_a;
}

std::int64_t tokens_for_constants(const Settings& settings) {
  return 16 * layers::attention_config(settings.model).d_head;
}

void warn_of_few_tokens(const ObservedModel& observed, const char* constants) {
  const std::int64_t enough = tokens_for_constants(observed.settings());
  if (observed.tokens() >= enough) return;
  log_warn(
      "{} are noisy: measured on {} tokens of {}; expected at least {} tokens for heads of this width, so use more or "
      "longer batches",
      constants, observed.tokens(), observed.data().path(), enough);
}

void calibrate(ObservedModel& teacher, Model& student, const std::vector<bool>& wanted) {
  if (!has_constants(student.settings)) return;
  warn_of_few_tokens(teacher, "centers, scales and constants of feature maps");
  const auto mechanisms = mechanisms_of(student, teacher.batch(0));
  run_layers(teacher, [&](const layers::ForwardContext& context, const layers::ObservedAttention& seen,
                          std::size_t batch, std::int64_t layer) {
    if (!wanted[at(layer)]) return;
    layers::ForwardContext counting = context;
    counting.training = true;                            // adds to the statistics
    counting.attention_mask.keys = teacher.real(batch);  // batches of windows mask no padding
    applied(*mechanisms[at(layer)], counting, seen);
  });
  for (std::size_t layer = 0; layer < wanted.size(); ++layer) {
    if (!wanted[layer]) continue;
    if (student.decoder) student.decoder->update_constants(layer);
    if (student.encoder) student.encoder->update_constants(layer);
  }
}

std::vector<HeadApproximation> measure_approximation(ObservedModel& teacher, Model& student,
                                                     const std::vector<bool>& wanted) {
  const HeadMechanisms mechanisms = head_mechanisms(student.settings.model);
  const bool same_keys = teacher.settings().model.attention.window == student.settings.model.attention.window;
  std::vector<HeadApproximation> found;
  sample_layers(teacher, wanted, &student, [&](LayerSample&& sample) {
    const std::vector<double> errors = sample.data.relative_errors(sample.outputs),
                              uniform = sample.data.uniform_errors();
    const std::vector<RowNorms> queries = query_norms(sample.data), keys = key_norms(sample.data);
    for (std::size_t head = 0; head < errors.size(); ++head) {
      const std::string& mechanism = mechanisms[at(sample.layer)][head];
      const bool is_exact = same_keys && layers::mechanism_info(mechanism).is_softmax;
      found.push_back({sample.layer, static_cast<std::int64_t>(head), mechanism, is_exact, errors[head], uniform[head],
                       queries[head], keys[head]});
    }
  });
  return found;
}

nlohmann::ordered_json as_json(const std::vector<HeadApproximation>& heads) {
  auto array = nlohmann::ordered_json::array();
  for (const HeadApproximation& one : heads) {
    array.push_back({{"layer", one.layer},
                     {"head", one.head},
                     {"mechanism", one.mechanism},
                     {"error", one.error},
                     {"uniform_error", one.uniform_error},
                     {"query_norm", {{"mean", one.query_norm.mean}, {"largest", one.query_norm.largest}}},
                     {"key_norm", {{"mean", one.key_norm.mean}, {"largest", one.key_norm.largest}}}});
  }
  return array;
}

}  // namespace furlong
