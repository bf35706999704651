#pragma once
// All parameters of a model in one contiguous, named store: master values, gradients and compute-dtype values. The
// optimizer and the reducer see spans. Checkpoints identify parameters by name, so they do not depend on the order.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/autodiff/variable.h"
#include "framework/core/random.h"

namespace furlong {

/// How a parameter is initialized. Values are drawn from (seed, parameter name, element index), so they do not depend
/// on order or layout.
struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, normal, identity_tap, identity } kind = Kind::zeros;
  double standard_deviation = 0;  ///< for normal
  static Initializer zeros() { return {}; }
  static Initializer ones() { return {Kind::ones, 0}; }
  static Initializer normal(double standard_deviation) { return {Kind::normal, standard_deviation}; }
  /// [channels, width]: 1 at the last tap, 0 elsewhere. A causal convolution with these weights is the identity.
  static Initializer identity_tap() { return {Kind::identity_tap, 0}; }
  /// [..., d, d]: identity matrices.
  static Initializer identity() { return {Kind::identity, 0}; }
};

/// One named parameter or buffer. A parameter is trained, or frozen: used and saved, but not updated. A buffer is saved
/// with the model and never trained.
class Parameter {
 public:
  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  /// Whether weight decay applies.
  bool decays() const { return decays_; }
  /// Whether this is a buffer that accumulates statistics during training. Ranks must sum such buffers.
  bool accumulates_statistics() const { return accumulates_statistics_; }
  /// The value in the compute dtype, as an input to ops. Its gradient goes to the store. Frozen parameters and buffers
  /// receive no gradient.
  Variable variable() const { return Variable(compute_, slot_); }
  /// The value in the master dtype (float32, or float64 in tests).
  const Tensor& master() const { return master_; }
  /// Undefined for frozen parameters and buffers.
  const Tensor& gradient() const { return gradient_; }

 private:
  friend class ParameterStore;
  std::string name_;
  Shape shape_;
  Initializer initializer_;
  bool decays_ = false, accumulates_statistics_ = false;
  enum class Role : std::uint8_t { trained, frozen, buffer } role_ = Role::trained;
  std::int64_t offset_ = 0;  // elements into the flat tensors
  Tensor master_, compute_, gradient_;
  std::shared_ptr<GradientSlot> slot_;  // null for frozen parameters and buffers
};

class ParameterStore {
 public:
  /// `compute` is float32 or bfloat16 (master values in float32), or float64 (master values in float64, for gradient
  /// checks).
  ParameterStore(DType compute, Device device);

  /// Declares a parameter; allocate() allocates its memory. `decays`: weight decay applies (matrices, not norms or
  /// biases). The reference stays valid for the lifetime of the store. Throws ContractError if the name is taken.
  Parameter& add(const std::string& name, const Shape& shape, Initializer initializer, bool decays);
  /// Declares a tensor that is saved with the model but not trained, such as a random projection. It has the master
  /// dtype. `accumulates_statistics`: see Parameter::accumulates_statistics().
  Parameter& add_buffer(const std::string& name, const Shape& shape, bool accumulates_statistics = false);

  /// Freezes the parameters declared so far for which `frozen` returns true. A frozen parameter has a value, but no
  /// gradient, no optimizer state, no weight decay and no place in values() and gradients(). Must be called before
  /// allocate(). Several calls add up. `frozen` is not called for buffers.
  void freeze(const std::function<bool(const Parameter&)>& frozen);

  /// Allocates all parameters and sets their initial values. Order in memory: trained with weight decay, trained
  /// without, frozen.
  void allocate(std::uint64_t seed);

  DType compute_dtype() const { return compute_dtype_; }
  DType master_dtype() const { return accumulate_dtype(compute_dtype_); }
  const Device& device() const { return device_; }
  /// Flat tensors over the trained parameters. Each parameter starts at a multiple of 64 elements; the padding is zero.
  const Tensor& values() const { return values_; }
  const Tensor& gradients() const { return gradients_; }
  /// Copy of values() in the compute dtype; the same tensor if the dtypes are equal.
  const Tensor& compute_values() const { return compute_values_; }
  /// Number of elements at the start of the flat tensors to which weight decay applies.
  std::int64_t decayed_elements() const { return decayed_elements_; }
  /// Number of elements of trained parameters, without padding.
  std::int64_t parameter_count() const;
  /// Number of elements of trained and frozen parameters, without padding.
  std::int64_t total_count() const;

  /// Returns trained parameters, frozen parameters and buffers, in order of declaration.
  const std::deque<Parameter>& parameters() const { return parameters_; }
  bool is_trained(const Parameter& parameter) const { return parameter.role_ == Parameter::Role::trained; }
  bool is_frozen(const Parameter& parameter) const { return parameter.role_ == Parameter::Role::frozen; }
  bool is_buffer(const Parameter& parameter) const { return parameter.role_ == Parameter::Role::buffer; }
  /// Returns the part of a flat tensor (values, gradients, moments) that belongs to a trained parameter, in its shape.
  Tensor slice(const Tensor& flat, const Parameter& parameter) const;
  /// Returns the first element of that part.
  std::int64_t offset(const Parameter& parameter) const;
  /// Throws ContractError if no parameter has this name.
  Parameter& find(const std::string& name);

  /// Marks all gradients as empty, so that the next backward overwrites them. Call before a step's first backward.
  void forget_gradients();
  /// Sets the gradients of parameters that no gradient reached to zero. Call after a step's last backward.
  void complete_gradients(const Stream& stream);
  /// Copies master values to the compute dtype. Call after loading, or after an optimizer step that did not write the
  /// compute values itself.
  void refresh_compute_values(const Stream& stream);
  /// Calls `callback` for each parameter when its gradient becomes final in backward.
  void on_gradient_final(std::function<void(Parameter&)> callback);

 private:
  void place(Parameter& parameter);
  void initialize(Parameter& parameter, std::uint64_t seed);
  static Tensor part_of(const Tensor& flat, const Parameter& parameter);

  DType compute_dtype_;
  Device device_;
  std::deque<Parameter> parameters_;
  std::map<std::string, Parameter*> by_name_;
  Tensor values_, gradients_, compute_values_;  // trained
  std::int64_t decayed_elements_ = 0;
  Tensor all_values_, all_compute_values_;  // trained, then frozen
};

}  // namespace furlong
