#include "framework/ops/attention/linformer/sequence_projection.h"

#include <gtest/gtest.h>

#include "framework/primitives/arithmetic.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/reference/sequence_projection.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

class SequenceProjectionOp : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(SequenceProjectionOp);

using ops::SequenceProjection;
using testing::for_each_instruction_set;

struct Case {
  std::int64_t batch, n, n_heads, d, projected_length, max_length;
  bool shared, masked;
  SequenceProjection kind;

  ops::SequenceProjectionOptions options() const { return {kind, n_heads, projected_length, max_length}; }
  bool has_weight() const { return kind != SequenceProjection::mean; }
  Shape x_shape() const { return {batch, n, n_heads * d}; }
  Shape weight_shape() const { return ops::sequence_projection_weight_shape(options(), d, shared); }
  /// 0 for a few tokens: the whole first window and, with several sequences, the whole last sequence.
  std::vector<std::int32_t> kept() const {
    std::vector<std::int32_t> keys(static_cast<std::size_t>(batch * n), 1);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t t = 0; t < n; ++t) {
        const bool keep = t >= options().stride() && t % 3 != 1 && (batch == 1 || b + 1 < batch);
        keys[static_cast<std::size_t>(b * n + t)] = keep ? 1 : 0;
      }
    }
    return keys;
  }
  Tensor mask() const { return masked ? Tensor::from(kept(), {batch, n}, testing::device()) : Tensor{}; }
  std::string text() const {
    return fmt::format("{} n={} heads={} d={} r={} of {} {}{}", name_of(kind), n, n_heads, d, projected_length,
                       max_length, shared ? "shared" : "own", masked ? " masked" : "");
  }
};

struct Sizes {
  std::int64_t batch, n, n_heads, d, projected_length, max_length;
};
/// Full length and shorter, lengths that the stride does not divide, as many rows as tokens, all sizes 1.
const std::vector<Sizes> small_sizes{{1, 1, 1, 1, 1, 1}, {2, 7, 2, 3, 3, 7},   {2, 5, 1, 4, 2, 9},
                                     {1, 6, 3, 2, 6, 6}, {3, 10, 2, 5, 4, 11}, {2, 1, 2, 2, 2, 8}};
const std::vector<Sizes> large_sizes{{2, 50, 2, 40, 7, 64}, {1, 129, 8, 16, 16, 129}};

std::vector<Case> cases_of(const std::vector<Sizes>& sizes) {
  std::vector<Case> cases;
  for (const Sizes& s : sizes) {
    for (const SequenceProjection kind : all_values<SequenceProjection>()) {
      for (bool shared : {true, false}) {
        if (kind == SequenceProjection::mean && !shared) continue;
        for (bool masked : {false, true}) {
          cases.push_back({s.batch, s.n, s.n_heads, s.d, s.projected_length, s.max_length, shared, masked, kind});
        }
      }
    }
  }
  return cases;
}

/// Returns `x` with NaN, infinities and large numbers in all rows that the case masks.
Tensor poisoned(const Tensor& x, const Case& c) {
  std::vector<double> values = doubles(x);
  const std::vector<std::int32_t> keys = c.kept();
  const double poison[] = {NAN, INFINITY, -INFINITY, 1e30};
  const auto width = static_cast<std::size_t>(x.extent(2));
  for (std::size_t i = 0; c.masked && i < values.size(); ++i) {
    if (keys[i / width] == 0) values[i] = poison[i % 4];
  }
  return tensor_of(values, x.shape(), x.dtype());
}

Variable weight_variable(const Tensor& weight) { return weight.defined() ? Variable(weight) : Variable{}; }
Tensor weight_of(const Case& c, DType dtype) {
  return c.has_weight() ? normal_tensor(c.weight_shape(), dtype, "weight") : Tensor{};
}

std::vector<double> expected(const Case& c, const Tensor& x, const Tensor& weight) {
  return reference::sequence_projection(doubles(x), weight.defined() ? doubles(weight) : std::vector<double>{},
                                        c.shared, c.masked ? c.kept() : std::vector<std::int32_t>{},
                                        static_cast<std::size_t>(c.batch), static_cast<std::size_t>(c.n),
                                        static_cast<std::size_t>(c.d), c.options());
}

