#include "framework/ops/normalization/norm.h"

#include "framework/primitives/arithmetic.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/reference/norm.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ops::NormKind;

class Norm : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Norm);

constexpr NormKind kinds[] = {NormKind::layernorm, NormKind::rmsnorm};
/// Rows of one number, of odd widths, of whole vectors, and wider than a GPU block can hold (8192 columns as vectors,
/// 1024 one by one).
const std::vector<Shape> shapes{{1, 1}, {1, 7}, {3, 1}, {5, 33}, {2, 3, 64}, {70, 129}, {3, 1031}, {2, 8200}};

/// The operands of a case in addition to residual_in and gain.
struct Operands {
  bool branch, bias;
};
constexpr Operands operand_sets[] = {{false, false}, {false, true}, {true, false}, {true, true}};

struct Problem {
  Shape shape;
  std::vector<double> residual_in, branch, gain, bias, d_residual, d_normed;
};

Problem problem(const Shape& shape, Operands operands, DType dtype) {
  const std::int64_t n = shape.elements(), columns = shape[-1];
  Problem p{
      shape, stored(normal_values(n, "residual"), dtype), {}, stored(normal_values(columns, "gain"), dtype), {}, {},
      {}};
  for (double& value : p.residual_in) value += 3;  // a large mean must not spoil the variance
  p.residual_in = stored(p.residual_in, dtype);
  if (operands.branch) p.branch = stored(normal_values(n, "branch"), dtype);
  if (operands.bias) p.bias = stored(normal_values(columns, "bias"), dtype);
  p.d_residual = stored(normal_values(n, "d_residual"), dtype);
  p.d_normed = stored(normal_values(n, "d_normed"), dtype);
  return p;
}

struct Result {
  Tensor residual, normed, d_residual_in, d_branch, d_gain, d_bias;
};

/// Forward, and backward with gradients for both outputs.
Result run(const Problem& p, NormKind kind, DType dtype) {
  Tape tape(stream());
  const Shape columns{p.shape[-1]};
  const Variable residual_in = Variable::leaf(tensor_of(p.residual_in, p.shape, dtype)),
                 gain = Variable::leaf(tensor_of(p.gain, columns, dtype));
  Variable branch, bias;
  if (!p.branch.empty()) branch = Variable::leaf(tensor_of(p.branch, p.shape, dtype));
  if (!p.bias.empty()) bias = Variable::leaf(tensor_of(p.bias, columns, dtype));
  const auto [residual, normed] = ops::norm(tape, residual_in, branch.defined() ? &branch : nullptr, gain,
                                            bias.defined() ? &bias : nullptr, kind, 1e-5);
  tape.backward({residual, normed}, {tensor_of(p.d_residual, p.shape, dtype), tensor_of(p.d_normed, p.shape, dtype)});
  return {residual.value(),  normed.value(),  residual_in.gradient(),
          branch.gradient(), gain.gradient(), bias.gradient()};
}

TEST_P(Norm, ValuesMatchTheReference) {
  for_each_instruction_set([] {
    for (NormKind kind : kinds) {
      for (DType dtype : float_dtypes) {
        for (const Shape& shape : shapes) {
          for (Operands operands : operand_sets) {
            const Problem p = problem(shape, operands, dtype);
            const Result found = run(p, kind, dtype);
            // The op normalizes the residual as it is stored; so does the reference.
            auto expected = reference::norm(p.residual_in, p.branch, p.gain, p.bias, kind, 1e-5);
            EXPECT_LE(relative_error(values_of(found.residual), expected.residual), rounding_unit(dtype))
                << shape.text();
            expected = reference::norm(values_of(found.residual), {}, p.gain, p.bias, kind, 1e-5);
            // A deviation near 1 with a mean of 3 costs a few ulp, the mean of thousands some more. With a single
            // column only the mean's own rounding over sqrt(epsilon) remains.
            const double units = dtype == DType::bfloat16 ? 1.1 : shape[-1] == 1 ? 400 : shape[-1] > 1024 ? 100 : 30;
            EXPECT_LE(relative_error(values_of(found.normed), expected.normed), units * rounding_unit(dtype))
                << shape.text() << " " << name_of(dtype) << " kind " << static_cast<int>(kind) << " branch "
                << operands.branch;
          }
        }
      }
    }
  });
}

