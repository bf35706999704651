// The description of a product for a column-major library, executed by the definition of such a library.
#include "framework/primitives/gemm_plan.h"

#include "framework/core/random.h"
#include "tests/framework/primitives/gemm_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ops::FusedEpilogue;
using ops::GemmPlan;
using ops::plan_gemm;

/// op(memory)[i, j] of a column-major matrix, bounds checked.
double element(const std::vector<double>& memory, const ops::ColumnMajorMatrix& matrix, std::int64_t i,
               std::int64_t j) {
  if (matrix.transposed) std::swap(i, j);
  EXPECT_TRUE(i >= 0 && i < matrix.rows && j >= 0 && j < matrix.columns);
  return memory.at(static_cast<std::size_t>(i + j * matrix.leading_dimension));
}

/// Executes the plan in double as a column-major library would. left, right and result are the memory from the
/// operands' first elements on.
void execute(const GemmPlan& plan, const std::vector<double>& left, const std::vector<double>& right,
             std::vector<double>& result, std::vector<double>& vector) {
  for (std::int64_t column = 0; plan.fused == FusedEpilogue::bias_gradient && column < plan.n; ++column) {
    double& sum = vector.at(static_cast<std::size_t>(column)) = 0;
    for (std::int64_t k = 0; k < plan.k; ++k) sum += element(right, plan.right, k, column);
  }
  for (std::int64_t column = 0; column < plan.n; ++column) {
    for (std::int64_t row = 0; row < plan.m; ++row) {
      double sum = 0;
      for (std::int64_t k = 0; k < plan.k; ++k)
        sum += element(left, plan.left, row, k) * element(right, plan.right, k, column);
      double& stored = result.at(static_cast<std::size_t>(row + column * plan.result.leading_dimension));
      if (plan.accumulate) sum += stored;
      if (plan.fused == FusedEpilogue::bias || plan.fused == FusedEpilogue::relu_bias)
        sum += vector.at(static_cast<std::size_t>(row));
      if (plan.fused == FusedEpilogue::relu || plan.fused == FusedEpilogue::relu_bias) sum = std::max(sum, 0.0);
      stored = sum;
    }
  }
}

/// A [rows, columns] view into a wider matrix, and its memory from the view's first element to the matrix's end.
struct View {
  Tensor tensor;
  std::vector<double> memory;
  View(std::int64_t rows, std::int64_t columns, std::int64_t before, std::int64_t behind, const char* name,
       DType dtype) {
    const std::int64_t width = before + columns + behind;
    const Tensor whole = tensor_of(normal_values(rows * width, name), {rows, width}, dtype);
    memory = values_of(whole);
    memory.erase(memory.begin(), memory.begin() + before);
    tensor = whole.narrow(1, before, columns);
  }
};

TEST(GemmPlan, DescribesProductInColumnMajorOrder) {
  const RandomKey key{3, 0, random_stream("gemm_plan")};
  std::uint64_t draw = 0;
  const auto choose = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random_uniform(key, draw++) * static_cast<float>(most));
  };
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t rows = 1 + choose(7), columns = 1 + choose(7), inner = 1 + choose(7);
    const bool transpose_a = choose(2), transpose_b = choose(2), accumulate = choose(2),
               biased = !accumulate && choose(2), rectified = !accumulate && choose(2);
    const View a(transpose_a ? inner : rows, transpose_a ? rows : inner, choose(3), choose(3), "a", DType::float32);
    const View b(transpose_b ? columns : inner, transpose_b ? inner : columns, choose(3), choose(3), "b",
                 DType::float32);
    const View c(rows, columns, choose(3), choose(3), "c", DType::float32);
    const Tensor bias = tensor_of(normal_values(columns, "bias"), {columns}, DType::float32);
    const GemmPlan plan =
        plan_gemm(a.tensor, transpose_a, b.tensor, transpose_b, c.tensor, accumulate,
                  {biased ? &bias : nullptr, rectified ? GemmActivation::relu : GemmActivation::none});
    EXPECT_FALSE(plan.separate_epilogue || plan.through_scratch);
    EXPECT_GE(plan.left.leading_dimension, plan.left.rows);
    EXPECT_GE(plan.right.leading_dimension, plan.right.rows);
    std::vector<double> result = c.memory;
    std::vector<double> added = values_of(bias);
    execute(plan, b.memory, a.memory, result, added);
    std::vector<double> expected = c.memory;
    const auto product =
        reference::product(values_of(a.tensor), transpose_a, values_of(b.tensor), transpose_b, rows, columns, inner);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        double& element = expected[static_cast<std::size_t>(i * c.tensor.strides()[0] + j)];
        double value = product.value[static_cast<std::size_t>(i * columns + j)] + (accumulate ? element : 0);
        if (biased) value += values_of(bias)[static_cast<std::size_t>(j)];
        element = rectified ? std::max(value, 0.0) : value;
      }
    }
    ASSERT_EQ(result, expected) << text_of({DType::float32, DType::float32}, {rows, columns, inner}, transpose_a,
                                           transpose_b);
  }
}