void expect_reference(const Case& c, DType dtype) {
  const Tensor x = normal_tensor(c.x_shape(), dtype, "x"), weight = weight_of(c, dtype);
  Tape tape{testing::stream()};
  const Tensor y =
      ops::sequence_projection(tape, Variable(poisoned(x, c)), weight_variable(weight), c.mask(), c.options()).value();
  ASSERT_EQ(y.shape(), Shape({c.batch, c.options().rows(c.n), c.n_heads * c.d})) << c.text();
  const auto terms = static_cast<double>(c.kind == SequenceProjection::linear ? c.n : c.options().stride());
  // One rounding per term and one for a mean's division; bfloat16 sums are float32 and rounded once at the end.
  const double tolerance = dtype == DType::bfloat16 ? 0x1p-8 * 1.01 : (terms + 2) * rounding_of(dtype);
  const std::vector<double> wanted = expected(c, x, weight);
  if (std::all_of(wanted.begin(), wanted.end(), [](double value) { return value == 0; })) {
    EXPECT_EQ(doubles(y), wanted) << c.text();  // everything is masked
  } else {
    EXPECT_LE(relative_difference(y, wanted), tolerance) << c.text() << " " << name_of(dtype);
  }
}

TEST_P(SequenceProjectionOp, MatchesReference) {
  for (const std::vector<Sizes>& sizes : {small_sizes, large_sizes}) {
    for (const Case& c : cases_of(sizes)) {
      for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) expect_reference(c, dtype);
    }
  }
}

TEST(SequenceProjectionOnCpu, MatchesReferenceWithEveryInstructionSet) {
  for_each_instruction_set([] {
    for (const Case& c : cases_of({{2, 50, 2, 19, 7, 64}})) {
      for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) expect_reference(c, dtype);
    }
  });
}

TEST_P(SequenceProjectionOp, GradientMatchesFiniteDifference) {
  const std::vector<Sizes> few{{2, 3, 2, 2, 2, 4}, {1, 4, 1, 2, 2, 5}};
  for (const Case& c : cases_of(testing::on_simulator() ? few : small_sizes)) {
    if (c.masked && c.n <= c.options().stride()) continue;  // everything is masked: no gradient to compare with
    const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
      return ops::sequence_projection(tape, inputs[0], c.has_weight() ? inputs[1] : Variable{}, c.mask(), c.options());
    };
    std::vector<Tensor> inputs{normal_tensor(c.x_shape(), DType::float64, "x")};
    if (c.has_weight()) inputs.push_back(weight_of(c, DType::float64));
    const auto result = check_gradients(function, inputs);
    EXPECT_LE(result.worst_relative_error, 1e-10) << c.text() << ": " << result.where;
  }
}

struct Gradients {
  std::vector<double> y, d_x, d_weight;
  bool operator==(const Gradients&) const = default;
};

/// x is columns [1, 1 + width) of a wider tensor, and every input is used twice: gradients accumulate, in views.
Gradients gradients_in_views(const Case& c, DType dtype) {
  const Tensor x = poisoned(normal_tensor(c.x_shape(), dtype, "x"), c);
  const std::int64_t width = x.extent(2);
  const Tensor wide = Tensor::zeros({c.batch, c.n, width + 3}, dtype, testing::device());
  ops::convert(testing::stream(), wide.narrow(2, 1, width), x);
  const Variable whole = Variable::leaf(wide);
  const Variable weight = c.has_weight() ? Variable::leaf(weight_of(c, dtype)) : Variable{};
  if (c.has_weight()) weight.slot()->dtype = accumulate_dtype(dtype);
  Tape tape{testing::stream()};
  const Variable range = tape.split_last(whole, {1, width, 2})[1];
  const Variable once = ops::sequence_projection(tape, range, weight, c.mask(), c.options()),
                 again = ops::sequence_projection(tape, range, weight, c.mask(), c.options());
  tape.backward({once, again},
                {normal_tensor(once.shape(), dtype, "d_once"), normal_tensor(once.shape(), dtype, "d_again")});
  EXPECT_EQ(doubles(once.value()), doubles(again.value()));
  const Tensor d_whole = whole.gradient();
  for (const Tensor& outside : {d_whole.narrow(2, 0, 1), d_whole.narrow(2, 1 + width, 2)}) {
    for (double value : doubles(outside)) EXPECT_EQ(value, 0) << c.text();
  }
  return {doubles(once.value()), doubles(d_whole.narrow(2, 1, width)),
          c.has_weight() ? doubles(weight.gradient()) : std::vector<double>{}};
}

