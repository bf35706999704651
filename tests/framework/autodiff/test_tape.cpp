#include "framework/autodiff/tape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/autodiff/gradient_check.h"
#include "framework/core/arena.h"
#include "framework/primitives/arithmetic.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using testing::message_of;
using Values = std::vector<double>;

Tensor vector_of(const Values& values) { return Tensor::from(values, {static_cast<std::int64_t>(values.size())}); }

/// Elements by logical index through any strides.
double& at(const Tensor& tensor, std::int64_t row, std::int64_t column) {
  return tensor.data<double>()[row * (tensor.shape().rank() > 1 ? tensor.strides()[0] : 0) + column];
}
std::int64_t rows_of(const Tensor& tensor) { return tensor.shape().rank() > 1 ? tensor.extent(0) : 1; }

/// y = x * x element by element on [n] or [rows, n], saving x. Written out so that these tests depend on no op. Records
/// the requested gradient modes.
Variable square(Tape& tape, const Variable& x, std::vector<GradientMode>* modes = nullptr, int* runs = nullptr) {
  if (runs) ++*runs;
  const Tensor y = Tensor::empty(x.shape(), DType::float64);
  for (std::int64_t r = 0; r < rows_of(y); ++r) {
    for (std::int64_t c = 0; c < y.extent(-1); ++c) at(y, r, c) = at(x.value(), r, c) * at(x.value(), r, c);
  }
  return tape.record_one("square", {x}, y, {x.value()}, [modes](BackwardContext& context) {
    const Tensor d_y = context.d_output(), x = context.saved(0);
    const GradientTarget d_x = context.d_input(0);
    if (modes) modes->push_back(d_x.mode);
    if (!d_x.wanted()) return;
    for (std::int64_t r = 0; r < rows_of(x); ++r) {
      for (std::int64_t c = 0; c < x.extent(-1); ++c) {
        double& target = at(d_x.tensor, r, c);
        target = (d_x.accumulates() ? target : 0.0) + 2 * at(x, r, c) * at(d_y, r, c);
      }
    }
  });
}

/// x * y element by element; requests both gradients.
Variable multiply(Tape& tape, const Variable& x, const Variable& y, std::vector<GradientMode>* modes = nullptr) {
  const Tensor z = Tensor::empty(x.shape(), DType::float64);
  for (std::int64_t i = 0; i < z.elements(); ++i) at(z, 0, i) = at(x.value(), 0, i) * at(y.value(), 0, i);
  return tape.record_one("multiply", {x, y}, z, {x.value(), y.value()}, [modes](BackwardContext& context) {
    const Tensor d_z = context.d_output();
    for (std::size_t input : {0u, 1u}) {
      const GradientTarget target = context.d_input(input);
      if (modes) modes->push_back(target.mode);
      if (!target.wanted()) continue;
      const Tensor& other = context.saved(1 - input);
      for (std::int64_t i = 0; i < d_z.elements(); ++i) {
        at(target.tensor, 0, i) =
            (target.accumulates() ? at(target.tensor, 0, i) : 0.0) + at(d_z, 0, i) * at(other, 0, i);
      }
    }
  });
}

/// x + y: gradients are passed on without a copy.
Variable sum_of(Tape& tape, const Variable& x, const Variable& y) {
  const Tensor z = x.value().clone();
  ops::add(tape.stream(), z, y.value(), GradientMode::accumulate);
  return tape.record_one("sum", {x, y}, z, {}, [](BackwardContext& context) {
    const Tensor d_z = context.d_output();
    context.pass(0, d_z);
    context.pass(1, d_z);
  });
}

/// x *= factor, in place.
Variable scale_in_place(Tape& tape, const Variable& x, double factor) {
  const auto scale = [factor](const Tensor& tensor) {
    for (std::int64_t r = 0; r < rows_of(tensor); ++r) {
      for (std::int64_t c = 0; c < tensor.extent(-1); ++c) at(tensor, r, c) *= factor;
    }
  };
  scale(x.value());
  return tape.record_in_place("scale_in_place", x, {},
                              [scale](BackwardContext& context) { scale(context.d_output()); });
}

