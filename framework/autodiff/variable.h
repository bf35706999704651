#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "framework/core/device.h"
#include "framework/core/tensor.h"
#include "framework/primitives/gradient_target.h"

namespace furlong {

/// The gradient of one recorded value during backward. Variables and nodes that refer to the same value share it.
struct GradientSlot {
  Shape shape;
  DType dtype = DType::float32;
  Device device;
  Tensor gradient;          // undefined until first requested
  bool written = false;     // holds a gradient, or a partial sum of gradients
  bool persistent = false;  // of a parameter or of leaf(): the memory stays after backward

  // A column range of another slot (ops::split_last). Its gradient is a view of the base's.
  std::shared_ptr<GradientSlot> base;
  std::int64_t part_start = 0;
  std::vector<std::weak_ptr<GradientSlot>> parts;

  // Parameters: number of recorded uses not yet consumed, and the callback for when the last one is consumed.
  int open_uses = 0;
  std::function<void()> on_final;

  /// Returns memory for a gradient of this slot, and whether to overwrite or accumulate.
  GradientTarget target();
  /// Returns the gradient in the shape `as`; undefined if none reached this slot.
  Tensor gathered(const Shape& as);
  /// Returns whether only this slot and its column ranges refer to the gradient's memory. Backward may then overwrite
  /// it.
  bool is_exclusive() const;
  /// Makes is_exclusive() true, by copying the gradient if its memory is shared. There must be a gradient.
  void make_exclusive();

 private:
  void settle_parts();
  bool lends_views() const;
  Tensor view_for_part(std::int64_t start, std::int64_t length);
};

/// Recomputes a value, bit for bit, from tensors that are saved for backward anyway. An op saves this function instead
/// of the value.
using Rematerialize = std::function<Tensor(const Stream&)>;

/// A value that the tape may have recorded. Cheap to copy. It shares ownership of the value's memory, so dropping it
/// frees the value unless a node saved it.
class Variable {
 public:
  Variable() = default;
  /// A constant: backward computes no gradient for it.
  explicit Variable(Tensor value) : value_(std::move(value)) {}
  /// A recorded value whose gradient goes to `slot`; a null slot makes a constant.
  Variable(Tensor value, std::shared_ptr<GradientSlot> slot) : value_(std::move(value)), slot_(std::move(slot)) {}
  /// Returns a leaf: backward stores its gradient, which gradient() returns. Shares the memory of `value`.
  static Variable leaf(const Tensor& value);

  /// Returns whether there is a value. An undefined Variable stands for an absent operand, such as no bias.
  bool defined() const { return value_.defined(); }
  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  std::int64_t extent(int dimension) const { return value_.extent(dimension); }
  DType dtype() const { return value_.dtype(); }
  /// Returns whether backward computes a gradient for this value: a leaf, a trained parameter, or a recorded result.
  bool requires_gradient() const { return slot_ != nullptr; }
  const std::shared_ptr<GradientSlot>& slot() const { return slot_; }
  /// Returns the gradient of a leaf after backward, a view and not a copy; undefined if backward added none.
  Tensor gradient() const { return slot_ ? slot_->gathered(value_.shape()) : Tensor{}; }
  /// Returns the same value in another shape, with the same gradient memory. The value must be contiguous. Records
  /// nothing.
  Variable reshape(const Shape& shape) const { return Variable(value_.reshape(shape), slot_); }

  /// Returns the function that recomputes the value; null if the value must be stored (Tape::recomputes_values()).
  const std::shared_ptr<const Rematerialize>& rematerialize() const { return rematerialize_; }
  /// Returns this variable with a function that recomputes its value.
  Variable with_rematerialize(Rematerialize rematerialize) const {
    Variable result = *this;
    result.rematerialize_ = std::make_shared<const Rematerialize>(std::move(rematerialize));
    return result;
  }

 private:
  Tensor value_;
  std::shared_ptr<GradientSlot> slot_;
  std::shared_ptr<const Rematerialize> rematerialize_;
};

}  // namespace furlong
