#include "framework/ops/elementwise/activation.h"

#include "framework/primitives/arithmetic.h"
#include "framework/primitives/cpu_isa.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/reference/activation.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ops::ActivationKind;

class Activation : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Activation);
class GatedActivation : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(GatedActivation);

struct Result {
  Tensor y, d_x;
};
Result run(ActivationKind kind, const Tensor& x, const Tensor& d_y) {
  Tape tape(stream());
  const Variable leaf = Variable::leaf(x);
  const Variable y = ops::activation(tape, leaf, kind);
  tape.backward({y}, {d_y});
  return {y.value(), leaf.gradient()};
}

Variable gated(Tape& tape, const std::vector<Variable>& inputs, ActivationKind kind) {
  return ops::gated_activation(tape, inputs[0], kind);
}

TEST_P(Activation, ValuesAndDerivativesMatchTheReference) {
  for_each_instruction_set([] {
    for (const auto& [kind, name] : ops::activation_names) {
      for (DType dtype : float_dtypes) {
        for (const Shape& shape : {Shape{1}, Shape{3, 5}, Shape{1, 1, 17}, Shape{7, 129}}) {
          const auto x = stored(normal_values(shape.elements(), name, 3), dtype),
                     d_y = stored(normal_values(shape.elements(), "d_y"), dtype);
          const Result found = run(kind, tensor_of(x, shape, dtype), tensor_of(d_y, shape, dtype));
          std::vector<double> y, d_x;
          for (std::size_t i = 0; i < x.size(); ++i) {
            y.push_back(static_cast<double>(reference::activation(kind, x[i])));
            d_x.push_back(d_y[i] * static_cast<double>(reference::activation_derivative(kind, x[i])));
          }
          // One rounding at the store and a few before it; the rounding of gelu_tanh's cubic argument is amplified by
          // the exponential.
          const double tolerance = (dtype == DType::bfloat16            ? 1.1
                                    : kind == ActivationKind::gelu_tanh ? 32
                                                                        : 8) *
                                   rounding_unit(dtype);
          EXPECT_LT(relative_error(values_of(found.y), y), tolerance)
              << name << " " << name_of(dtype) << " " << shape.text();
          EXPECT_LT(relative_error(values_of(found.d_x), d_x), tolerance)
              << name << " " << name_of(dtype) << " " << shape.text();
        }
      }
    }
  });
}

/// Returns the largest error of float32 values, in ulp of the exact result, over x in [low, high].
double worst_ulp(ActivationKind kind, double low, double high) {
  const std::int64_t n = on_sanitized_simulator() ? 1 << 10 : on_simulator() ? 1 << 14 : 1 << 18;
  std::vector<double> x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(low + (high - low) * static_cast<double>(i) / (n - 1));
  x = stored(x, DType::float32);
  Tape tape(stream());
  const auto y = ops::activation(tape, Variable(tensor_of(x, {n}, DType::float32)), kind).value().to_vector<float>();
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto exact = static_cast<double>(reference::activation(kind, x[i]));
    if (std::abs(exact) < 0x1p-126) continue;  // subnormal
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / ulp);
  }
  return worst;
}

TEST_P(Activation, Float32KeepsItsRelativeAccuracyInBothTails) {
  // Without fused multiply-adds (SSE4) the argument x² / 2 of the exponential is rounded, to half an ulp of up to 85.
  const bool fused = on_gpu() || ops::cpu_isa() != "sse4";
  EXPECT_LE(worst_ulp(ActivationKind::gelu, -13, 0), fused ? 6 : 85);
  EXPECT_LE(worst_ulp(ActivationKind::gelu, 0, 13), 5);
  EXPECT_LE(worst_ulp(ActivationKind::silu, -85, 0), 4);
  EXPECT_LE(worst_ulp(ActivationKind::silu, 0, 85), 3);
  EXPECT_LE(worst_ulp(ActivationKind::gelu_tanh, -2, 13), 8);
  // The argument of the exponential is rounded: the error grows with it, to 90 ulp near -8, where the value is 1e-21.
  EXPECT_LE(worst_ulp(ActivationKind::gelu_tanh, -8, -2), 100);
  EXPECT_EQ(worst_ulp(ActivationKind::relu, -10, 10), 0);
}