Variable copy_of(Tape& tape, const Variable& x) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype());
  ops::convert(tape.stream(), y, x.value());
  return tape.record_one("copy", {x}, y, {}, [](BackwardContext& context) { context.pass(0, context.d_output()); });
}

void backward_with_ones(Tape& tape, const Variable& output) {
  const Tensor ones = Tensor::empty(output.shape(), DType::float64);
  ops::fill(tape.stream(), ones, 1.0);
  tape.backward({output}, {ones});
}

TEST(Tape, FirstUseOverwritesLaterUsesAccumulateConstantsSkip) {
  Tape tape(Stream{});
  std::vector<GradientMode> modes;
  const Variable x = Variable::leaf(vector_of({1, -2, 3})), constant(vector_of({5, 6, 7}));
  const Variable y = multiply(tape, square(tape, x, &modes), constant, &modes);
  const Variable z = sum_of(tape, y, square(tape, x, &modes));
  backward_with_ones(tape, z);
  // From the end: square (overwrite), multiply (overwrite, skip), square (accumulate).
  EXPECT_EQ(modes, (std::vector<GradientMode>{GradientMode::overwrite, GradientMode::overwrite, GradientMode::skip,
                                              GradientMode::accumulate}));
  EXPECT_EQ(x.gradient().to_vector<double>(), (Values{2 * 1 * 6, 2 * -2 * 7, 2 * 3 * 8}));
  EXPECT_FALSE(constant.gradient().defined());
  EXPECT_EQ(tape.node_count(), 0u);
}

TEST(Tape, SumsGradientsOfAValueUsedTwiceInOneNode) {
  Tape tape(Stream{});
  const Variable x = Variable::leaf(vector_of({3, -4}));
  const Variable y = square(tape, x);
  backward_with_ones(tape, sum_of(tape, y, y));
  EXPECT_EQ(x.gradient().to_vector<double>(), (Values{12, -16}));
}

TEST(Tape, ValueUsedAgainAfterBackwardHasANewGradient) {
  Tape tape(Stream{});
  const Variable x = Variable::leaf(vector_of({3}));
  const Variable y = square(tape, x);
  tape.backward({y}, {vector_of({1})});
  std::vector<GradientMode> modes;
  tape.backward({square(tape, y, &modes)}, {vector_of({1})});
  EXPECT_EQ(modes, std::vector<GradientMode>{GradientMode::overwrite});
}

TEST(Tape, CopiesPassedGradientBeforeAccumulation) {
  // x and y receive the same memory from the sum; x's second use must not change y's gradient.
  Tape tape(Stream{});
  const Variable a = Variable::leaf(vector_of({1, 2})), b = Variable::leaf(vector_of({3, 4}));
  const Variable x = copy_of(tape, a), y = copy_of(tape, b);
  const Variable used_again = square(tape, x);
  const Variable z = sum_of(tape, used_again, sum_of(tape, x, y));
  backward_with_ones(tape, z);
  EXPECT_EQ(a.gradient().to_vector<double>(), (Values{3, 5}));
  EXPECT_EQ(b.gradient().to_vector<double>(), (Values{1, 1}));
}

TEST(Tape, InPlaceNodeLeavesSharedGradientUnchanged) {
  Tape tape(Stream{});
  const Variable a = Variable::leaf(vector_of({1, 2})), b = Variable::leaf(vector_of({3, 4}));
  const Variable x = copy_of(tape, a), y = copy_of(tape, b);
  const Variable scaled = scale_in_place(tape, x, 10);
  EXPECT_EQ(scaled.value().to_vector<double>(), (Values{10, 20}));
  backward_with_ones(tape, sum_of(tape, scaled, y));
  EXPECT_EQ(a.gradient().to_vector<double>(), (Values{10, 10}));
  EXPECT_EQ(b.gradient().to_vector<double>(), (Values{1, 1}));
}

TEST(Tape, RejectsInPlaceOnLeaf) {
  Tape tape(Stream{});
  EXPECT_THROW(tape.record_in_place("scale", Variable::leaf(vector_of({1})), {}, [](BackwardContext&) {}),
               ContractError);
}

