#include "trainers/model/recurrent_state.h"

#include <limits>
#include <numeric>

#include "framework/primitives/arithmetic.h"
#include "trainers/checkpoint/checkpoint_tensors.h"

namespace furlong {
namespace {

/// The token count, which all rows share. Mechanisms that depend on it do not support stateful training.
bool is_count(const std::string& name) { return name.ends_with(".tokens"); }

}  // namespace

RecurrentState::RecurrentState(const layers::Decoder& decoder, std::int64_t rows)
    : positions_(static_cast<std::size_t>(rows), 0),
      state_(decoder.new_state(rows, 1)),
      empty_(decoder.new_state(1, 1)) {}

layers::GenerationState& RecurrentState::begin(layers::ForwardContext& context, const Batch& batch) {
  const std::size_t rows = positions_.size();
  require(batch.batch == static_cast<std::int64_t>(rows) && batch.fresh.size() == rows,
          "a batch of {} rows with {} fresh flags, for a state of {} rows", batch.batch, batch.fresh.size(), rows);
  std::vector<Tensor> nothing;
  empty_.visit([&](const std::string& name, Tensor& tensor) {
    if (!is_count(name)) nothing.push_back(tensor);
  });
  std::size_t i = 0;
  state_.visit([&](const std::string& name, Tensor& tensor) {
    if (is_count(name)) return;
    const Tensor& from = nothing[i++];
    for (std::size_t row = 0; row < rows; ++row) {
      if (batch.fresh[row] != 0)
        ops::convert(context.stream(), tensor.narrow(0, static_cast<std::int64_t>(row), 1), from);
    }
  });

  std::vector<std::int32_t> positions(rows * static_cast<std::size_t>(batch.n));
  for (std::size_t row = 0; row < rows; ++row) {
    if (batch.fresh[row] != 0) positions_[row] = 0;
    const std::int64_t first = positions_[row];
    positions_[row] += batch.n;
    require(positions_[row] <= std::numeric_limits<std::int32_t>::max(), "a document of more than 2^31 tokens");
    const auto begin = positions.begin() + static_cast<std::ptrdiff_t>(row) * batch.n;
    std::iota(begin, begin + batch.n, static_cast<std::int32_t>(first));
  }
  context.positions = Tensor::from(positions, {batch.batch, batch.n}, context.stream().device);
  return state_;
}

void RecurrentState::save(CheckpointSink& file, const std::string& prefix) const {
  state_.visit([&](const std::string& name, Tensor& tensor) { write_tensor(file, prefix + "/" + name, tensor); });
  const auto rows = static_cast<std::int64_t>(positions_.size());
  file.tensor(prefix + "/positions", "int64", std::span(&rows, 1), positions_.data());
}

void RecurrentState::load(const CheckpointReader& file, const std::string& prefix) {
  state_.visit([&](const std::string& name, Tensor& tensor) { read_tensor(file, prefix + "/" + name, tensor); });
  const auto rows = static_cast<std::int64_t>(positions_.size());
  file.read(prefix + "/positions", "int64", std::span(&rows, 1), positions_.data());
}

}  // namespace furlong