TEST_P(Activation, ExtremeValuesStayFiniteAndNanStaysNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for_each_instruction_set([&] {
    for (const auto& [kind, name] : ops::activation_names) {
      for (DType dtype : float_dtypes) {
        const double big = dtype == DType::float64 ? 1e300 : 3e38;
        const Tensor x = tensor_of({big, -big, 100, -100, 0, -0.0, std::nan("")}, {7}, dtype);
        const Result found = run(kind, x, tensor_of(std::vector<double>(7, 1.0), {7}, dtype));
        const auto y = values_of(found.y), d_x = values_of(found.d_x);
        EXPECT_DOUBLE_EQ(y[0], values_of(x)[0]) << name;
        EXPECT_LT(std::abs(y[1]), 4.0) << name;  // a large number times a sigmoid clamped at the least normal number
        EXPECT_EQ(y[2], 100) << name;
        EXPECT_LT(std::abs(y[3]), 1e-30) << name;
        EXPECT_EQ(y[4], 0) << name;
        EXPECT_EQ(y[5], 0) << name;
        EXPECT_TRUE(std::isnan(y[6])) << name;
        EXPECT_DOUBLE_EQ(d_x[0], 1) << name;
        EXPECT_LT(std::abs(d_x[1]), 1e-30) << name;
        EXPECT_DOUBLE_EQ(d_x[2], 1) << name;
        EXPECT_LT(std::abs(d_x[3]), 1e-30) << name;
      }
      const auto at_infinity =
          run(kind, Tensor::from<float>({infinity}, {1}, device()), Tensor::from<float>({1}, {1}, device()));
      EXPECT_EQ(at_infinity.y.to_vector<float>()[0], infinity) << name;
      EXPECT_EQ(at_infinity.d_x.to_vector<float>()[0], 1) << name;
    }
  });
}

TEST_P(Activation, GradientsMatchFiniteDifferencesAndAccumulate) {
  for (const auto& entry : ops::activation_names) {
    const ActivationKind kind = entry.kind;
    for (const Shape& shape : {Shape{1}, Shape{3, 7}}) {
      auto x = normal_values(shape.elements(), "gradient", 1.5);
      for (double& value : x) value += value > 0 ? 0.01 : -0.01;  // away from relu's kink
      const auto once =
          check_gradients([kind](Tape& tape, const auto& in) { return ops::activation(tape, in[0], kind); },
                          {Tensor::from(x, shape, device())});
      EXPECT_LT(once.worst_relative_error, 1e-9) << entry.name << " " << once.where;
      // x reaches the result in two ways: the second one in backward accumulates.
      const auto twice = [kind](Tape& tape, const std::vector<Variable>& in) {
        const Variable y = ops::activation(tape, in[0], kind), z = ops::activation(tape, in[0], ActivationKind::silu);
        const Tensor sum = y.value().clone();
        ops::add(tape.stream(), sum, z.value(), GradientMode::accumulate);
        return tape.record_one("sum", {y, z}, sum, {}, [](BackwardContext& context) {
          context.pass(0, context.d_output());
          context.pass(1, context.d_output());
        });
      };
      const auto result = check_gradients(twice, {Tensor::from(x, shape, device())});
      EXPECT_LT(result.worst_relative_error, 1e-9) << entry.name << " " << result.where;
    }
  }
}