TEST(Tape, ReshapedVariablesShareOneGradient) {
  Tape tape(Stream{});
  const Variable x = Variable::leaf(vector_of({1, 2, 3, 4}));
  const Variable y = square(tape, x.reshape({2, 2})).reshape({4});
  backward_with_ones(tape, sum_of(tape, y, x));
  EXPECT_EQ(x.gradient().to_vector<double>(), (Values{3, 5, 7, 9}));
}

Tensor matrix_2x5() { return Tensor::from<double>({1, 2, 3, 4, 5, -1, -2, -3, -4, -5}, {2, 5}); }

TEST(TapeSplit, UnwrittenRangesGetZero) {
  Tape tape(Stream{});
  const Variable x = Variable::leaf(matrix_2x5());
  const auto parts = tape.split_last(copy_of(tape, x), {2, 2, 1});
  backward_with_ones(tape, square(tape, parts[1]));
  EXPECT_EQ(x.gradient().to_vector<double>(), (Values{0, 0, 6, 8, 0, 0, 0, -6, -8, 0}));
}

TEST(TapeSplit, LeafCanBeSplitAgainInTheNextStep) {
  const Variable x = Variable::leaf(matrix_2x5());
  for (int step = 0; step < 2; ++step) {
    Tape tape(Stream{});
    backward_with_ones(tape, square(tape, tape.split_last(x, {3, 2})[1]));
    EXPECT_EQ(x.gradient().to_vector<double>(), (Values{0, 0, 0, 8, 10, 0, 0, 0, -8, -10}));
    x.slot()->written = false;  // as a parameter store does between steps
  }
}

TEST(TapeSplit, SumsGradientsOfWholeAndRangesInEitherOrder) {
  for (bool whole_first : {true, false}) {
    Tape tape(Stream{});
    const Variable x = Variable::leaf(matrix_2x5()), base = copy_of(tape, x);
    const auto parts = tape.split_last(base, {2, 3});
    std::vector<GradientMode> modes;
    Variable whole, part;
    if (whole_first) whole = square(tape, base, &modes);
    part = square(tape, parts[0], &modes);
    if (!whole_first) whole = square(tape, base, &modes);
    const Tensor ones_whole = Tensor::empty({2, 5}, DType::float64), ones_part = Tensor::empty({2, 2}, DType::float64);
    ops::fill(Stream{}, ones_whole, 1.0);
    ops::fill(Stream{}, ones_part, 1.0);
    tape.backward({whole, part}, {ones_whole, ones_part});
    EXPECT_EQ(modes, (std::vector<GradientMode>{GradientMode::overwrite, GradientMode::accumulate}));
    EXPECT_EQ(x.gradient().to_vector<double>(), (Values{4, 8, 6, 8, 10, -4, -8, -6, -8, -10}));
  }
}

TEST(TapeSplit, RangeGradientLeavesSharedWholeGradientUnchanged) {
  Tape tape(Stream{});
  const Variable x = Variable::leaf(matrix_2x5()), other = Variable::leaf(matrix_2x5());
  const Variable base = copy_of(tape, x), copy = copy_of(tape, other);
  const auto parts = tape.split_last(base, {1, 4});
  const Variable part = square(tape, parts[0]);
  const Variable whole = sum_of(tape, base, copy);
  const Tensor ones_whole = Tensor::empty({2, 5}, DType::float64), ones_part = Tensor::empty({2, 1}, DType::float64);
  ops::fill(Stream{}, ones_whole, 1.0);
  ops::fill(Stream{}, ones_part, 1.0);
  tape.backward({part, whole}, {ones_part, ones_whole});
  EXPECT_EQ(x.gradient().to_vector<double>(), (Values{3, 1, 1, 1, 1, -1, 1, 1, 1, 1}));
  EXPECT_EQ(other.gradient().to_vector<double>(), Values(10, 1.0));
  EXPECT_EQ(ones_whole.to_vector<double>(), Values(10, 1.0));
}

