#include "framework/core/tensor.h"

#include <cstring>

#include "framework/core/arena.h"
#include "framework/core/gpu_engine.h"

namespace furlong {
namespace {

/// Copies between any two devices with memory; if they differ, one must be the host.
void copy_bytes(void* target, const Device& target_device, const void* source, const Device& source_device,
                std::int64_t bytes) {
  if (bytes == 0 || target_device.is_shape_only() || source_device.is_shape_only()) return;
  if (target_device.is_cpu() && source_device.is_cpu()) {
    std::memcpy(target, source, static_cast<std::size_t>(bytes));
    return;
  }
  const Device& gpu = target_device.is_gpu() ? target_device : source_device;
  require(!target_device.is_gpu() || !source_device.is_gpu() || target_device == source_device,
          "cannot copy from {} to {}: one of two different devices must be the host", source_device.text(),
          target_device.text());
  require_gpu_engine(gpu.type).copy(Stream{gpu}, target, source, bytes);
}

/// Returns the number of elements from the first to the last of a view, inclusive.
std::int64_t spanned_elements(const Tensor& tensor) {
  std::int64_t last = 0;
  for (int i = 0; i < tensor.shape().rank(); ++i) last += (tensor.shape()[i] - 1) * tensor.strides()[i];
  return tensor.elements() == 0 ? 0 : last + 1;
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, const Device& device) {
  Tensor tensor;
  tensor.shape_ = shape;
  tensor.strides_ = contiguous_strides(shape);
  tensor.dtype_ = dtype;
  tensor.device_ = device;
  std::int64_t bytes = 0;
  require(!__builtin_mul_overflow(shape.elements(), size_of(dtype), &bytes),
          "a tensor of {} {} has more bytes than 64 bits can count", name_of(dtype), shape.text());
  Arena& home = arena(device);
  tensor.storage_ = std::shared_ptr<void>(home.allocate(bytes), [&home](void* pointer) { home.release(pointer); });
  return tensor;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, const Device& device) {
  Tensor tensor = empty(shape, dtype, device);
  tensor.fill_zero();
  return tensor;
}

template <class T>
Tensor Tensor::from(const std::vector<T>& values, const Shape& shape, const Device& device) {
  require(static_cast<std::int64_t>(values.size()) == shape.elements(), "got {} values for a tensor of shape {}",
          values.size(), shape.text());
  Tensor tensor = empty(shape, dtype_of<T>::value, device);
  copy_bytes(tensor.address(), device, values.data(), Device{}, tensor.bytes());
  return tensor;
}

bool Tensor::is_contiguous() const {
  std::int64_t step = 1;
  for (int i = shape_.rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != step) return false;
    step *= shape_[i];
  }
  return true;
}

Tensor Tensor::reshape(const Shape& shape) const {
  require(is_contiguous() && shape.elements() == elements(), "cannot reshape {} to {}", shape_.text(), shape.text());
  Tensor view = *this;
  view.shape_ = shape;
  view.strides_ = contiguous_strides(shape);
  return view;
}

Tensor Tensor::narrow(int dimension, std::int64_t start, std::int64_t length) const {
  require(start >= 0 && length >= 0 && start + length <= shape_[dimension],
          "narrow: range [{}, {}) is outside dimension {} of {}", start, start + length, dimension, shape_.text());
  Tensor view = *this;
  view.offset_ += start * strides_[dimension];
  view.shape_[dimension] = length;
  return view;
}

Tensor Tensor::permute(std::initializer_list<int> order) const {
  require(static_cast<int>(order.size()) == shape_.rank(), "permute: got {} dimensions for shape {}", order.size(),
          shape_.text());
  Tensor view = *this;
  int position = 0, seen = 0;
  for (int dimension : order) {
    require(dimension >= 0 && dimension < shape_.rank() && !(seen >> dimension & 1),
            "permute: dimension {} is outside {} or given twice", dimension, shape_.text());
    seen |= 1 << dimension;
    view.shape_[position] = shape_[dimension];
    view.strides_[position++] = strides_[dimension];
  }
  return view;
}

Tensor Tensor::split_last(std::int64_t inner) const {
  require(shape_.rank() > 0 && inner > 0 && shape_[-1] % inner == 0, "cannot split the last dimension of {} by {}",
          shape_.text(), inner);
  Tensor view = *this;
  view.shape_[-1] /= inner;
  view.strides_[-1] *= inner;
  view.shape_.push_back(inner);
  view.strides_.push_back(strides_[-1]);
  return view;
}

Tensor Tensor::split_sequences(std::int64_t parts) const {
  require(shape_.rank() >= 2 && parts > 0 && shape_[1] % parts == 0 &&
              (shape_[0] == 1 || strides_[0] == shape_[1] * strides_[1]),
          "cannot split the sequences of {} into {} parts", shape_.text(), parts);
  Tensor view = *this;
  view.shape_[0] *= parts;
  view.shape_[1] /= parts;
  view.strides_[0] = view.shape_[1] * strides_[1];
  return view;
}

void Tensor::fill_zero() const {
  require(is_contiguous(), "fill_zero needs a contiguous tensor, not {}", shape_.text());
  if (device_.is_shape_only() || elements() == 0) return;
  if (device_.is_gpu()) {
    require_gpu_engine(device_.type).fill_zero(Stream{device_}, address(), bytes());
  } else {
    std::memset(address(), 0, static_cast<std::size_t>(bytes()));
  }
}

void Tensor::copy_from(const Tensor& source) const {
  require(shape_ == source.shape_ && dtype_ == source.dtype_ && is_contiguous() && source.is_contiguous(),
          "cannot copy {} {} to {} {}", name_of(source.dtype_), source.shape_.text(), name_of(dtype_), shape_.text());
  copy_bytes(address(), device_, source.address(), source.device_, bytes());
}

Tensor Tensor::clone() const {
  Tensor copy = empty(shape_, dtype_, device_);
  copy.copy_from(*this);
  return copy;
}

Tensor Tensor::to(const Device& device) const {
  if (device == device_) return *this;
  const Tensor copy = empty(shape_, dtype_, device);
  copy.copy_from(*this);
  return copy;
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  require(!device_.is_shape_only(), "to_vector: a tensor on {} has no elements", device_.text());
  std::vector<T> values(static_cast<std::size_t>(elements()));
  const T* source = data<T>();
  std::vector<T> fetched;
  if (device_.is_gpu()) {
    fetched.resize(static_cast<std::size_t>(spanned_elements(*this)));
    copy_bytes(fetched.data(), Device{}, source, device_, static_cast<std::int64_t>(fetched.size() * sizeof(T)));
    source = fetched.data();
  }
  Shape index = shape_;
  for (int i = 0; i < index.rank(); ++i) index[i] = 0;
  for (T& value : values) {
    std::int64_t offset = 0;
    for (int i = 0; i < index.rank(); ++i) offset += index[i] * strides_[i];
    value = source[offset];
    for (int i = index.rank() - 1; i >= 0 && ++index[i] == shape_[i]; --i) index[i] = 0;
  }
  return values;
}

#define FURLONG_INSTANTIATE(T)                                                         \
  template Tensor Tensor::from<T>(const std::vector<T>&, const Shape&, const Device&); \
  template std::vector<T> Tensor::to_vector<T>() const;
FURLONG_INSTANTIATE(float)
FURLONG_INSTANTIATE(double)
FURLONG_INSTANTIATE(bfloat16)
FURLONG_INSTANTIATE(std::int32_t)
FURLONG_INSTANTIATE(std::uint8_t)
#undef FURLONG_INSTANTIATE

}  // namespace furlong