TEST(GemmPlan, BiasGradientIsTheSumOfTheRightOperand) {
  // As in a weight's gradient: d_y [rows, outer] transposed by x [rows, inner].
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{5, 3, 7}, Sizes{2, 6, 4}}) {
    const View d_y(sizes.inner, sizes.rows, 2, 1, "d_y", DType::float32),
        x(sizes.inner, sizes.columns, 0, 3, "x", DType::float32);
    const View c(sizes.rows, sizes.columns, 0, 0, "c", DType::float32);
    GemmEpilogue epilogue;
    epilogue.bias_gradient = {Tensor::zeros({sizes.rows}, DType::float32), GradientMode::overwrite};
    const GemmPlan plan = plan_gemm(d_y.tensor, true, x.tensor, false, c.tensor, false, epilogue);
    ASSERT_EQ(plan.fused, FusedEpilogue::bias_gradient);
    std::vector<double> result = c.memory, sums(static_cast<std::size_t>(sizes.rows));
    execute(plan, x.memory, d_y.memory, result, sums);
    const std::vector<double> ones(static_cast<std::size_t>(sizes.inner), 1.0);
    EXPECT_EQ(sums, reference::product(values_of(d_y.tensor), true, ones, false, sizes.rows, 1, sizes.inner).value);
  }
}

TEST(GemmPlan, FusesGeluAndGradientsWithinDocumentedLimits) {
  using enum DType;
  const Tensor a = Tensor::zeros({4, 8}, bfloat16), b = Tensor::zeros({8, 16}, bfloat16),
               c = Tensor::zeros({4, 16}, bfloat16), c32 = Tensor::zeros({4, 16}, float32),
               bias = Tensor::zeros({16}, bfloat16), bias32 = Tensor::zeros({16}, float32);
  const Tensor whole = Tensor::zeros({4, 64}, bfloat16);
  const auto plan = [&](GemmActivation activation, const Tensor* with_bias, const Tensor* auxiliary, bool gradient,
                        const Tensor& into, ops::Fusion fusion = ops::Fusion::all) {
    GemmEpilogue epilogue;
    epilogue.bias = with_bias;
    epilogue.activation = activation;
    epilogue.auxiliary = auxiliary;
    epilogue.activation_gradient = gradient;
    return plan_gemm(a, false, b, false, into, false, epilogue, fusion);
  };
  const auto in_steps = [](const GemmPlan& p) {
    return p.in_steps && p.fused == FusedEpilogue::none && !p.separate_epilogue;
  };
  const Tensor fits = whole.narrow(1, 8, 16), off = whole.narrow(1, 4, 16),
               odd = Tensor::zeros({4, 20}, bfloat16).narrow(1, 0, 16);
  EXPECT_EQ(plan(GemmActivation::gelu_tanh, &bias, &fits, false, c).fused, FusedEpilogue::gelu_auxiliary_bias);
  EXPECT_EQ(plan(GemmActivation::gelu_tanh, &bias, &fits, false, c).auxiliary_leading_dimension, 64);
  EXPECT_EQ(plan(GemmActivation::gelu_tanh, nullptr, &fits, false, c).fused, FusedEpilogue::gelu_auxiliary);
  EXPECT_EQ(plan(GemmActivation::gelu_tanh, nullptr, &fits, true, c).fused, FusedEpilogue::gelu_gradient);
  EXPECT_TRUE(in_steps(plan(GemmActivation::gelu_tanh, &bias, &off, false, c))) << "8 bytes off";
  EXPECT_TRUE(in_steps(plan(GemmActivation::gelu_tanh, nullptr, &odd, true, c))) << "rows of 20";
  EXPECT_TRUE(in_steps(plan(GemmActivation::gelu_tanh, &bias32, &fits, false, c))) << "a wide bias";
  EXPECT_TRUE(in_steps(plan(GemmActivation::gelu_tanh, nullptr, &c32, false, Tensor::zeros({4, 16}, float32))))
      << "float32";
  EXPECT_TRUE(in_steps(plan(GemmActivation::gelu, &bias, &fits, false, c))) << "the exact GELU";
  EXPECT_TRUE(in_steps(plan(GemmActivation::relu, nullptr, &fits, true, c)))
      << "ReLU's auxiliary would be a mask of bits";
  EXPECT_TRUE(in_steps(plan(GemmActivation::gelu_tanh, &bias, &fits, false, c, ops::Fusion::bias_and_relu)));
  const GemmPlan plain = plan(GemmActivation::gelu_tanh, &bias, nullptr, false, c, ops::Fusion::bias_and_relu);
  EXPECT_TRUE(plain.separate_epilogue && plain.through_scratch && !plain.in_steps);

  const auto sums = [&](DType operands, DType into, const Tensor& target) {
    GemmEpilogue epilogue;
    epilogue.bias_gradient = {target, GradientMode::accumulate};
    return plan_gemm(Tensor::zeros({9, 16}, operands), true, Tensor::zeros({9, 3}, operands), false,
                     Tensor::zeros({16, 3}, into), true, epilogue);
  };
  EXPECT_EQ(sums(bfloat16, float32, bias32).fused, FusedEpilogue::bias_gradient);
  EXPECT_EQ(sums(float32, float32, bias32).fused, FusedEpilogue::bias_gradient);
  EXPECT_TRUE(sums(float32, float32, bias32).accumulate);
  EXPECT_TRUE(in_steps(sums(bfloat16, bfloat16, bias32))) << "not c's dtype";
  EXPECT_TRUE(in_steps(sums(float64, float64, Tensor::zeros({16}, float64))));
}