TEST_P(GatedActivation, ValuesMatchTheReferenceAndGradientsMatchFiniteDifferences) {
  for (const auto& entry : ops::activation_names) {
    const ActivationKind kind = entry.kind;
    for (const auto& [rows, f] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 5}, {5, 33}}) {
      for (DType dtype : float_dtypes) {
        const auto x = stored(normal_values(rows * 2 * f, entry.name, 2), dtype);
        std::vector<double> expected;
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < f; ++c) {
            const auto at = static_cast<std::size_t>(r * 2 * f + c);
            expected.push_back(static_cast<double>(reference::activation(kind, x[at])) *
                               x[at + static_cast<std::size_t>(f)]);
          }
        }
        for_each_instruction_set([&, rows = rows, f = f] {
          Tape tape(stream());
          const Variable y = ops::gated_activation(tape, Variable(tensor_of(x, {rows, 2 * f}, dtype)), kind);
          EXPECT_EQ(y.shape(), (Shape{rows, f}));
          EXPECT_LT(relative_error(values_of(y.value()), expected),
                    (dtype == DType::bfloat16 ? 1.1 : 8) * rounding_unit(dtype))
              << entry.name;
        });
      }
      auto x = normal_values(rows * 2 * f, "gated gradient", 1.5);
      for (double& value : x) value += value > 0 ? 0.01 : -0.01;
      const auto result = check_gradients([kind](Tape& tape, const auto& in) { return gated(tape, in, kind); },
                                          {Tensor::from(x, {rows, 2 * f}, device())});
      EXPECT_LT(result.worst_relative_error, 1e-9) << entry.name << " " << result.where;
    }
  }
}

TEST_P(GatedActivation, BackwardInFloat32MatchesDoubleAndAccumulates) {
  const Shape shape{9, 74};
  const auto x = stored(normal_values(shape.elements(), "x", 2), DType::float32);
  const auto d_y = stored(normal_values(shape.elements() / 2, "d_y"), DType::float32);
  std::vector<std::vector<double>> gradients;
  for (DType dtype : {DType::float32, DType::float64}) {
    Tape tape(stream());
    const Variable leaf = Variable::leaf(tensor_of(x, shape, dtype));
    const Variable y = ops::gated_activation(tape, leaf, ActivationKind::silu),
                   z = ops::gated_activation(tape, leaf, ActivationKind::gelu);
    const Tensor d = tensor_of(d_y, {9, 37}, dtype);
    tape.backward({y, z}, {d, d});
    gradients.push_back(values_of(leaf.gradient()));
  }
  EXPECT_LT(relative_error(gradients[0], gradients[1]), 4e-7);
}

TEST_P(Activation, ReadsAndWritesColumnRangesInPlace) {
  // Two ranges of one matrix, neither contiguous. Values and gradients must equal those of contiguous copies.
  for (DType dtype : float_dtypes) {
    const Shape shape{6, 23};
    const Tensor x = tensor_of(normal_values(shape.elements(), "x"), shape, dtype);
    Tape tape(stream());
    const Variable leaf = Variable::leaf(x);
    const auto parts = tape.split_last(leaf, {9, 14});
    const Variable y = ops::activation(tape, parts[0], ActivationKind::gelu),
                   z = ops::gated_activation(tape, parts[1], ActivationKind::silu);
    const Tensor d_y = tensor_of(normal_values(54, "d_y"), {6, 9}, dtype),
                 d_z = tensor_of(normal_values(42, "d_z"), {6, 7}, dtype);
    tape.backward({y, z}, {d_y, d_z});

    const auto copied = [&](int start, int length) {
      return tensor_of(values_of(x.narrow(1, start, length)), {6, length}, dtype);
    };
    const Result alone = run(ActivationKind::gelu, copied(0, 9), d_y);
    EXPECT_TRUE(same_bits(y.value(), alone.y));
    EXPECT_EQ(values_of(leaf.gradient().narrow(1, 0, 9)), values_of(alone.d_x));
    Tape other(stream());
    const Variable second = Variable::leaf(copied(9, 14));
    const Variable alone_z = ops::gated_activation(other, second, ActivationKind::silu);
    other.backward({alone_z}, {d_z});
    EXPECT_TRUE(same_bits(z.value(), alone_z.value()));
    EXPECT_EQ(values_of(leaf.gradient().narrow(1, 9, 14)), values_of(second.gradient()));
  }
}

