// Matrix products on the simulator. The CPU kernel replaces cuBLASLt, because the simulator's memory is host memory.
#include "framework/primitives/gemm_simulated.h"

#include "framework/primitives/activation_kernels.h"
#include "framework/primitives/gemm_kernels.h"
#include "framework/primitives/gemm_library.h"
#include "framework/simulator/simulator_record.h"

namespace furlong::ops {
namespace {

using Activation = GemmEpilogue::Activation;

/// A plan and its operands by value, because recorded work must own its operands.
struct PlannedProduct {
  Stream stream;
  GemmPlan plan;
  Tensor a, b, result, vector, auxiliary;

  void multiply(const Tensor& into, const Tensor* bias, Activation activation) const {
    GemmEpilogue epilogue;
    epilogue.bias = bias;
    epilogue.activation = activation;
    gemm_cpu(stream, a, plan.right.transposed, b, plan.left.transposed, into, plan.accumulate, epilogue);
  }

  void operator()() const {
    const Tensor* const bias = reads_bias(plan.fused) ? &vector : nullptr;
    switch (plan.fused) {
      case FusedEpilogue::none:
      case FusedEpilogue::bias:
        return multiply(result, bias, Activation::none);
      case FusedEpilogue::relu:
      case FusedEpilogue::relu_bias:
        return multiply(result, bias, Activation::relu);
      case FusedEpilogue::gelu:
      case FusedEpilogue::gelu_bias:
        return multiply(result, bias, Activation::gelu_tanh);
      case FusedEpilogue::gelu_auxiliary:
      case FusedEpilogue::gelu_auxiliary_bias:
        multiply(auxiliary, bias, Activation::none);
        return activation_cpu(auxiliary, result, ActivationKind::gelu_tanh);
      case FusedEpilogue::gelu_gradient:
        multiply(result, nullptr, Activation::none);
        return activation_backward_cpu(auxiliary, result, result, false, ActivationKind::gelu_tanh);
      case FusedEpilogue::bias_gradient:
        multiply(result, nullptr, Activation::none);
        return column_sum_cpu(a, vector, false);
    }
  }
};

/// Checks what cuBLASLt's documentation requires of a plan and its operands.
void check_as_documented(const GemmPlan& plan, const GemmOperands& operands) {
  const bool writes_bias = plan.fused == FusedEpilogue::bias_gradient,
             has_vector = reads_bias(plan.fused) || writes_bias;
  require((operands.vector != nullptr) == has_vector && (operands.auxiliary != nullptr) == has_auxiliary(plan.fused),
          "simulated GEMM: epilogue {} has a missing or an unexpected operand", static_cast<int>(plan.fused));
  if (has_vector) {
    require(operands.vector->dtype() == plan.result_dtype && operands.vector->is_contiguous() &&
                operands.vector->elements() == (writes_bias ? plan.n : plan.m),
            "simulated GEMM: invalid bias {} {}", name_of(operands.vector->dtype()), operands.vector->shape().text());
  }
  if (has_auxiliary(plan.fused)) {
    const Tensor& auxiliary = *operands.auxiliary;
    require(auxiliary.dtype() == plan.result_dtype && plan.auxiliary_leading_dimension % 8 == 0 &&
                plan.auxiliary_leading_dimension >= plan.m &&
                reinterpret_cast<std::uintptr_t>(auxiliary.address()) % 16 == 0,
            "simulated GEMM: invalid auxiliary {} with leading dimension {}", auxiliary.shape().text(),
            plan.auxiliary_leading_dimension);
    require(auxiliary.address() != operands.result.address() && !plan.accumulate,
            "simulated GEMM: an auxiliary requires overwrite mode and its own memory");
  }
}

class SimulatedLibrary : public GemmLibrary {
 public:
  bool run(const Stream& stream, const GemmPlan& plan, const GemmOperands& operands) override {
    check_as_documented(plan, operands);
    SimulatedGemmLibrary& library = simulated_gemm_library();
    if (may_be_missing(plan.fused) && !library.has_all) {
      ++library.refused;
      return false;
    }
    ++library.products.at(static_cast<std::size_t>(plan.fused));
    const PlannedProduct product{stream,
                                 plan,
                                 operands.a,
                                 operands.b,
                                 operands.result,
                                 operands.vector ? *operands.vector : Tensor{},
                                 operands.auxiliary ? *operands.auxiliary : Tensor{}};
    if (!simulator::record(product)) product();
    return true;
  }
};

void gemm_simulated(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                    const Tensor& c, bool accumulate, const GemmEpilogue& epilogue) {
  SimulatedLibrary library;
  gemm_through(library, stream, a, transpose_a, b, transpose_b, c, accumulate, epilogue);
}

[[maybe_unused]] const bool registered = (gemm_gpu.set(DeviceType::simulated, &gemm_simulated), true);

}  // namespace

}  // namespace furlong::ops
