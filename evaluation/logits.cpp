#include "evaluation/logits.h"

#include <algorithm>

#include "evaluation/sequences/hidden_states.h"
#include "framework/core/shape.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5.h"
#include "framework/primitives/arithmetic.h"
#include "layers/context.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

Tensor part_of(const std::vector<std::int32_t>& values, std::int64_t first, std::int64_t count, std::int64_t n,
               const Device& device) {
  const auto begin = values.begin() + first * n;
  return Tensor::from(std::vector<std::int32_t>(begin, begin + count * n), {count, n}, device);
}

/// Returns the final hidden states [count, n, d_model] of rows from `first` on.
Variable hidden_of(Model& model, layers::ForwardContext& context, const TokenRows& rows, std::int64_t first,
                   std::int64_t count) {
  const Device device = model.store->device();
  if (model.encoder) {
    std::vector<std::int32_t> mask(at(count * rows.n));
    for (std::int64_t row = 0; row < count; ++row)
      std::fill_n(mask.begin() + row * rows.n, rows.lengths[at(first + row)], 1);
    context.attention_mask.keys = Tensor::from(mask, {count, rows.n}, device);
  }
  if (!rows.segments.empty()) context.segments = part_of(rows.segments, first, count, rows.n, device);
  const Tensor tokens = part_of(rows.tokens, first, count, rows.n, device);
  return model.encoder ? model.encoder->hidden(context, tokens) : model.decoder->hidden(context, tokens);
}

void check_rows(const Model& model, const TokenRows& rows) {
  const layers::ModelConfig& settings = model.settings.model;
  const auto longest = std::max_element(rows.lengths.begin(), rows.lengths.end());
  const bool padded = longest != rows.lengths.end() && *longest < rows.n;
  if (settings.position == layers::Position::learned && rows.n > settings.max_sequence_length)
    throw UserError("row {} (from 0) has {} tokens{}, but the model has {} learned positions; shorten the row{}",
                    longest - rows.lengths.begin(), rows.n, padded ? ", padding included" : "",
                    settings.max_sequence_length, padded ? " or its padding" : "");
  for (const std::int32_t segment : rows.segments) {
    if (segment >= settings.n_segments)
      throw UserError("HDF5 dataset segments: found {}; expected numbers below {}, the number of the model's segments",
                      segment, settings.n_segments);
  }
}

/// An output dataset [rows, n, width] in the model's precision.
class Results {
 public:
  Results(hdf5::File& file, const std::string& name, const TokenRows& rows, std::int64_t width, bool wide)
      : width_(width),
        wide_(wide),
        dataset_(file.create_dataset(name, wide ? hdf5::Type::f64 : hdf5::Type::f32,
                                     {u(rows.rows()), u(rows.n), u(width)})) {}

  /// Writes tokens [begin, begin + n) of a row. Tokens after the first `real` ones are padding.
  void write(std::int64_t row, std::int64_t begin, std::int64_t n, std::int64_t real, std::vector<double> values) {
    std::fill(values.begin() + real * width_, values.end(), 0.0);  // results at padding are meaningless
    finite_ = finite_ && std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
    const hdf5::Shape offset{u(row), u(begin), 0}, count{1, u(n), u(width_)};
    if (wide_) {
      dataset_.write_block(offset, count, values.data(), values.size() * sizeof(double));
    } else {
      const std::vector<float> narrow(values.begin(), values.end());
      dataset_.write_block(offset, count, narrow.data(), narrow.size() * sizeof(float));
    }
  }

  bool is_finite() const { return finite_; }

 private:
  static std::uint64_t u(std::int64_t i) { return static_cast<std::uint64_t>(i); }
  std::int64_t width_;
  bool wide_, finite_ = true;
  hdf5::Dataset dataset_;
};

}  // namespace

void write_logits(Model& model, const TokenRows& rows, AtomicFile& output, const LogitsOptions& options) {
  check_rows(model, rows);
  if (!options.hidden && model.settings.objective.learns_labels())
    throw UserError("this model predicts labels and has no logits of tokens; add --hidden to write hidden states");
  if (!options.hidden) require_output_layer(model.settings, "logits");
  hdf5::File file = hdf5::File::create(output);
  file.set_text("format", "furlong logits");
  file.set_integer("format_version", 1);
  file.set_text("version", version());
  file.set_text("commit", commit());
  file.set_text("checkpoint", model.checkpoint);
  file.set_integer("step", model.step);
  file.set_text("weights", model.has_ema_weights ? "ema" : "raw");
  file.set_text("dtype", name_of(model.store->compute_dtype()));
  const std::int64_t width =
      options.hidden ? model.settings.model.d_model : model.store->find("token_embedding.weight").shape()[0];
  Results results(file, options.hidden ? "hidden" : "logits", rows, width,
                  model.store->compute_dtype() == DType::float64);
  // Number of tokens per piece: the logits of a long row with a large vocabulary do not fit in memory.
  const std::int64_t piece = std::max<std::int64_t>(1, (std::int64_t{1} << 25) / width);
  for (std::int64_t first = 0; first < rows.rows(); first += options.batch_size) {
    const std::int64_t count = std::min(options.batch_size, rows.rows() - first);
    Tape tape(model.stream);
    const Tape::NoGradient guard(tape);
    layers::ForwardContext context{tape};
    const Tensor hidden = hidden_of(model, context, rows, first, count).value();
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t begin = 0; begin < rows.n; begin += piece) {
        const std::int64_t n = std::min(piece, rows.n - begin);
        const Tensor states = hidden.narrow(0, row, 1).narrow(1, begin, n).reshape({n, hidden.extent(2)});
        const Tensor values = options.hidden  ? states
                              : model.encoder ? model.encoder->logits(tape.stream(), states)
                                              : model.decoder->logits(tape.stream(), states);
        results.write(first + row, begin, n, std::clamp<std::int64_t>(rows.lengths[at(first + row)] - begin, 0, n),
                      doubles_of(values));
      }
    }
  }
  file.write("lengths", hdf5::Type::i64, {static_cast<std::uint64_t>(rows.rows())}, rows.lengths.data());
  file.close();
  output.commit_last();
  if (!results.is_finite())
    log_warn("some {} are not finite, because numbers overflow in the model; check its weights and dtype",
             options.hidden ? "hidden states" : "logits");
}

}  // namespace furlong