TEST(TapeSplit, InPlaceOnRangeChangesOnlyItsGradientRange) {
  for (bool through_the_whole : {true, false}) {
    Tape tape(Stream{});
    const Variable x = Variable::leaf(matrix_2x5()), base = copy_of(tape, x);
    const auto parts = tape.split_last(base, {2, 3});
    const Variable scaled = scale_in_place(tape, parts[0], 10);
    backward_with_ones(tape, through_the_whole ? copy_of(tape, base) : copy_of(tape, scaled));
    const double rest = through_the_whole ? 1 : 0;
    EXPECT_EQ(x.gradient().to_vector<double>(), (Values{10, 10, rest, rest, rest, 10, 10, rest, rest, rest}));
  }
}

TEST(TapeSplit, RejectsMismatchedLengthsAndSecondSplits) {
  Tape tape(Stream{});
  const Variable base = copy_of(tape, Variable::leaf(matrix_2x5()));
  EXPECT_THROW(tape.split_last(base, {2, 2}), ContractError);
  const Variable again = copy_of(tape, Variable::leaf(matrix_2x5()));
  tape.split_last(again, {2, 3});
  EXPECT_THROW(tape.split_last(again, {2, 3}), ContractError);
}

/// A segment that uses its input twice, a parameter, and a column range.
std::vector<Variable> segment_of(Tape& tape, const Variable& x, const Variable& weight, int* runs) {
  const Variable y = square(tape, x, nullptr, runs);
  const Variable z = multiply(tape, y, weight);
  return {sum_of(tape, z, x), z};
}

TEST(TapeRecompute, GradientsEqualThoseWithoutRecomputeAndAreFinalOnce) {
  std::vector<Values> d_x, d_weight;
  for (bool recomputed : {false, true}) {
    Tape tape(Stream{});
    const Variable x = Variable::leaf(vector_of({0.5, -1.5, 2.5})), weight = Variable::leaf(vector_of({2, 3, 4}));
    int finals = 0, runs = 0;
    weight.slot()->on_final = [&] { ++finals; };
    const Tape::Segment segment = [&](Tape& inner, const std::vector<Variable>& in) {
      return segment_of(inner, in[0], weight, &runs);
    };
    const Variable start = square(tape, x);
    const auto outputs = recomputed ? tape.recompute("segment", {start}, segment) : segment(tape, {start});
    backward_with_ones(tape, sum_of(tape, square(tape, outputs[0]), outputs[1]));
    EXPECT_EQ(finals, 1);
    EXPECT_EQ(runs, recomputed ? 2 : 1);
    d_x.push_back(x.gradient().to_vector<double>());
    d_weight.push_back(weight.gradient().to_vector<double>());
  }
  EXPECT_EQ(d_x[0], d_x[1]);
  EXPECT_EQ(d_weight[0], d_weight[1]);
}

TEST(TapeRecompute, NestedSegmentGradientsMatchFiniteDifferences) {
  const auto function = [](Tape& tape, const std::vector<Variable>& in) {
    const Tape::Segment inner = [weight = in[1]](Tape& t, const std::vector<Variable>& x) {
      return segment_of(t, x[0], weight, nullptr);
    };
    const Tape::Segment outer = [inner](Tape& t, const std::vector<Variable>& x) {
      return t.recompute("inner", {square(t, x[0])}, inner);
    };
    const auto outputs = tape.recompute("outer", {in[0]}, outer);
    return multiply(tape, outputs[0], outputs[1]);
  };
  const auto result = check_gradients(function, {vector_of({0.5, -1.5, 1.0}), vector_of({2, -1, 0.5})});
  EXPECT_LT(result.worst_relative_error, 1e-9) << result.where;
}

TEST(TapeRecompute, SegmentReturningItsInputLeavesOuterGradientUnchanged) {
  Tape tape(Stream{});
  const Variable a = Variable::leaf(vector_of({1, 2})), b = Variable::leaf(vector_of({1, 1}));
  const auto outputs = tape.recompute("segment", {copy_of(tape, a)}, [](Tape& inner, const std::vector<Variable>& in) {
    return std::vector<Variable>{in[0], square(inner, in[0])};
  });
  backward_with_ones(tape, sum_of(tape, sum_of(tape, outputs[0], copy_of(tape, b)), outputs[1]));
  EXPECT_EQ(a.gradient().to_vector<double>(), (Values{3, 5}));
  EXPECT_EQ(b.gradient().to_vector<double>(), (Values{1, 1}));
}

