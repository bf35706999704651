// Matrix products on CUDA, through cuBLASLt.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/cuda/engine/cublaslt.h"
#include "framework/cuda/engine/queue.h"
#include "framework/primitives/gemm_kernels.h"
#include "framework/primitives/gemm_library.h"

namespace furlong::ops {
namespace {

using cublaslt::check;
using cublaslt::table;

constexpr std::int64_t workspace_bytes = std::int64_t{32} << 20;  // as cuBLAS uses on compute capability 9.0

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::float64 ? CUDA_R_64F : dtype == DType::bfloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

cublasLtEpilogue_t epilogue_of(FusedEpilogue fused) {
  switch (fused) {
    case FusedEpilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case FusedEpilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case FusedEpilogue::relu:
      return CUBLASLT_EPILOGUE_RELU;
    case FusedEpilogue::relu_bias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
    case FusedEpilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU;
    case FusedEpilogue::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case FusedEpilogue::gelu_auxiliary:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case FusedEpilogue::gelu_auxiliary_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case FusedEpilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case FusedEpilogue::bias_gradient:
      return CUBLASLT_EPILOGUE_BGRADB;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

/// Returns the largest power of two, at most 256, that divides an address. Algorithms differ in the alignment they
/// need.
std::uint32_t alignment_of(const void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address) | 256;
  return static_cast<std::uint32_t>(value & (~value + 1));
}

/// Everything that the choice of an algorithm depends on.
struct Key {
  GemmPlan plan;
  std::uint32_t left_alignment, right_alignment, result_alignment, vector_alignment, auxiliary_alignment;
  bool tf32;
  int device;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t hash = 0;
    const GemmPlan& plan = key.plan;
    for (std::int64_t value :
         {plan.m, plan.n, plan.k, plan.left.leading_dimension, plan.right.leading_dimension,
          plan.result.leading_dimension, plan.auxiliary_leading_dimension,
          static_cast<std::int64_t>(plan.operand_dtype) + 8 * static_cast<std::int64_t>(plan.result_dtype) +
              64 * static_cast<std::int64_t>(plan.fused) + 1024 * plan.left.transposed + 2048 * plan.right.transposed +
              4096 * plan.accumulate + 8192 * key.tf32 + 16384 * key.device,
          static_cast<std::int64_t>(key.left_alignment) + (std::int64_t{key.right_alignment} << 10) +
              (std::int64_t{key.result_alignment} << 20) + (std::int64_t{key.vector_alignment} << 30) +
              (std::int64_t{key.auxiliary_alignment} << 40)}) {
      hash = (hash ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

/// cuBLASLt's objects for one product, and the algorithm that its heuristics selected.
struct Product {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Product() = default;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    if (preference != nullptr) table().preference_destroy(preference);
    for (cublasLtMatrixLayout_t layout : {left, right, result}) {
      if (layout != nullptr) table().layout_destroy(layout);
    }
    if (description != nullptr) table().description_destroy(description);
  }

  template <class Value>
  void describe(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(table().description_set(description, attribute, &value, sizeof(value)), "describing a product");
  }
  template <class Value>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    check(table().preference_set(preference, attribute, &value, sizeof(value)), "selecting an algorithm");
  }
};

cublasLtMatrixLayout_t layout_of(const ColumnMajorMatrix& matrix, DType dtype) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(table().layout_create(&layout, type_of(dtype), static_cast<std::uint64_t>(matrix.rows),
                              static_cast<std::uint64_t>(matrix.columns), matrix.leading_dimension),
        "describing a matrix");
  return layout;
}

/// Returns whether the status means that the library has no implementation, as opposed to a failure.
bool is_unsupported(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/// The addresses in a description besides the matrices; null if the epilogue has none.
struct Addresses {
  const void *vector, *auxiliary;
};

/// Handles, workspaces and known products of all devices, including products for which cuBLASLt has no algorithm.
/// Guarded by its mutex, because addresses of biases and auxiliaries are part of a shared description.
class Products : public GemmLibrary {
 public:
  bool run(const Stream& stream, const GemmPlan& plan, const GemmOperands& operands) override {
    const auto& [a, b, result, vector, auxiliary] = operands;
    void* const queue = gpu_queue(stream);  // also selects the device
    const std::lock_guard lock(mutex_);
    const Addresses addresses{vector ? vector->address() : nullptr, auxiliary ? auxiliary->address() : nullptr};
    const Key key{plan,
                  alignment_of(b.address()),
                  alignment_of(a.address()),
                  alignment_of(result.address()),
                  vector ? alignment_of(addresses.vector) : 0,
                  auxiliary ? alignment_of(addresses.auxiliary) : 0,
                  stream.products.tf32 && plan.operand_dtype == DType::float32,
                  stream.device.index};
    const std::shared_ptr<Product> product = find(key, addresses);
    if (!product) return false;
    point(*product, addresses);
    const Tensor& workspace = workspace_of(stream.device, queue);
    const float one = 1, beta = plan.accumulate ? 1 : 0;
    const double one_double = 1, beta_double = beta;
    const bool in_double = plan.operand_dtype == DType::float64;
    const cublasStatus_t status = table().multiply(
        handle_of(stream.device.index), product->description,
        in_double ? static_cast<const void*>(&one_double) : static_cast<const void*>(&one), b.address(), product->left,
        a.address(), product->right,
        in_double ? static_cast<const void*>(&beta_double) : static_cast<const void*>(&beta), result.address(),
        product->result, result.address(), product->result, &product->algorithm, workspace.address(),
        static_cast<std::size_t>(workspace_bytes), static_cast<cudaStream_t>(queue));
    // The heuristics can be wrong. An invalid value of a product without an epilogue would be Furlong's own fault.
    const bool fused = may_be_missing(plan.fused);
    if (is_unsupported(status) && (fused || status != CUBLAS_STATUS_INVALID_VALUE)) {
      log_warn(
          "cuBLASLt rejected [{} x {}] by [{} x {}] in {}, for which it had reported an algorithm (status {}); using "
          "{}",
          plan.n, plan.k, plan.k, plan.m, name_of(plan.operand_dtype), static_cast<int>(status),
          fused ? "separate steps" : "a slower built-in kernel");
      products_[key] = nullptr;
      return false;
    }
    check(status, "a product");
    return true;
  }

 private:
  cublasLtHandle_t handle_of(int device) {
    cublasLtHandle_t& handle = handles_[device];
    if (handle == nullptr) check(table().create(&handle), "starting");
    return handle;
  }

  /// One workspace per queue, whose products run in order. Never freed, because a captured graph keeps its address.
  const Tensor& workspace_of(const Device& device, void* queue) {
    Tensor& workspace = workspaces_[{device.index, queue}];
    if (!workspace.defined()) workspace = Tensor::empty({workspace_bytes}, DType::uint8, device);
    return workspace;
  }

  static void point(Product& product, const Addresses& addresses) {
    if (addresses.vector != nullptr) product.describe(CUBLASLT_MATMUL_DESC_BIAS_POINTER, addresses.vector);
    if (addresses.auxiliary != nullptr)
      product.describe(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, addresses.auxiliary);
  }

  std::shared_ptr<Product> find(const Key& key, const Addresses& addresses) {
    const auto known = products_.find(key);
    if (known != products_.end()) return known->second;
    if (products_.size() > 4096) products_.clear();  // bounds memory if evaluation uses many lengths
    auto product = choose(key, addresses);
    products_.emplace(key, product);
    return product;
  }

  std::shared_ptr<Product> choose(const Key& key, const Addresses& addresses) {
    const GemmPlan& plan = key.plan;
    auto product = std::make_shared<Product>();
    const bool in_double = plan.operand_dtype == DType::float64;
    const cublasComputeType_t compute = in_double  ? CUBLAS_COMPUTE_64F
                                        : key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                   : CUBLAS_COMPUTE_32F;
    check(table().description_create(&product->description, compute, in_double ? CUDA_R_64F : CUDA_R_32F),
          "describing a product");
    product->describe(CUBLASLT_MATMUL_DESC_TRANSA, plan.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    product->describe(CUBLASLT_MATMUL_DESC_TRANSB, plan.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (plan.fused != FusedEpilogue::none) product->describe(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(plan.fused));
    if (addresses.vector != nullptr) {
      product->describe(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(plan.result_dtype)));
    }
    if (addresses.auxiliary != nullptr) {  // its type is the result's by default
      product->describe(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, plan.auxiliary_leading_dimension);
    }
    point(*product, addresses);  // the heuristics depend on alignments
    product->left = layout_of(plan.left, plan.operand_dtype);
    product->right = layout_of(plan.right, plan.operand_dtype);
    product->result = layout_of(plan.result, plan.result_dtype);
    check(table().preference_create(&product->preference), "selecting an algorithm");
    product->prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    // Partial sums of a long sum are added in float32, never in a bfloat16 result.
    std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (plan.result_dtype != DType::bfloat16) reductions |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    product->prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    product->prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.left_alignment);
    product->prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.right_alignment);
    product->prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.result_alignment);
    product->prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.result_alignment);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status =
        table().find_algorithm(handle_of(key.device), product->description, product->left, product->right,
                               product->result, product->result, product->preference, 1, &found, &count);
    if (is_unsupported(status) ||
        (status == CUBLAS_STATUS_SUCCESS && (count == 0 || found.state != CUBLAS_STATUS_SUCCESS))) {
      if (may_be_missing(plan.fused)) {
        log_debug(
            "cuBLASLt has no algorithm for epilogue {} of [{} x {}] by [{} x {}] in {} (status {}); using separate "
            "steps",
            static_cast<int>(epilogue_of(plan.fused)), plan.n, plan.k, plan.k, plan.m, name_of(plan.operand_dtype),
            static_cast<int>(status));
        return nullptr;
      }
      log_warn("cuBLASLt has no algorithm for [{} x {}] by [{} x {}] in {} (status {}); using a slower built-in kernel",
               plan.n, plan.k, plan.k, plan.m, name_of(plan.operand_dtype), static_cast<int>(status));
      return nullptr;
    }
    check(status, "selecting an algorithm");
    product->algorithm = found.algo;
    return product;
  }

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<std::pair<int, void*>, Tensor> workspaces_;
  std::unordered_map<Key, std::shared_ptr<Product>, KeyHash> products_;
};

void gemm_cuda(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
               const Tensor& c, bool accumulate, const GemmEpilogue& epilogue) {
  // Never destroyed, because the driver may be unloaded first at program exit.
  static auto* const products = new Products;
  gemm_through(*products, stream, a, transpose_a, b, transpose_b, c, accumulate, epilogue);
}

[[maybe_unused]] const bool registered = (gemm_gpu.set(DeviceType::cuda, &gemm_cuda), true);

}  // namespace
}  // namespace furlong::ops