TEST_P(Norm, GradientsMatchFiniteDifferences) {
  const std::vector<Shape> few{{1, 3}, {3, 2}}, many{{1, 1}, {1, 7}, {3, 1}, {5, 9}};
  for (NormKind kind : kinds) {
    for (const Shape& shape : on_simulator() ? few : many) {
      for (Operands operands : operand_sets) {
        const Problem p = problem(shape, operands, DType::float64);
        std::vector<Tensor> inputs{tensor_of(p.residual_in, shape, DType::float64),
                                   tensor_of(p.gain, {shape[-1]}, DType::float64)};
        if (operands.branch) inputs.push_back(tensor_of(p.branch, shape, DType::float64));
        if (operands.bias) inputs.push_back(tensor_of(p.bias, {shape[-1]}, DType::float64));
        // Gradients through normed alone, then through residual as well (residual * 1 added to normed).
        for (bool through_residual : {false, true}) {
          const auto function = [&](Tape& tape, const std::vector<Variable>& in) {
            const auto [residual, normed] = ops::norm(tape, in[0], operands.branch ? &in[2] : nullptr, in[1],
                                                      operands.bias ? &in.back() : nullptr, kind, 1e-2);
            if (!through_residual) return normed;
            const Tensor sum = normed.value().clone();
            ops::add(tape.stream(), sum, residual.value(), GradientMode::accumulate);
            return tape.record_one("sum", {residual, normed}, sum, {}, [](BackwardContext& context) {
              context.pass(0, context.d_output());
              context.pass(1, context.d_output());
            });
          };
          const auto result = check_gradients(function, inputs);
          EXPECT_LT(result.worst_relative_error, 1e-8)
              << shape.text() << " kind " << static_cast<int>(kind) << " " << result.where;
        }
      }
    }
  }
}

TEST_P(Norm, GradientsInFloat32AndBfloat16MatchDouble) {
  for_each_instruction_set([] {
    for (NormKind kind : kinds) {
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        for (const Shape& shape :
             {Shape{1, 7}, Shape{5, 33}, Shape{9, 64}, Shape{70, 129}, Shape{3, 1031}, Shape{2, 8200}}) {
          for (Operands operands : operand_sets) {
            Problem p = problem(shape, operands, dtype);
            const Result found = run(p, kind, dtype);
            // The reference in double uses the residual as stored in the other type.
            p.residual_in = values_of(found.residual);
            for (double& value : p.branch) value = 0;
            const Result exact = run(p, kind, DType::float64);
            const double tolerance = (dtype == DType::bfloat16 ? 1.1 : 20) * rounding_unit(dtype);
            EXPECT_LE(relative_error(values_of(found.d_residual_in), values_of(exact.d_residual_in)), tolerance)
                << shape.text();
            if (operands.branch) {
              EXPECT_TRUE(same_bits(found.d_branch, found.d_residual_in));
            }
            EXPECT_LE(relative_error(values_of(found.d_gain), values_of(exact.d_gain)), tolerance) << shape.text();
            if (operands.bias) {
              EXPECT_LE(relative_error(values_of(found.d_bias), values_of(exact.d_bias)), tolerance) << shape.text();
            }
          }
        }
      }
    }
  });
}

TEST_P(Norm, PassesResidualGradientThroughUnchanged) {
  Tape tape(stream());
  const Variable x = Variable::leaf(tensor_of({1, 2, 4}, {1, 3}, DType::float32)),
                 branch = Variable::leaf(tensor_of({3, 1, 2}, {1, 3}, DType::float32));
  const Variable gain = Variable::leaf(tensor_of({1, 1, 1}, {3}, DType::float32));
  const auto outputs = ops::norm(tape, x, &branch, gain, nullptr, NormKind::layernorm, 1e-5);
  tape.backward({outputs.residual}, {tensor_of({5, 6, 7}, {1, 3}, DType::float32)});
  EXPECT_EQ(x.gradient().to_vector<float>(), (std::vector<float>{5, 6, 7}));
  EXPECT_EQ(branch.gradient().to_vector<float>(), (std::vector<float>{5, 6, 7}));
  EXPECT_FALSE(gain.gradient().defined());
}

TEST_P(Norm, ReturnsInputAsResidualWithoutBranch) {
  Tape tape(stream());
  const Variable x = Variable::leaf(Tensor::zeros({2, 3}, DType::float32, device())),
                 gain(Tensor::zeros({3}, DType::float32, device()));
  const auto outputs = ops::norm(tape, x, nullptr, gain, nullptr, NormKind::rmsnorm, 1e-5);
  EXPECT_EQ(outputs.residual.slot(), x.slot());
  EXPECT_EQ(outputs.residual.value().address(), x.value().address());
}