TEST(GemmPlan, FusesOnlyMatchingDefinitions) {
  struct Case {
    DType inputs, output, bias;
    bool biased;
    GemmActivation activation;
    FusedEpilogue fused;
    bool separate, scratch;
  };
  using enum DType;
  const Case cases[] = {
      {float32, float32, float32, false, GemmActivation::none, FusedEpilogue::none, false, false},
      {float32, float32, float32, true, GemmActivation::none, FusedEpilogue::bias, false, false},
      {bfloat16, bfloat16, bfloat16, true, GemmActivation::none, FusedEpilogue::bias, false, false},
      {bfloat16, float32, float32, true, GemmActivation::relu, FusedEpilogue::relu_bias, false, false},
      {bfloat16, bfloat16, bfloat16, false, GemmActivation::relu, FusedEpilogue::relu, false, false},
      {bfloat16, bfloat16, float32, true, GemmActivation::none, FusedEpilogue::none, true, true},
      {float32, float32, float32, true, GemmActivation::gelu, FusedEpilogue::none, true, false},
      {float32, float32, float32, false, GemmActivation::gelu_tanh, FusedEpilogue::none, true, false},
      {bfloat16, bfloat16, bfloat16, true, GemmActivation::gelu_tanh, FusedEpilogue::gelu_bias, false, false},
      {bfloat16, bfloat16, bfloat16, false, GemmActivation::gelu_tanh, FusedEpilogue::gelu, false, false},
      {bfloat16, bfloat16, float32, true, GemmActivation::gelu_tanh, FusedEpilogue::none, true, true},
      {bfloat16, bfloat16, bfloat16, true, GemmActivation::gelu, FusedEpilogue::none, true, true},
      {bfloat16, float32, float32, true, GemmActivation::gelu_tanh, FusedEpilogue::none, true, false},
      {bfloat16, float32, float32, true, GemmActivation::silu, FusedEpilogue::none, true, false},
      {float64, float64, float64, true, GemmActivation::none, FusedEpilogue::none, true, false},
      {float64, float64, float64, false, GemmActivation::relu, FusedEpilogue::none, true, false},
  };
  for (const Case& c : cases) {
    const Tensor a = Tensor::zeros({3, 4}, c.inputs), b = Tensor::zeros({4, 5}, c.inputs),
                 bias = Tensor::zeros({5}, c.bias);
    const Tensor out = Tensor::zeros({3, 9}, c.output).narrow(1, 2, 5);
    const GemmPlan plan = plan_gemm(a, false, b, false, out, false, {c.biased ? &bias : nullptr, c.activation});
    const int number = static_cast<int>(&c - cases);
    EXPECT_EQ(plan.fused, c.fused) << number;
    EXPECT_EQ(plan.separate_epilogue, c.separate) << number;
    EXPECT_EQ(plan.through_scratch, c.scratch) << number;
    EXPECT_EQ(plan.result.leading_dimension, c.scratch ? 5 : 9) << number;
    EXPECT_EQ(plan.result_dtype, c.scratch ? float32 : c.output) << number;
    EXPECT_EQ(plan.operand_dtype, c.inputs) << number;
  }
}

TEST(GemmPlan, SingleRowHasItsWidthAsStride) {
  // One row whose stride in its matrix is less than its own length. The stride is meaningless, but libraries check it.
  const Tensor a = Tensor::zeros({4, 1}, DType::float32).narrow(0, 2, 1), b = Tensor::zeros({1, 4}, DType::float32);
  const Tensor c = Tensor::zeros({1, 4}, DType::float32);
  const GemmPlan plan = plan_gemm(a, false, b, false, c, false, {});
  EXPECT_EQ(plan.left.leading_dimension, 4);
  EXPECT_EQ(plan.right.leading_dimension, 1);
  EXPECT_EQ(plan.result.leading_dimension, 4);
}

}  // namespace
}  // namespace furlong
