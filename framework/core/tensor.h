#pragma once
#include <memory>
#include <vector>

#include "framework/core/device.h"
#include "framework/core/dtype.h"
#include "framework/core/error.h"
#include "framework/core/shape.h"

namespace furlong {

/// A view of device memory with shape, strides (in elements) and dtype. Copying a Tensor copies the view: both share
/// the memory, and the last one returns it to the device's arena. A default-constructed Tensor is undefined: it has no
/// memory, and ops take it as an absent operand. Thread-safe to copy; concurrent access to elements is not
/// synchronized.
class Tensor {
 public:
  Tensor() = default;
  /// Returns a new contiguous tensor with uninitialized contents. Throws MachineError if the device's memory is
  /// exhausted.
  static Tensor empty(const Shape& shape, DType dtype, const Device& device = {});
  /// Returns a new contiguous tensor of zeros. Throws like empty().
  static Tensor zeros(const Shape& shape, DType dtype, const Device& device = {});
  /// Returns a copy of `values` on `device`. Throws ContractError if their number does not match `shape`.
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, const Device& device = {});

  /// Returns whether this tensor has memory.
  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  std::int64_t extent(int dimension) const { return shape_[dimension]; }
  std::int64_t elements() const { return shape_.elements(); }
  /// Returns elements() times the size of an element. A view's strides do not count.
  std::int64_t bytes() const { return elements() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  const Device& device() const { return device_; }
  bool is_contiguous() const;
  /// Whether every row (last dimension) is contiguous, as most row-wise ops require.
  bool has_contiguous_rows() const { return shape_.rank() == 0 || shape_[-1] <= 1 || strides_[-1] == 1; }
  /// Whether no other Tensor shares the memory.
  bool is_unique() const { return storage_.use_count() == 1; }
  /// Returns whether both tensors are views of one allocation, overlapping or not.
  bool shares_memory_with(const Tensor& other) const { return storage_ && storage_ == other.storage_; }

  /// Returns the device address of the first element. Throws ContractError if T is not the dtype. Dereference it on the
  /// host only if the device has host memory.
  template <class T>
  T* data() const {
    require(dtype_of<T>::value == dtype_, "a tensor of {} was read as {}", name_of(dtype_),
            name_of(dtype_of<T>::value));
    return static_cast<T*>(address());
  }
  /// Returns the device address of the first element; null if undefined.
  void* address() const { return storage_ ? static_cast<char*>(storage_.get()) + offset_ * size_of(dtype_) : nullptr; }

  /// Returns a view of the same elements in another shape. Throws ContractError if the tensor is not contiguous or the
  /// numbers of elements differ.
  Tensor reshape(const Shape& shape) const;
  /// Returns a view of elements [start, start + length) of one dimension. Throws ContractError if they exceed it.
  Tensor narrow(int dimension, std::int64_t start, std::int64_t length) const;
  /// Returns a view with the dimensions in the given order. Throws ContractError if `order` is not a permutation.
  Tensor permute(std::initializer_list<int> order) const;
  /// Returns a view with the last dimension split in two: [..., a*b] -> [..., a, b], with b = `inner`
  /// contiguous. Throws ContractError if `inner` does not divide it.
  Tensor split_last(std::int64_t inner) const;
  /// Returns a view with each sequence split into equal parts: [batch, n, ...] -> [batch * parts, n / parts, ...].
  /// Throws ContractError if parts does not divide n, or sequences do not follow one another at equal distances.
  Tensor split_sequences(std::int64_t parts) const;

  /// Sets every element to zero, on the device's main stream. Throws ContractError if the tensor is not contiguous.
  void fill_zero() const;
  /// Overwrites the elements with those of `source`: same shape and dtype, on this device or on the host. A host tensor
  /// may copy from any device. Copies to or from host memory are complete on return; copies within a GPU are ordered on
  /// its main stream. Throws ContractError if shapes or dtypes differ or a tensor is not contiguous.
  void copy_from(const Tensor& source) const;
  /// Returns a copy in its own memory, on the same device.
  Tensor clone() const;
  /// Returns a copy on `device`, or this tensor (not a copy) if it is already there. Contiguous tensors only.
  Tensor to(const Device& device) const;
  /// Returns the elements as a host vector in row-major order, for any strides. Blocks until the device's work is
  /// done. For tests, files and reports. Throws ContractError if T is not the dtype, or on the shape-only device.
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