/// The same with one use in double, whose gradients the test above checks, and the sum of the two output gradients.
Gradients gradients_in_double(const Case& c, DType inputs_dtype) {
  const auto widened = [](const Tensor& tensor) { return tensor_of(doubles(tensor), tensor.shape(), DType::float64); };
  const Variable x = Variable::leaf(widened(normal_tensor(c.x_shape(), inputs_dtype, "x")));
  const Variable weight = c.has_weight() ? Variable::leaf(widened(weight_of(c, inputs_dtype))) : Variable{};
  Tape tape{testing::stream()};
  const Variable y = ops::sequence_projection(tape, x, weight, c.mask(), c.options());
  const Tensor d_y = widened(normal_tensor(y.shape(), inputs_dtype, "d_once"));
  ops::add(testing::stream(), d_y, widened(normal_tensor(y.shape(), inputs_dtype, "d_again")),
           GradientMode::accumulate);
  tape.backward({y}, {d_y});
  return {doubles(y.value()), doubles(x.gradient()),
          c.has_weight() ? doubles(weight.gradient()) : std::vector<double>{}};
}

void expect_gradients(const Case& c, DType dtype) {
  const Gradients found = gradients_in_views(c, dtype), wanted = gradients_in_double(c, dtype);
  // The gradient of x is the sum of two terms, each rounded to the storage type; each is a sum of up to r products.
  const double unit = rounding_of(dtype), r = static_cast<double>(c.projected_length);
  EXPECT_LE(relative_difference(found.d_x, wanted.d_x), dtype == DType::bfloat16 ? 2.5 * unit : (r + 3) * unit);
  // A weight's gradient sums over the batch, and over the channels for a shared matrix, in float32 or wider.
  const auto terms = static_cast<double>(2 * c.batch * c.n * c.n_heads * c.d);
  if (c.has_weight()) {
    EXPECT_LE(relative_difference(found.d_weight, wanted.d_weight),
              std::sqrt(terms) * 3 * rounding_of(accumulate_dtype(dtype)));
  }
  const std::vector<std::int32_t> keys = c.kept();
  const auto width = static_cast<std::size_t>(c.n_heads * c.d);
  for (std::size_t i = 0; i < found.d_x.size(); ++i) {
    ASSERT_TRUE(!c.masked || keys[i / width] != 0 || found.d_x[i] == 0) << "element " << i;
  }
}

TEST_P(SequenceProjectionOp, AccumulatesGradientsInViewsAndIgnoresMaskedRows) {
  for (const Case& c : cases_of({{2, 5, 1, 4, 2, 9}, {2, 30, 2, 19, 7, 30}, {2, 150, 2, 8, 76, 151}})) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      SCOPED_TRACE(c.text() + " " + name_of(dtype));
      expect_gradients(c, dtype);
    }
  }
}

/// Gradients that are not needed are not computed, and do not affect the others.
TEST_P(SequenceProjectionOp, ConstantsGetNoGradient) {
  for (const Case& c : cases_of({{2, 7, 2, 3, 3, 8}})) {
    if (!c.has_weight()) continue;
    const Tensor x = normal_tensor(c.x_shape(), DType::float32, "x"), weight = weight_of(c, DType::float32);
    const auto gradients = [&](const Variable& input, const Variable& matrix) {
      Tape tape{testing::stream()};
      const Variable y = ops::sequence_projection(tape, input, matrix, c.mask(), c.options());
      tape.backward({y}, {normal_tensor(y.shape(), DType::float32, "d_y")});
      return std::pair{input.gradient(), matrix.gradient()};
    };
    const auto both = gradients(Variable::leaf(x), Variable::leaf(weight));
    const auto of_x = gradients(Variable::leaf(x), Variable(weight)),
               of_weight = gradients(Variable(x), Variable::leaf(weight));
    EXPECT_FALSE(of_x.second.defined());
    EXPECT_FALSE(of_weight.first.defined());
    EXPECT_EQ(doubles(of_x.first), doubles(both.first)) << c.text();
    EXPECT_EQ(doubles(of_weight.second), doubles(both.second)) << c.text();
  }
}

