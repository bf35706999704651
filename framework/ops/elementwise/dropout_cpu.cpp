#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/elementwise/dropout_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>

#include "framework/core/tensor.h"
#include "framework/ops/elementwise/dropout_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/random-inl.h"
#include "framework/simd/spans.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
constexpr std::int64_t words_at_once = 256;

/// target (+)= scale * source where the element's word reaches the threshold, else 0. words[i] belongs to source[i].
template <class T>
void masked_span(const T* source, T* target, const std::uint32_t* words, std::int64_t size, bool accumulate,
                 std::uint32_t threshold, double scale) {
  using Compute = compute_t<T>;
  if constexpr (sizeof(Compute) == 4) {
    const typename Lanes<T>::D d;
    const hn::RebindToUnsigned<decltype(d)> du;
    const auto factor = hn::Set(d, static_cast<Compute>(scale));
    const auto bound = hn::Set(du, threshold);
    for_lanes<T>(size, [&](std::int64_t i, std::int64_t n) {
      const auto dropped = hn::RebindMask(d, hn::Lt(hn::LoadU(du, words + i), bound));
      auto value = hn::IfThenZeroElse(dropped, hn::Mul(load_n(source + i, n), factor));
      if (accumulate) value = hn::Add(value, load_n(target + i, n));
      store_n(value, target + i, n);
    });
  } else {
    for (std::int64_t i = 0; i < size; ++i)
      target[i] = (words[i] < threshold ? 0.0 : source[i] * scale) + (accumulate ? target[i] : 0.0);
  }
}

/// The same for any length; generates the words on the fly. `index` is that of the first element.
template <class T>
void dropout_span(const T* source, T* target, std::int64_t size, bool accumulate, std::uint32_t threshold, double scale,
                  const RandomKey& key, std::uint64_t index) {
  const std::int64_t step = random_lanes();
  alignas(64)
      std::uint32_t words[words_at_once + 4 * 64];  // a run may start inside a block, and the last call may overshoot
  for (std::int64_t done = 0; done < size;) {
    const std::int64_t n = std::min(words_at_once, size - done), skipped = static_cast<std::int64_t>(index % 4);
    const std::uint64_t first_block = index / 4;
    const std::int64_t blocks = (skipped + n + 3) / 4;
    for (std::int64_t block = 0; block < blocks; block += step) {
      random_words(key, first_block + static_cast<std::uint64_t>(block), words + 4 * block);
    }
    masked_span(source + done, target + done, words + skipped, n, accumulate, threshold, scale);
    done += n;
    index += static_cast<std::uint64_t>(n);
  }
}

void Dropout(const Tensor& source, const Tensor& target, bool accumulate, std::uint32_t threshold, double scale,
             const RandomKey& key, std::uint64_t first_index) {
  with_float_type(source.dtype(), "dropout", [&]<class T>(std::type_identity<T>) {
    simd::parallel_spans<2>({&source, &target},
                            [&](std::int64_t first, std::int64_t n, const std::array<std::int64_t, 2>& at) {
                              dropout_span(source.data<T>() + at[0], target.data<T>() + at[1], n, accumulate, threshold,
                                           scale, key, first_index + static_cast<std::uint64_t>(first));
                            });
  });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(Dropout);
void dropout_cpu(const Tensor& source, const Tensor& target, bool accumulate, std::uint32_t threshold, double scale,
                 const RandomKey& key, std::uint64_t first_index, const Tensor& device_step) {
  RandomKey now = key;
  if (device_step.defined())
    now.step = static_cast<std::uint32_t>(static_cast<std::int64_t>(device_step.data<double>()[0]));
  HWY_DYNAMIC_DISPATCH(Dropout)(source, target, accumulate, threshold, scale, now, first_index);
}
}  // namespace furlong::ops
#endif
