#include "layers/attention/mixed/mixed_mechanism.h"

#include <algorithm>

#include "framework/ops/elementwise/column_ranges.h"
#include "framework/ops/elementwise/concatenate.h"
#include "layers/attention/recurrent_state.h"

namespace furlong::layers {
namespace {

class MixedState : public RecurrentAttentionState {
 public:
  explicit MixedState(std::vector<std::unique_ptr<AttentionState>> runs) : runs_(std::move(runs)) {}
  std::int64_t bytes() const override {
    std::int64_t total = 0;
    for (const auto& run : runs_) total += run->bytes();
    return total;
  }
  std::int64_t bytes_read() const override {
    std::int64_t total = 0;
    for (const auto& run : runs_) total += run->bytes_read();
    return total;
  }
  std::unique_ptr<AttentionState> clone() const override {
    std::vector<std::unique_ptr<AttentionState>> copies;
    for (const auto& run : runs_) copies.push_back(clone_recurrent_state(*run));
    return std::make_unique<MixedState>(std::move(copies));
  }
  std::unique_ptr<AttentionState> repeated(const Stream& stream, std::int64_t batch) const override {
    std::vector<std::unique_ptr<AttentionState>> copies;
    for (const auto& run : runs_) copies.push_back(run->repeated(stream, batch));
    return std::make_unique<MixedState>(std::move(copies));
  }
  void visit(const std::string& prefix, const StateVisitor& visitor) override {
    for (std::size_t i = 0; i < runs_.size(); ++i)
      visit_recurrent_state(*runs_[i], prefix + ".runs." + std::to_string(i), visitor);
  }
  AttentionState& run(std::size_t i) { return *runs_[i]; }

 private:
  std::vector<std::unique_ptr<AttentionState>> runs_;
};

struct Run {
  std::string mechanism;
  std::int64_t first = 0, heads = 0;
};

std::vector<Run> runs_of(const AttentionConfig& config) {
  const auto& names = config.head_mechanisms;
  if (static_cast<std::int64_t>(names.size()) != config.n_heads)
    throw UserError("model.attention.heads names {} mechanisms for {} heads; expected one for each", names.size(),
                    config.n_heads);
  const std::int64_t group = config.n_heads / config.n_kv_heads;
  std::vector<Run> runs;
  for (std::int64_t head = 0; head < config.n_heads; ++head) {
    const std::string& name = names[static_cast<std::size_t>(head)];
    if (!runs.empty() && runs.back().mechanism == name) {
      ++runs.back().heads;
      continue;
    }
    if (head % group != 0) {
      throw UserError(
          "model.attention.heads: heads {} and {} (from 0) share key-value head {}, but are {} and {}; expected one "
          "mechanism for each {} heads that share keys and values",
          head - 1, head, head / group, runs.back().mechanism, name, group);
    }
    runs.push_back({name, head, 1});
  }
  return runs;
}

class MixedMechanism : public AttentionMechanism {
 public:
  MixedMechanism(ParameterStore& store, const std::string& name, const AttentionConfig& config) {
    const std::int64_t group = config.n_heads / config.n_kv_heads;
    AttentionConfig part = config;
    part.head_mechanisms.clear();
    for (const Run& run : runs_of(config)) {
      part.mechanism = run.mechanism;
      part.n_heads = run.heads;
      part.n_kv_heads = run.heads / group;
      query_widths_.push_back(part.n_heads * config.d_head);
      key_widths_.push_back(part.n_kv_heads * config.d_head);
      runs_.push_back(
          make_attention(store, fmt::format("{}.heads_{}_{}", name, run.first, run.first + run.heads - 1), part));
    }
  }

  Variable forward(ForwardContext& context, const Variable& query, const Variable& key, const Variable& value,
                   AttentionState* carried) const override {
    auto* state = carried ? &dynamic_cast<MixedState&>(*carried) : nullptr;
    const auto queries = ops::column_ranges(context.tape, query, query_widths_);
    const auto keys = ops::column_ranges(context.tape, key, key_widths_),
               values = ops::column_ranges(context.tape, value, key_widths_);
    std::vector<Variable> outputs;
    for (std::size_t i = 0; i < runs_.size(); ++i)
      outputs.push_back(runs_[i]->forward(context, queries[i], keys[i], values[i], state ? &state->run(i) : nullptr));
    return ops::concatenate_last(context.tape, outputs);
  }

  std::unique_ptr<AttentionState> new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype,
                                            const Device& device) const override {
    std::vector<std::unique_ptr<AttentionState>> states;
    for (const auto& run : runs_) states.push_back(run->new_state(batch, max_tokens, dtype, device));
    return std::make_unique<MixedState>(std::move(states));
  }

  Tensor extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                AttentionState& state, const Tensor& key_mask, ops::DenominatorReport* denominators) const override {
    auto& states = dynamic_cast<MixedState&>(state);
    Tape tape(stream);
    const Tape::NoGradient guard(tape);
    const auto queries = ops::column_ranges(tape, Variable(query), query_widths_);
    const auto keys = ops::column_ranges(tape, Variable(key), key_widths_),
               values = ops::column_ranges(tape, Variable(value), key_widths_);
    std::vector<Variable> outputs;
    for (std::size_t i = 0; i < runs_.size(); ++i)
      outputs.emplace_back(runs_[i]->extend(stream, queries[i].value(), keys[i].value(), values[i].value(),
                                            states.run(i), key_mask, denominators));
    return ops::concatenate_last(tape, outputs).value();
  }

  void redraw(std::uint64_t seed, std::int64_t step) override {
    for (const auto& run : runs_) run->redraw(seed, step);
  }

  void update_constants() override {
    for (const auto& run : runs_) run->update_constants();
  }

 private:
  std::vector<std::unique_ptr<AttentionMechanism>> runs_;
  std::vector<std::int64_t> query_widths_, key_widths_;
};

}  // namespace

std::unique_ptr<AttentionMechanism> make_mixed_mechanism(ParameterStore& store, const std::string& name,
                                                         const AttentionConfig& config) {
  return std::make_unique<MixedMechanism>(store, name, config);
}

}  // namespace furlong::layers