TEST(TapeRecompute, SavesOnlyTheSegmentInputs) {
  Tape tape(Stream{});
  const Variable x = Variable::leaf(Tensor::zeros({1000}, DType::float64));
  const Tape::Segment chain = [](Tape& inner, const std::vector<Variable>& in) {
    Variable y = in[0];
    for (int i = 0; i < 8; ++i) y = square(inner, y);
    return std::vector<Variable>{y};
  };
  const std::int64_t before = arena({}).counters().bytes_in_use;
  const Variable y = tape.recompute("segment", {x}, chain).front();
  const std::int64_t one = arena({}).counters().bytes_in_use - before;
  EXPECT_GE(one, 8000);
  EXPECT_LT(one, 2 * 8000);  // only the output: seven inner values have been freed
  EXPECT_EQ(tape.saved_bytes().at("segment"), 8000);
}

TEST(TapeFinal, CallsBackWhenFirstRecordedUseIsConsumed) {
  Tape tape(Stream{});
  const Variable shared = Variable::leaf(vector_of({2, 3})), last = Variable::leaf(vector_of({5, 7}));
  std::vector<std::string> order;
  shared.slot()->on_final = [&] {
    order.push_back(fmt::format("shared {}", shared.gradient().to_vector<double>()[0]));
  };
  last.slot()->on_final = [&] { order.push_back(fmt::format("last {}", last.gradient().to_vector<double>()[0])); };
  const Variable y = square(tape, shared);
  backward_with_ones(tape, multiply(tape, multiply(tape, y, last), shared));
  // d/d last = shared^2 * shared; d/d shared = 3 shared^2 last.
  EXPECT_EQ(order, (std::vector<std::string>{"last 8", "shared 60"}));
}

TEST(TapeFinal, UseWithoutGradientStillCompletes) {
  Tape tape(Stream{});
  const Variable weight = Variable::leaf(vector_of({2})), x = Variable::leaf(vector_of({3}));
  int finals = 0;
  weight.slot()->on_final = [&] { ++finals; };
  const Variable y = square(tape, x);
  const Variable unused = multiply(tape, y, weight);
  backward_with_ones(tape, square(tape, y));
  EXPECT_EQ(finals, 1);
  EXPECT_FALSE(weight.gradient().defined());
}

TEST(TapeFinal, ClearAndDestructorDropUsesWithoutCallback) {
  Tape tape(Stream{});
  const Variable weight = Variable::leaf(vector_of({2}));
  int finals = 0;
  weight.slot()->on_final = [&] { ++finals; };
  square(tape, weight);
  tape.clear();
  {
    Tape other(Stream{});
    square(other, weight);
    EXPECT_EQ(weight.slot()->open_uses, 1);
  }
  EXPECT_EQ(finals, 0);
  EXPECT_EQ(weight.slot()->open_uses, 0);
  backward_with_ones(tape, square(tape, weight));
  EXPECT_EQ(finals, 1);
}

TEST(TapeMemory, FreesSavedTensorsAndGradientsWhenConsumed) {
  constexpr std::int64_t n = 4096, bytes = n * 8, length = 16;
  Tape tape(Stream{});
  const Variable x = Variable::leaf(Tensor::zeros({n}, DType::float64));
  const std::int64_t before = arena({}).counters().bytes_in_use;
  std::vector<std::int64_t> in_use;
  {
    Variable y = x;
    for (int i = 0; i < length; ++i) {
      y = tape.record_one("probe", {square(tape, y)}, Tensor::zeros({n}, DType::float64), {},
                          [&](BackwardContext& context) {
                            in_use.push_back(arena({}).counters().bytes_in_use - before);
                            context.pass(0, context.d_output());
                          });
    }
    EXPECT_EQ(tape.saved_bytes().at("square"), length * bytes);
    const Tensor ones = Tensor::zeros({n}, DType::float64);
    const Variable end = std::exchange(y, Variable());
    tape.backward({end}, {ones});
  }
  ASSERT_EQ(in_use.size(), static_cast<std::size_t>(length));
  for (std::size_t i = 1; i < in_use.size(); ++i) {
    // Each square frees one saved value and one gradient, and allocates one gradient. (The caller owns the first
    // value.)
    EXPECT_EQ(in_use[i] - in_use[i - 1], i == 1 ? 0 : -bytes) << i;
  }
  EXPECT_EQ(arena({}).counters().bytes_in_use - before, bytes) << "the leaf's gradient and nothing else";
}

