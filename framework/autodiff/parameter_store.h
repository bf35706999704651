#pragma once
// All parameters of a model in one contiguous, named store: master values, gradients and compute-dtype values. The
// optimizer and the gradient reducer work on ranges of the flat tensors. Checkpoints identify parameters by name, so
// they do not depend on the order.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/autodiff/variable.h"
#include "framework/core/random.h"

namespace furlong {

/// How a parameter is initialized. Values are drawn from (seed, parameter name, element index), so they do not depend
/// on order or layout.
struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, normal, causal_dirac, identity } kind = Kind::zeros;
  double standard_deviation = 0;  ///< for normal
  static Initializer zeros() { return {}; }
  static Initializer ones() { return {Kind::ones, 0}; }
  static Initializer normal(double standard_deviation) { return {Kind::normal, standard_deviation}; }
  /// Dirac initialization of a causal depthwise convolution [channels, width]: 1 at the last tap (the current token), 0
  /// elsewhere. The convolution is then the identity.
  static Initializer causal_dirac() { return {Kind::causal_dirac, 0}; }
  /// [..., d, d]: identity matrices.
  static Initializer identity() { return {Kind::identity, 0}; }
};

/// One named parameter or buffer. A parameter is trained, or frozen: used and saved, but not updated. A buffer is saved
/// with the model and never trained.
class Parameter {
 public:
  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  /// Returns whether the optimizer applies weight decay to this parameter.
  bool decays() const { return decays_; }
  /// Returns whether this is a buffer to which training adds statistics. With several ranks, each rank adds those of
  /// its own samples; the buffers must be summed over all ranks after each step (DataParallel::combine_sums).
  bool accumulates_statistics() const { return accumulates_statistics_; }
  /// Returns the value in the compute dtype (a buffer: in the master dtype), as an input to ops. It shares the store's
  /// memory, and backward adds its gradient to the store. Frozen parameters and buffers receive no gradient. Call after
  /// allocate().
  Variable variable() const { return Variable(compute_, slot_); }
  /// Returns the value in the master dtype (float32, or float64 in tests). A view: writing to it changes the parameter;
  /// call ParameterStore::refresh_compute_values() afterwards. Undefined before allocate().
  const Tensor& master() const { return master_; }
  /// Returns the gradient in the master dtype, a view of ParameterStore::gradients(). Undefined for frozen parameters
  /// and buffers, and before allocate().
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

/// Owns the parameters and buffers of a model. Declare them with add() and add_buffer(), call freeze() if needed, then
/// allocate() once. Not thread-safe.
class ParameterStore {
 public:
  /// `compute` is float32 or bfloat16 (master values in float32), or float64 (master values in float64, for gradient
  /// checks). Throws ContractError for another dtype.
  ParameterStore(DType compute, Device device);

  /// Declares a trained parameter; allocate() allocates its memory. `decays`: whether weight decay applies. By
  /// convention, it applies to weight matrices and not to norm weights and biases. The reference stays valid for the
  /// lifetime of the store. Throws ContractError if the name is taken or the store is already allocated.
  Parameter& add(const std::string& name, const Shape& shape, Initializer initializer, bool decays);
  /// Declares a tensor that is saved with the model but not trained, such as a random projection. It has the master
  /// dtype and is zero after allocate(). `accumulates_statistics`: see Parameter::accumulates_statistics(). Throws
  /// ContractError like add().
  Parameter& add_buffer(const std::string& name, const Shape& shape, bool accumulates_statistics = false);

  /// Freezes the parameters declared so far for which `frozen` returns true. A frozen parameter has a value, but no
  /// gradient, no optimizer state, no weight decay and no place in values() and gradients(). A further call freezes
  /// further parameters. `frozen` is not called for buffers. Throws ContractError after allocate().
  void freeze(const std::function<bool(const Parameter&)>& frozen);

  /// Allocates all parameters and buffers. Order in memory: trained with weight decay, trained without, frozen.
  /// Parameters get their initial values from `seed`, or are zero without one, for callers that read or copy them;
  /// buffers are zero. Throws MachineError if memory is exhausted.
  void allocate(std::optional<std::uint64_t> seed);
  /// Sets a parameter's initial values. They are drawn on the host, so they have the same bits on every device. For
  /// parameters alone that no source has, after allocate() without seed. Call refresh_compute_values() afterwards.
  void draw(Parameter& parameter, std::uint64_t seed);

  DType compute_dtype() const { return compute_dtype_; }
  DType master_dtype() const { return accumulate_dtype(compute_dtype_); }
  const Device& device() const { return device_; }
  /// Flat, one-dimensional tensors over the trained parameters, in the master dtype. Each parameter starts at a
  /// multiple of 64 elements; the padding is zero. Undefined before allocate().
  const Tensor& values() const { return values_; }
  const Tensor& gradients() const { return gradients_; }
  /// Copy of values() in the compute dtype; the same tensor if the dtypes are equal.
  const Tensor& compute_values() const { return compute_values_; }
  /// Number of elements at the start of the flat tensors to which weight decay applies.
  std::int64_t decayed_elements() const { return decayed_elements_; }
  /// Returns the model's number of trainable parameters: elements of trained parameters, without padding.
  std::int64_t trained_parameter_count() const;
  /// Returns the model's number of parameters: elements of trained and frozen parameters, without padding. Buffers do
  /// not count.
  std::int64_t total_parameter_count() const;

  /// Returns all named tensors in order of declaration: trained parameters, frozen parameters and buffers.
  const std::deque<Parameter>& parameters() const { return parameters_; }
  bool is_trained(const Parameter& parameter) const { return parameter.role_ == Parameter::Role::trained; }
  bool is_frozen(const Parameter& parameter) const { return parameter.role_ == Parameter::Role::frozen; }
  bool is_buffer(const Parameter& parameter) const { return parameter.role_ == Parameter::Role::buffer; }
  /// Returns the part of a flat tensor (values, gradients, moments) that belongs to a trained parameter, in its shape.
  /// A view, not a copy. Throws ContractError if the parameter is frozen or a buffer, or if `flat` is too short.
  Tensor slice(const Tensor& flat, const Parameter& parameter) const;
  /// Returns the index, in the flat tensors, of a trained parameter's first element. Throws ContractError if the
  /// parameter is frozen or a buffer.
  std::int64_t offset(const Parameter& parameter) const;
  /// Returns the parameter or buffer with this name. Throws ContractError if there is none.
  Parameter& find(const std::string& name);

  /// Marks all gradients as empty, so that the next backward overwrites them. Call before a step's first backward.
  void forget_gradients();
  /// Sets the gradient to zero for each trained parameter to which backward has added none since forget_gradients().
  /// Call after a step's last backward.
  void complete_gradients(const Stream& stream);
  /// Copies master values to the compute dtype. Call after loading, or after an optimizer step that did not write the
  /// compute values itself.
  void refresh_compute_values(const Stream& stream);
  /// Sets a callback for the end of each parameter's gradient computation. Every later Tape::backward calls it once for
  /// each trained parameter that the tape's ops use, in the thread that runs backward, after the last of these ops. The
  /// work that writes the gradient is then enqueued on the tape's stream; on a GPU it may still be running. Replaces an
  /// earlier callback; null removes it. Call after allocate(). Frozen parameters and buffers are never reported.
  void on_gradient_final(std::function<void(Parameter&)> callback);

 private:
  void place(Parameter& parameter);
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
