#pragma once
// All parameters of a model in one contiguous, named store: values, gradients and the values as the layers compute with
// them. The optimizer, the reducer and the checkpoint see spans; a checkpoint is by name and never depends on order.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/autodiff/variable.h"
#include "framework/core/random.h"

namespace furlong {

/// How a parameter begins. Values are drawn from (seed, the parameter's name, the element's index): independent of
/// order and of layout.
struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, normal, identity_tap, identity } kind = Kind::zeros;
  double standard_deviation = 0;  ///< for normal
  static Initializer zeros() { return {}; }
  static Initializer ones() { return {Kind::ones, 0}; }
  static Initializer normal(double standard_deviation) { return {Kind::normal, standard_deviation}; }
  /// [channels, width]: 1 at the last tap, 0 before: a causal convolution that begins as the identity.
  static Initializer identity_tap() { return {Kind::identity_tap, 0}; }
  /// [..., d, d]: identity matrices.
  static Initializer identity() { return {Kind::identity, 0}; }
};

/// One named parameter (trained, or frozen: used and saved as it is) or buffer (kept and saved, never trained).
class Parameter {
 public:
  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  bool decays() const { return decays_; }
  /// A buffer that training adds up what it sees in: several processes have to bring theirs together.
  bool adds_up() const { return adds_up_; }
  /// The value in the compute dtype, as an input to ops. Its gradient goes to the store; a frozen parameter or a buffer
  /// takes none.
  Variable variable() const { return Variable(compute_, slot_); }
  /// The value in the master dtype (float32, or float64 in tests).
  const Tensor& master() const { return master_; }
  const Tensor& gradient() const { return gradient_; }  ///< undefined for frozen parameters and buffers

 private:
  friend class ParameterStore;
  std::string name_;
  Shape shape_;
  Initializer initializer_;
  bool decays_ = false, adds_up_ = false;
  enum class Role : std::uint8_t { trained, frozen, buffer } role_ = Role::trained;
  std::int64_t offset_ = 0;  // elements into the flat tensors
  Tensor master_, compute_, gradient_;
  std::shared_ptr<GradientSlot> slot_;  // null but for trained parameters
};

class ParameterStore {
 public:
  /// compute: float32, bfloat16 (masters in float32), or float64 (masters in float64, for gradient checks).
  ParameterStore(DType compute, Device device);

  /// Declares a parameter; its memory exists after allocate(). `decays`: weight decay applies (matrices; not norms and
  /// biases). Throws ContractError when the name is taken. The reference stays valid for the store's life.
  Parameter& add(const std::string& name, const Shape& shape, Initializer initializer, bool decays);
  /// A tensor that is saved with the model but not trained (feature directions). Always in the master dtype. adds_up:
  /// see Parameter.
  Parameter& add_buffer(const std::string& name, const Shape& shape, bool adds_up = false);

  /// Of the parameters declared so far, those for which `frozen` is true are not trained: they have values, but no
  /// gradient, no optimizer state, no weight decay and no place in values() and gradients(). Before allocate(); several
  /// calls add up. Buffers are not asked about.
  void freeze(const std::function<bool(const Parameter&)>& frozen);

  /// Lays out all parameters (those that decay, the other trained ones, the frozen ones) and gives them their initial
  /// values.
  void allocate(std::uint64_t seed);

  DType compute_dtype() const { return compute_dtype_; }
  DType master_dtype() const { return accumulate_dtype(compute_dtype_); }
  const Device& device() const { return device_; }
  /// Flat tensors over the trained parameters, each parameter at a 64-element border. Padding between them is zero.
  const Tensor& values() const { return values_; }
  const Tensor& gradients() const { return gradients_; }
  /// Compute-dtype copy of values(); the same tensor when the dtypes are equal.
  const Tensor& compute_values() const { return compute_values_; }
  /// Elements at the front of the flat tensors to which weight decay applies.
  std::int64_t decayed_elements() const { return decayed_elements_; }
  /// Trained parameters' elements, without padding.
  std::int64_t parameter_count() const;
  /// Those of the trained and of the frozen parameters.
  std::int64_t total_count() const;

  /// Trained parameters, frozen ones and buffers, in order of declaration.
  const std::deque<Parameter>& parameters() const { return parameters_; }
  bool is_trained(const Parameter& parameter) const { return parameter.role_ == Parameter::Role::trained; }
  bool is_frozen(const Parameter& parameter) const { return parameter.role_ == Parameter::Role::frozen; }
  bool is_buffer(const Parameter& parameter) const { return parameter.role_ == Parameter::Role::buffer; }
  /// The part of a flat tensor (values, gradients, moments) that belongs to a trained parameter, in its shape.
  Tensor slice(const Tensor& flat, const Parameter& parameter) const;
  /// Where that part begins, in elements.
  std::int64_t offset(const Parameter& parameter) const;
  /// Throws ContractError when there is none of that name.
  Parameter& find(const std::string& name);

  /// Before a step's first backward: gradients will be overwritten.
  void forget_gradients();
  /// After its last: parameters that no gradient reached get zeros.
  void complete_gradients(const Stream& stream);
  /// Copies master values to the compute dtype; after loading, or an optimizer step that did not do so itself.
  void refresh_compute_values(const Stream& stream);
  /// Calls `callback` for each parameter as its gradient becomes final in backward.
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