TEST_P(Activation, StridedRowsMatchContiguousCopies) {
  // Several thread blocks, rows that allow vector accesses and rows that do not, and an outer dimension that cannot be
  // merged.
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    for (const auto& [start, columns, whole] :
         {std::array<std::int64_t, 3>{8, 64, 96}, {8, 61, 80}, {3, 64, 96}, {1, 7, 9}}) {
      const Tensor x = tensor_of(normal_values(3 * 25 * whole, "x"), {3, 25, whole}, dtype);
      const Tensor view = x.narrow(1, 2, 20).narrow(2, start, columns);  // [3, 20, columns]
      const Tensor copied = tensor_of(values_of(view), view.shape(), dtype);
      Tape tape(stream());
      EXPECT_TRUE(same_bits(ops::activation(tape, Variable(view), ActivationKind::silu).value(),
                            ops::activation(tape, Variable(copied), ActivationKind::silu).value()))
          << name_of(dtype) << " " << start << " " << columns;
    }
  }
  Tape tape(stream());
  EXPECT_EQ(
      ops::activation(tape, Variable(Tensor::empty({0, 5}, DType::float32, device())), ActivationKind::gelu).shape(),
      (Shape{0, 5}));
}

/// Returns whether the CPU rounds a product and a sum once, as GPUs do.
bool cpu_fuses() { return (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3 | HWY_NEON)) != 0; }

TEST_P(Activation, Float32AndBfloat16GiveTheBitsOfTheCpu) {
  if (!cpu_fuses()) GTEST_SKIP() << "this CPU has no fused multiply-add";
  for (const auto& entry : ops::activation_names) {
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      const auto run_here = [&] {
        const Result result = run(entry.kind, tensor_of(normal_values(999, "x", 4), {999}, dtype),
                                  tensor_of(normal_values(999, "d"), {999}, dtype));
        return std::pair{result.y.to(Device{}), result.d_x.to(Device{})};
      };
      const auto here = run_here();
      const OnDevice cpu(Device{});
      const auto there = run_here();
      EXPECT_TRUE(same_bits(here.first, there.first)) << entry.name << " " << name_of(dtype);
      EXPECT_TRUE(same_bits(here.second, there.second)) << entry.name << " " << name_of(dtype);
    }
  }
}

TEST(ActivationOnTheCpu, BitsDoNotDependOnThreadCount) {
  const Shape shape{301, 402};
  for (const auto& [kind, name] : ops::activation_names) {
    const Tensor x = tensor_of(normal_values(shape.elements(), "x", 2), shape, DType::float32),
                 d_y = tensor_of(normal_values(shape.elements(), "d"), shape, DType::float32);
    std::vector<Result> results;
    std::vector<Tensor> gates;
    for (int threads : {1, 3}) {
      const WithThreads guard(threads);
      results.push_back(run(kind, x, d_y));
      Tape tape(stream());
      gates.push_back(ops::gated_activation(tape, Variable(x), kind).value());
    }
    EXPECT_TRUE(same_bits(results[0].y, results[1].y)) << name;
    EXPECT_TRUE(same_bits(results[0].d_x, results[1].d_x)) << name;
    EXPECT_TRUE(same_bits(gates[0], gates[1])) << name;
  }
}

TEST_P(Activation, ConstantRecordsNothingAndOddGateWidthIsRejected) {
  Tape tape(stream());
  EXPECT_FALSE(ops::activation(tape, Variable(Tensor::zeros({2, 3}, DType::float32, device())), ActivationKind::gelu)
                   .requires_gradient());
  EXPECT_EQ(tape.node_count(), 0u);
  EXPECT_THROW(
      ops::gated_activation(tape, Variable(Tensor::zeros({2, 3}, DType::float32, device())), ActivationKind::silu),
      ContractError);
}

TEST(ActivationShapes, ShapeOnlyAllocatesTheSameTensors) {
  const Device nowhere{DeviceType::shape_only, 0};
  Tape tape(Stream{nowhere});
  const Variable x = Variable::leaf(Tensor::empty({64, 128}, DType::float32, nowhere));
  const Variable y = ops::gated_activation(tape, ops::activation(tape, x, ActivationKind::gelu), ActivationKind::silu);
  EXPECT_EQ(y.shape(), (Shape{64, 64}));
  tape.backward({y}, {Tensor::empty({64, 64}, DType::float32, nowhere)});
  EXPECT_TRUE(x.gradient().defined());
}

}  // namespace
}  // namespace furlong