TEST_P(Norm, SkipsConstantsAndAccumulatesGainGradient) {
  const Shape shape{4, 6};
  const Problem p = problem(shape, {true, true}, DType::float64);
  const Tensor d = tensor_of(p.d_normed, shape, DType::float64);
  const auto gain_gradient = [&](int uses, bool inputs_require) {
    Tape tape(stream());
    const Tensor x = tensor_of(p.residual_in, shape, DType::float64);
    const Variable residual_in = inputs_require ? Variable::leaf(x) : Variable(x);
    const Variable branch(tensor_of(p.branch, shape, DType::float64)),
        gain = Variable::leaf(tensor_of(p.gain, {6}, DType::float64));
    std::vector<Variable> outputs;
    for (int i = 0; i < uses; ++i)
      outputs.push_back(ops::norm(tape, residual_in, &branch, gain, nullptr, NormKind::layernorm, 1e-5).normed);
    tape.backward(outputs, std::vector<Tensor>(outputs.size(), d));
    EXPECT_FALSE(branch.gradient().defined());
    EXPECT_EQ(residual_in.gradient().defined(), inputs_require);
    return values_of(gain.gradient());
  };
  const auto once = gain_gradient(1, true);
  EXPECT_EQ(gain_gradient(1, false), once);
  auto twice = gain_gradient(2, true);
  for (double& value : twice) value /= 2;
  EXPECT_EQ(twice, once);
}

TEST_P(Norm, AcceptsParametersOfAnotherDtype) {
  // bfloat16 values with float32 gain: the leaf chooses the dtype of the gain's gradient.
  const Shape shape{9, 40};
  const Problem p = problem(shape, {true, true}, DType::bfloat16);
  Tape tape(stream());
  const Variable x = Variable::leaf(tensor_of(p.residual_in, shape, DType::bfloat16)),
                 branch = Variable::leaf(tensor_of(p.branch, shape, DType::bfloat16));
  const Variable gain = Variable::leaf(tensor_of(p.gain, {40}, DType::float32)),
                 bias = Variable::leaf(tensor_of(p.bias, {40}, DType::float32));
  const auto outputs = ops::norm(tape, x, &branch, gain, &bias, NormKind::layernorm, 1e-5);
  tape.backward({outputs.normed}, {tensor_of(p.d_normed, shape, DType::bfloat16)});
  const Result same = run(p, NormKind::layernorm, DType::bfloat16);
  EXPECT_TRUE(same_bits(outputs.normed.value(), same.normed));
  ASSERT_EQ(gain.gradient().dtype(), DType::float32);
  EXPECT_LE(relative_error(values_of(same.d_gain), values_of(gain.gradient())), rounding_unit(DType::bfloat16));
  EXPECT_LE(relative_error(values_of(same.d_bias), values_of(bias.gradient())), rounding_unit(DType::bfloat16));
}

TEST_P(Norm, GradientsOfABlockChainMatchFiniteDifferences) {
  // x + f(norm(x)) twice, as in a pre-norm model: gradients of the residual are passed in place from norm to norm.
  const auto function = [](Tape& tape, const std::vector<Variable>& in) {
    Variable residual = in[0], branch;
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const auto outputs =
          ops::norm(tape, residual, layer ? &branch : nullptr, in[1 + layer], nullptr, NormKind::rmsnorm, 1e-5);
      residual = outputs.residual;
      const Tensor negated = Tensor::empty(residual.shape(), DType::float64, device());
      ops::add(tape.stream(), negated, outputs.normed.value(), GradientMode::overwrite, -0.7);
      branch = tape.record_one("negate", {outputs.normed}, negated, {}, [](BackwardContext& context) {
        const GradientTarget target = context.d_input(0);
        ops::add(context.stream(), target.tensor, context.d_output(), target.mode, -0.7);
      });
    }
    return ops::norm(tape, residual, &branch, in[1], nullptr, NormKind::layernorm, 1e-5).normed;
  };
  std::vector<Tensor> inputs{tensor_of(normal_values(15, "x"), {3, 5}, DType::float64)};
  for (const char* name : {"gain0", "gain1", "gain2"})
    inputs.push_back(tensor_of(normal_values(5, name), {5}, DType::float64));
  const auto result = check_gradients(function, inputs);
  EXPECT_LT(result.worst_relative_error, 1e-7) << result.where;
}

