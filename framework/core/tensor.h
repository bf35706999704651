#pragma once
#include <memory>
#include <vector>

#include "framework/core/device.h"
#include "framework/core/dtype.h"
#include "framework/core/error.h"
#include "framework/core/shape.h"

namespace furlong {

/// A view of device memory: shape, strides (elements), dtype. Copies share the memory; the last one returns it to the
/// arena.
class Tensor {
 public:
  Tensor() = default;
  /// Contents undefined.
  static Tensor empty(const Shape& shape, DType dtype, const Device& device = {});
  static Tensor zeros(const Shape& shape, DType dtype, const Device& device = {});
  /// A copy of `values` on `device`. Throws ContractError when their number is not that of `shape`.
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, const Device& device = {});

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  std::int64_t extent(int dimension) const { return shape_[dimension]; }
  std::int64_t elements() const { return shape_.elements(); }
  std::int64_t bytes() const { return elements() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  const Device& device() const { return device_; }
  bool is_contiguous() const;
  /// Every row (last dimension) contiguous: what most row-wise ops need.
  bool has_contiguous_rows() const { return shape_.rank() == 0 || shape_[-1] <= 1 || strides_[-1] == 1; }
  /// True when no other Tensor shares the memory.
  bool is_unique() const { return storage_.use_count() == 1; }
  bool shares_memory_with(const Tensor& other) const { return storage_ && storage_ == other.storage_; }

  /// Device address of the first element; checked against the dtype. Dereference on the host only when the device is
  /// the CPU.
  template <class T>
  T* data() const {
    require(dtype_of<T>::value == dtype_, "a tensor of {} was read as {}", name_of(dtype_),
            name_of(dtype_of<T>::value));
    return static_cast<T*>(address());
  }
  void* address() const { return storage_ ? static_cast<char*>(storage_.get()) + offset_ * size_of(dtype_) : nullptr; }

  /// The same elements in another shape; needs a contiguous tensor.
  Tensor reshape(const Shape& shape) const;
  /// Elements [start, start + length) of one dimension.
  Tensor narrow(int dimension, std::int64_t start, std::int64_t length) const;
  /// Dimensions in the order given.
  Tensor permute(std::initializer_list<int> order) const;
  /// The last dimension split in two: [..., a*b] -> [..., a, b] (the second contiguous).
  Tensor split_last(std::int64_t inner) const;

  /// Sets every element to zero. Contiguous tensors only.
  void fill_zero() const;
  /// Copies from a tensor of the same shape and dtype, both contiguous, on this device or on the host (or to the host).
  void copy_from(const Tensor& source) const;
  Tensor clone() const;
  /// A copy on `device`; the tensor itself where it is there. Contiguous tensors only.
  Tensor to(const Device& device) const;
  /// Elements as a host vector, in row-major order whatever the strides; for tests, files and reports. Waits for the
  /// device.
  template <class T>
  std::vector<T> to_vector() const;

 private:
  std::shared_ptr<void> storage_;
  std::int64_t offset_ = 0;  // elements
  Shape shape_, strides_;
  DType dtype_ = DType::float32;
  Device device_;
};

}  // namespace furlong