TEST_P(SequenceProjectionOp, AllOnesMaskChangesNothing) {
  for (Case c : cases_of(large_sizes)) {
    if (c.masked) continue;
    const Variable x(normal_tensor(c.x_shape(), DType::float32, "x")),
        weight = weight_variable(weight_of(c, DType::float32));
    const Tensor ones = Tensor::from(std::vector<std::int32_t>(static_cast<std::size_t>(c.batch * c.n), 1),
                                     {c.batch, c.n}, testing::device());
    Tape tape{testing::stream()};
    EXPECT_EQ(doubles(ops::sequence_projection(tape, x, weight, ones, c.options()).value()),
              doubles(ops::sequence_projection(tape, x, weight, Tensor{}, c.options()).value()))
        << c.text();
  }
}

/// Masking the end of a sequence is the same as omitting it.
TEST_P(SequenceProjectionOp, PaddingMatchesShorterInput) {
  for (Case c : cases_of({{2, 12, 2, 5, 4, 15}})) {
    if (c.masked) continue;
    std::vector<std::int32_t> keys(24, 1);
    for (std::size_t i : {9, 10, 11, 21, 22, 23}) keys[i] = 0;
    const Tensor x = normal_tensor(c.x_shape(), DType::float64, "x"), weight = weight_of(c, DType::float64);
    Tape tape{testing::stream()};
    const Tensor mask = Tensor::from(keys, {2, 12}, testing::device());
    const Tensor padded =
        ops::sequence_projection(tape, Variable(x), weight_variable(weight), mask, c.options()).value();
    const Tensor shorter =
        ops::sequence_projection(tape, Variable(x.narrow(1, 0, 9)), weight_variable(weight), Tensor{}, c.options())
            .value();
    const auto found = doubles(padded.narrow(1, 0, shorter.extent(1)));
    // cuBLASLt may choose another order of summation for the shorter product.
    const double tolerance =
        testing::device().type == DeviceType::cuda ? 4 * testing::rounding_unit(DType::float64) : 0;
    EXPECT_LE(relative_difference(found, doubles(shorter)), tolerance) << c.text();
    const auto kept_rows =
        ops::sequence_projection_mask(testing::stream(), mask, c.options()).to_vector<std::int32_t>();
    for (std::size_t i = 0; i < kept_rows.size(); ++i) {
      EXPECT_EQ(kept_rows[i], static_cast<std::int64_t>(i) % padded.extent(1) < shorter.extent(1) ? 1 : 0) << c.text();
    }
  }
}

TEST_P(SequenceProjectionOp, RowMaskMarksRowsWithKeptTokens) {
  const Tensor keys =
      Tensor::from(std::vector<std::int32_t>{0, 0, 1, 0, 0, 0, 0, /**/ 0, 0, 0, 0, 0, 0, 0, /**/ 0, 0, 0, 1, 1, 1, 1},
                   {3, 7}, testing::device());
  ops::SequenceProjectionOptions options{SequenceProjection::mean, 1, 4, 8};  // windows of 2, 2, 2 and 1
  for (const SequenceProjection kind : all_values<SequenceProjection>()) {
    options.kind = kind;
    const Tensor rows = ops::sequence_projection_mask(testing::stream(), keys, options);
    const std::vector<std::int32_t> wanted = kind == SequenceProjection::linear
                                                 ? std::vector<std::int32_t>{1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1}
                                                 : std::vector<std::int32_t>{0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1};
    EXPECT_EQ(rows.to_vector<std::int32_t>(), wanted) << name_of(kind);
    EXPECT_FALSE(ops::sequence_projection_mask(testing::stream(), Tensor{}, options).defined());
  }
}

/// float32 for windows. Products of float32 matrices are equal only for equal thread counts (see gemm.h).
TEST(SequenceProjectionOnCpu, IsIndependentOfThreadCount) {
  for (const Case& c : cases_of({{2, 150, 2, 35, 10, 151}})) {
    const DType dtype = c.kind == SequenceProjection::linear ? DType::float64 : DType::float32;
    const auto run = [&] { return gradients_in_views(c, dtype); };
    EXPECT_TRUE(with_threads(1, run) == with_threads(5, run)) << c.text();
  }
}