TEST(TapeChecks, NamesFirstOpWithNan) {
  Tape tape(Stream{});
  tape.set_checks(true);
  const Variable x = Variable::leaf(vector_of({1, std::numeric_limits<double>::infinity()}));
  const Tape::Scope scope(tape, "blocks.3");
  const Variable copy = copy_of(tape, Variable::leaf(vector_of({1, 1e200})));
  EXPECT_EQ(message_of<NonFiniteError>([&] {
              square(tape, multiply(tape, copy, Variable(vector_of({1, 1e200}))));
            }),
            "blocks.3.multiply: 1 of 2 elements are NaN or infinite");
}

TEST(TapeChecks, NamesOpWithNanGradientAndClearsTape) {
  Tape tape(Stream{});
  tape.set_checks(true);
  const Variable x = Variable::leaf(vector_of({4, 1}));
  const Variable y = square(tape, x);
  Variable z;
  {
    const Tape::Scope scope(tape, "head");
    z = tape.record_one("broken", {y}, y.value().clone(), {}, [](BackwardContext& context) {
      ops::fill(context.stream(), context.d_input(0).tensor, std::nan(""));
    });
  }
  EXPECT_EQ(message_of<NonFiniteError>([&] { backward_with_ones(tape, z); }),
            "gradient from head.broken: 2 of 2 elements are NaN or infinite");
  EXPECT_EQ(tape.node_count(), 0u);
  EXPECT_EQ(x.slot()->open_uses, 0);
}

TEST(Tape, RejectsBackwardFromConstantOrVector) {
  Tape tape(Stream{});
  EXPECT_THROW(tape.backward(square(tape, Variable(vector_of({2})))), ContractError);
  EXPECT_THROW(tape.backward(square(tape, Variable::leaf(vector_of({2, 3})))), ContractError);
}

TEST(Tape, NoGradientRecordsNothing) {
  Tape tape(Stream{});
  const Variable x = Variable::leaf(vector_of({2}));
  {
    const Tape::NoGradient guard(tape);
    EXPECT_FALSE(square(tape, x).requires_gradient());
    EXPECT_FALSE(tape.records({&x}));
  }
  EXPECT_EQ(tape.node_count(), 0u);
  EXPECT_TRUE(tape.records({&x}));
}

TEST(Tape, ScalesScalarLoss) {
  Tape tape(Stream{});
  const Variable x = Variable::leaf(vector_of({3}));
  tape.backward(square(tape, x), 0.5);
  EXPECT_EQ(x.gradient().to_vector<double>(), (Values{3}));
}

TEST(Tape, ShapeOnlyCountsAllocationsOfAStep) {
  const Device device{DeviceType::shape_only, 0};
  Tape tape(Stream{device});
  const Variable x = Variable::leaf(Tensor::empty({1 << 20}, DType::float32, device));
  const std::int64_t before = arena(device).counters().bytes_in_use;
  const Variable y = tape.record_one("copy", {x}, x.value().clone(), {},
                                     [](BackwardContext& context) { context.pass(0, context.d_output()); });
  tape.backward({y}, {Tensor::zeros({1 << 20}, DType::float32, device)});
  EXPECT_EQ(arena(device).counters().bytes_in_use - before, 2 * (4 << 20));  // y's value and x's gradient
}

}  // namespace
}  // namespace furlong