/// A view whose rows are not aligned for vector accesses is read element by element, in the same order.
TEST_P(Norm, UnalignedViewsGiveTheSameBits) {
  const Shape shape{5, 64};
  for (DType dtype : float_dtypes) {
    Problem p = problem(shape, {true, true}, dtype);
    const Result aligned = run(p, NormKind::layernorm, dtype);
    const auto shifted = [&](const std::vector<double>& values, const Shape& of) {
      std::vector<double> longer(values);
      longer.insert(longer.begin(), 1e30);
      return tensor_of(longer, {static_cast<std::int64_t>(longer.size())}, dtype)
          .narrow(0, 1, of.elements())
          .reshape(of);
    };
    Tape tape(stream());
    const Variable x = Variable::leaf(shifted(p.residual_in, shape)), branch = Variable::leaf(shifted(p.branch, shape));
    const Variable gain = Variable::leaf(shifted(p.gain, {64})), bias = Variable::leaf(shifted(p.bias, {64}));
    const auto outputs = ops::norm(tape, x, &branch, gain, &bias, NormKind::layernorm, 1e-5);
    tape.backward({outputs.residual, outputs.normed}, {shifted(p.d_residual, shape), shifted(p.d_normed, shape)});
    EXPECT_TRUE(same_bits(outputs.normed.value(), aligned.normed)) << name_of(dtype);
    EXPECT_TRUE(same_bits(x.gradient(), aligned.d_residual_in)) << name_of(dtype);
    EXPECT_TRUE(same_bits(gain.gradient(), aligned.d_gain)) << name_of(dtype);
    EXPECT_TRUE(same_bits(bias.gradient(), aligned.d_bias)) << name_of(dtype);
  }
}

TEST_P(Norm, ZeroRowsGiveEmptyOutput) {
  const Problem p = problem({0, 5}, {false, true}, DType::float32);
  const Result found = run(p, NormKind::layernorm, DType::float32);
  EXPECT_EQ(found.normed.shape(), p.shape);
  EXPECT_EQ(values_of(found.d_gain), std::vector<double>(5, 0));
  EXPECT_EQ(values_of(found.d_bias), std::vector<double>(5, 0));
}

TEST(NormOnCpu, BitsDoNotDependOnThreadCount) {
  const Problem p = problem({401, 320}, {true, true}, DType::float32);
  for (NormKind kind : kinds) {
    std::vector<Result> results;
    for (int threads : {1, 3}) {
      const WithThreads guard(threads);
      results.push_back(run(p, kind, DType::float32));
    }
    EXPECT_TRUE(same_bits(results[0].normed, results[1].normed));
    EXPECT_TRUE(same_bits(results[0].d_residual_in, results[1].d_residual_in));
    EXPECT_TRUE(same_bits(results[0].d_gain, results[1].d_gain));
    EXPECT_TRUE(same_bits(results[0].d_bias, results[1].d_bias));
  }
}

TEST(NormOnCpu, RejectsMismatchedShapes) {
  Tape tape(stream());
  const Variable x(Tensor::zeros({2, 3}, DType::float32)), gain(Tensor::zeros({3}, DType::float32)),
      wrong(Tensor::zeros({2}, DType::float32));
  EXPECT_THROW(ops::norm(tape, x, nullptr, wrong, nullptr, NormKind::layernorm, 1e-5), ContractError);
  EXPECT_THROW(ops::norm(tape, x, nullptr, gain, &wrong, NormKind::layernorm, 1e-5), ContractError);
  EXPECT_THROW(ops::norm(tape, x, &wrong, gain, nullptr, NormKind::layernorm, 1e-5), ContractError);
}

TEST(NormOnCpu, ShapeOnlyAllocatesWithoutMemoryAccess) {
  const Device device{DeviceType::shape_only, 0};
  Tape tape(Stream{device});
  const Shape shape{64, 128};
  const auto leaf = [&](const Shape& of) { return Variable::leaf(Tensor::empty(of, DType::bfloat16, device)); };
  const Variable x = leaf(shape), branch = leaf(shape), gain = leaf({128}), bias = leaf({128});
  const auto outputs = ops::norm(tape, x, &branch, gain, &bias, NormKind::layernorm, 1e-5);
  tape.backward({outputs.normed}, {Tensor::empty(shape, DType::bfloat16, device)});
  EXPECT_TRUE(x.gradient().defined() && branch.gradient().defined() && gain.gradient().defined() &&
              bias.gradient().defined());
}

}  // namespace
}  // namespace furlong