TEST(SequenceProjectionOnCpu, RejectsMismatchedShapesAndDtypes) {
  Tape tape{testing::stream()};
  const auto tensor = [](const Shape& shape, DType dtype = DType::float32) {
    return Variable(normal_tensor(shape, dtype, "t"));
  };
  const ops::SequenceProjectionOptions linear{SequenceProjection::linear, 2, 3, 8},
      mean{SequenceProjection::mean, 2, 3, 8};
  const Variable x = tensor({2, 7, 6}), weight = tensor({3, 8});
  const auto project = [&](const Variable& input, const Variable& matrix, const Tensor& keys,
                           const ops::SequenceProjectionOptions& options) {
    return ops::sequence_projection(tape, input, matrix, keys, options);
  };
  EXPECT_NO_THROW(project(x, weight, {}, linear));
  EXPECT_THROW(project(x, {}, {}, linear), ContractError);
  EXPECT_THROW(project(x, weight, {}, mean), ContractError);
  EXPECT_THROW(project(x, tensor({3, 7}), {}, linear), ContractError);
  EXPECT_THROW(project(x, tensor({1, 3, 8}), {}, linear), ContractError);
  EXPECT_THROW(project(x, tensor({3, 8}, DType::bfloat16), {}, linear), ContractError);
  EXPECT_THROW(project(tensor({2, 9, 6}), weight, {}, linear), ContractError);
  EXPECT_THROW(project(tensor({2, 7, 5}), weight, {}, linear), ContractError);
  EXPECT_THROW(project(x, weight, Tensor::zeros({2, 6}, DType::int32), linear), ContractError);
  EXPECT_THROW(project(x, weight, Tensor::zeros({2, 7}, DType::float32), linear), ContractError);
  EXPECT_THROW(project(x, weight, {}, {SequenceProjection::linear, 2, 9, 8}), ContractError);
  EXPECT_THROW(ops::sequence_projection_mask(testing::stream(), Tensor::zeros({2, 9}, DType::int32), linear),
               ContractError);
}

TEST_P(SequenceProjectionOp, NoSequencesGiveZeroWeightGradients) {
  for (const Case& c : cases_of({{0, 7, 2, 3, 3, 9}})) {
    if (!c.has_weight()) continue;
    Tape tape(testing::stream());
    const Variable x = Variable::leaf(Tensor::empty(c.x_shape(), DType::float32, testing::device()));
    const Variable weight = Variable::leaf(Tensor::zeros(c.weight_shape(), DType::float32, testing::device()));
    testing::fill_freed_memory(c.weight_shape().elements(), DType::float32);
    const Variable y = ops::sequence_projection(tape, x, weight, c.mask(), c.options());
    tape.backward({y}, {Tensor::empty(y.shape(), DType::float32, testing::device())});
    EXPECT_EQ(doubles(weight.gradient()), std::vector<double>(doubles(weight.value()).size())) << c.text();
  }
}

TEST(SequenceProjectionOnCpu, ShapeOnlyDeviceGivesSameShapes) {
  const Device device{DeviceType::shape_only, 0};
  for (const Case& c : cases_of({{2, 50, 2, 40, 7, 64}})) {
    Tape tape{Stream{device}};
    const Variable x = Variable::leaf(Tensor::empty(c.x_shape(), DType::bfloat16, device));
    const Variable weight =
        c.has_weight() ? Variable::leaf(Tensor::empty(c.weight_shape(), DType::bfloat16, device)) : Variable{};
    const Tensor keys = c.masked ? Tensor::empty({c.batch, c.n}, DType::int32, device) : Tensor{};
    const Variable y = ops::sequence_projection(tape, x, weight, keys, c.options());
    EXPECT_EQ(ops::sequence_projection_mask(tape.stream(), keys, c.options()).defined(), c.masked);
    tape.backward({y}, {Tensor::empty(y.shape(), DType::bfloat16, device)});
    EXPECT_EQ(x.gradient().shape(), c.x_shape());
    EXPECT_EQ(c.has_weight() ? weight.gradient().shape() : Shape{}, c.weight_shape());
  }
}

}  // namespace
}  // namespace furlong
