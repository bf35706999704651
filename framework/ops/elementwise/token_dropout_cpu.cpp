#include <algorithm>

#include "framework/core/parallel.h"
#include "framework/ops/elementwise/token_dropout_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/rows.h"

namespace furlong::ops {

void token_dropout_factors_cpu(const Tensor& tokens, const Tensor& keys, std::int32_t mask_token,
                               const Tensor& factors) {
  const std::int64_t batch = tokens.extent(0), n = tokens.extent(1);
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int32_t* row = tokens.data<std::int32_t>() + simd::row_offset(tokens, b);
    const std::int32_t* kept = keys.defined() ? keys.data<std::int32_t>() + b * n : nullptr;
    std::int64_t length = 0, masked = 0;
    for (std::int64_t t = 0; t < n; ++t) {
      if (kept && kept[t] == 0) continue;
      ++length;
      masked += row[t] == mask_token;
    }
    const double factor =
        masked == length ? 0
                         : unmasked_in_training * static_cast<double>(length) / static_cast<double>(length - masked);
    with_float_type(factors.dtype(), "token_dropout", [&]<class T>(std::type_identity<T>) {
      factors.data<T>()[b] = static_cast<T>(static_cast<compute_t<T>>(factor));
    });
  }
}

void token_dropout_cpu(const Tensor& in, const Tensor& tokens, std::int32_t mask_token, const Tensor& factors,
                       const Tensor& out, bool accumulate) {
  const std::int64_t n = in.extent(1), d = in.extent(2);
  with_float_type(in.dtype(), "token_dropout", [&]<class T>(std::type_identity<T>) {
    using Compute = compute_t<T>;
    parallel_ranges(in.shape().rows(), std::max<std::int64_t>(1, (1 << 14) / std::max<std::int64_t>(1, d)),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        const bool masked =
                            tokens.data<std::int32_t>()[simd::row_offset(tokens, row / n) + row % n] == mask_token;
                        const Compute factor = masked ? Compute{0} : factors.data<Compute>()[row / n];
                        const T* from = in.data<T>() + simd::row_offset(in, row);
                        T* to = out.data<T>() + simd::row_offset(out, row);
                        for (std::int64_t i = 0; i < d; ++i) {
                          const Compute value = masked ? Compute{0} : static_cast<Compute>(from[i]) * factor;
                          to[i] = static_cast<T>(accumulate ? static_cast<Compute>(to[i]) + value : value);
                        }
                      }
                    });
  });
}

}  // namespace furlong::ops
