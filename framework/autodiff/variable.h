#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "framework/core/device.h"
#include "framework/core/tensor.h"
#include "framework/primitives/gradient_target.h"

namespace furlong {

/// The gradient of one recorded value while it is being gathered. Shared by the variables and nodes that mean the same
/// value.
struct GradientSlot {
  Shape shape;
  DType dtype = DType::float32;
  Device device;
  Tensor gradient;          // undefined until first asked for
  bool written = false;     // holds a gradient, or part of a sum of them
  bool persistent = false;  // a parameter's or a leaf's: the memory stays after backward

  // A column range of another slot (ops::split_last). Its gradient is a view of the base's.
  std::shared_ptr<GradientSlot> base;
  std::int64_t part_start = 0;
  std::vector<std::weak_ptr<GradientSlot>> parts;

  // Parameters: recorded uses not yet consumed, and whom to tell when the last one is.
  int open_uses = 0;
  std::function<void()> on_final;

  /// Memory for a gradient of this slot and how to write it.
  GradientTarget target();
  /// The gathered gradient as `shape`; undefined when none reached this slot.
  Tensor gathered(const Shape& as);
  /// True when nobody outside this slot (and its column ranges) can see the gradient's memory, so that backward may
  /// write over it.
  bool is_exclusive() const;
  /// Makes is_exclusive() true, by a copy when the memory was passed on to others too. Needs a gradient.
  void make_exclusive();

 private:
  void settle_parts();
  bool lends_views() const;
  Tensor view_for_part(std::int64_t start, std::int64_t length);
};

/// Makes a value again, bit for bit, from what is kept for backward anyway. Whoever would keep the value keeps this in
/// its place.
using Remake = std::function<Tensor(const Stream&)>;

/// A value that the tape may have recorded. Cheap to copy; owns its value's memory, so dropping it frees the value
/// unless a node saved it.
class Variable {
 public:
  Variable() = default;
  /// A constant.
  explicit Variable(Tensor value) : value_(std::move(value)) {}
  Variable(Tensor value, std::shared_ptr<GradientSlot> slot) : value_(std::move(value)), slot_(std::move(slot)) {}
  /// A leaf whose gradient is kept after backward.
  static Variable leaf(const Tensor& value);

  bool defined() const { return value_.defined(); }
  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  std::int64_t extent(int dimension) const { return value_.extent(dimension); }
  DType dtype() const { return value_.dtype(); }
  bool requires_gradient() const { return slot_ != nullptr; }
  const std::shared_ptr<GradientSlot>& slot() const { return slot_; }
  /// After backward: the gradient of a leaf, undefined when none reached it.
  Tensor gradient() const { return slot_ ? slot_->gathered(value_.shape()) : Tensor{}; }
  /// The same value in another shape, the same gradient memory. Contiguous values only; records nothing.
  Variable reshape(const Shape& shape) const { return Variable(value_.reshape(shape), slot_); }

  /// How the value can be made again; null where only keeping it will do (Tape::remakes_values()).
  const std::shared_ptr<const Remake>& remake() const { return remake_; }
  /// This variable with a way to make its value again.
  Variable with_remake(Remake remake) const {
    Variable result = *this;
    result.remake_ = std::make_shared<const Remake>(std::move(remake));
    return result;
  }

 private:
  Tensor value_;
  std::shared_ptr<GradientSlot> slot_;
  std::shared_ptr<const Remake> remake_;
};

}  // namespace furlong
