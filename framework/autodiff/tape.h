#pragma once
// The tape: a flat list of nodes, walked backward in a loop. A node names what it did, keeps exactly the tensors that
// its backward needs, and lets them go as it is consumed. Gradients are summed in place; each backward function is told
// to overwrite, accumulate or skip.
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/autodiff/variable.h"
#include "framework/core/device.h"
#include "framework/core/random.h"

namespace furlong {

/// A value or gradient that is NaN or infinite, found with checks on. The message names the first op that made it.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// What an op saves: `Name` is its enum of the tensors that its backward needs. Tensors that may be missing are listed
/// undefined.
template <class Name>
requires std::is_enum_v<Name> std::vector<Tensor> saved_by_name(
    std::initializer_list<std::pair<Name, Tensor>> tensors) {
  std::vector<Tensor> saved(tensors.size());
  for (const auto& [name, tensor] : tensors) saved.at(static_cast<std::size_t>(name)) = tensor;
  return saved;
}

class BackwardContext;
/// Computes gradients of a node's inputs from those of its outputs. Small parameters are captured by value; tensors go
/// through `saved`.
using BackwardFunction = std::function<void(BackwardContext&)>;

class Tape {
 public:
  explicit Tape(Stream stream) : stream_(stream) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  const Stream& stream() const { return stream_; }
  const Device& device() const { return stream_.device; }

  /// Whether an op on these inputs has to save anything for backward.
  bool records(std::initializer_list<const Variable*> inputs) const;

  /// Adds a node and returns its outputs as variables. `saved` are the tensors that `backward` asks for by
  /// BackwardContext::saved(). When nothing is recorded (recording off, or no input requires a gradient), the outputs
  /// are constants and `saved` is dropped.
  std::vector<Variable> record(const char* name, const std::vector<Variable>& inputs,
                               const std::vector<Tensor>& outputs, std::vector<Tensor> saved,
                               BackwardFunction backward);
  /// For the usual case of one output.
  Variable record_one(const char* name, const std::vector<Variable>& inputs, const Tensor& output,
                      std::vector<Tensor> saved, BackwardFunction backward);
  /// A node that changed `variable`'s memory in place: the same slot is input and output, and `backward` changes the
  /// gradient in place (context.d_output(0)). Consumers recorded earlier must not have saved the value.
  Variable record_in_place(const char* name, const Variable& variable, std::vector<Tensor> saved,
                           BackwardFunction backward);

  /// Columns [start, start + length) of the last dimension, for consecutive lengths that sum up to it: views in value
  /// and in gradient.
  std::vector<Variable> split_last(const Variable& variable, const std::vector<std::int64_t>& lengths);

  using Segment = std::function<std::vector<Variable>(Tape&, const std::vector<Variable>&)>;
  /// Runs `segment` without keeping what is inside it; backward runs it again from its inputs. `segment` must be a
  /// function of its inputs, of parameters and of counter-based random numbers alone (then its values are the same
  /// again).
  std::vector<Variable> recompute(const char* name, const std::vector<Variable>& inputs, Segment segment);

  /// Walks the tape from its end with d_loss = `scale` for the scalar `loss`, and empties it.
  void backward(const Variable& loss, double scale = 1.0);
  /// The same with given gradients of several outputs (shapes and dtypes of the values).
  void backward(const std::vector<Variable>& outputs, const std::vector<Tensor>& d_outputs);

  /// Forgets all nodes without running them.
  void clear();

  /// Cheap values (norms, activations) come with a way to make them again, so that products keep that instead of the
  /// value: a third less memory for a few element-wise passes more in backward, and the same bits. Off to begin with.
  void set_remakes_values(bool on) { remakes_values_ = on; }
  bool remakes_values() const { return remakes_values_; }

  bool recording() const { return recording_; }
  /// In the first run of a recomputed segment: nothing is recorded, but backward will run the same again and must find
  /// the same bits.
  bool runs_again() const { return touched_ != nullptr; }
  std::size_t node_count() const { return nodes_.size(); }
  /// Bytes kept for backward, by op name (a tensor that several nodes keep counts for each).
  std::map<std::string, std::int64_t> saved_bytes() const;

  /// With checks on, every output and every gradient is looked at; the first that is not finite is thrown as
  /// NonFiniteError.
  void set_checks(bool on) { checks_ = on; }

  /// While it lives, nothing is recorded: evaluation, a teacher, the first run of a recomputed segment.
  class NoGradient {
   public:
    explicit NoGradient(Tape& tape) : tape_(tape), before_(tape.recording_) { tape.recording_ = false; }
    ~NoGradient() { tape_.recording_ = before_; }
    NoGradient(const NoGradient&) = delete;
    NoGradient& operator=(const NoGradient&) = delete;

   private:
    Tape& tape_;
    bool before_;
  };
  /// While it lives, names in messages begin with `name` ("blocks.0.attention").
  class Scope {
   public:
    Scope(Tape& tape, const std::string& name) : tape_(tape), length_(tape.scope_.size()) { tape.scope_ += name + "."; }
    ~Scope() { tape_.scope_.resize(length_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Tape& tape_;
    std::size_t length_;
  };

 private:
  friend class BackwardContext;
  struct End {
    std::shared_ptr<GradientSlot> slot;  // null: a constant
    Shape shape;                         // the variable's own, which may be a reshape of the slot's
  };
  struct Node {
    const char* name;
    std::string scope;
    std::vector<End> inputs, outputs;
    std::vector<Tensor> saved;
    BackwardFunction backward;
    std::vector<std::shared_ptr<GradientSlot>> held;  // parameters used inside a recomputed segment

    bool in_place() const { return !outputs.empty() && !inputs.empty() && inputs[0].slot == outputs[0].slot; }
  };

  void seed(const Variable& output, const Tensor& d_output);
  void consume_down_to(std::size_t first);
  void run(Node& node);
  static void release(Node& node);
  void open(Node& node);
  static void close(Node& node, bool announce);
  void check_finite(const Tensor& tensor, const std::string& what) const;

  Stream stream_;
  std::vector<Node> nodes_;
  std::string scope_;
  bool recording_ = true;
  bool checks_ = false, remakes_values_ = false;
  std::vector<std::shared_ptr<GradientSlot>>* touched_ = nullptr;  // gathers parameters while a segment first runs
};

/// What a backward function sees of its node.
class BackwardContext {
 public:
  const Stream& stream() const { return tape_.stream_; }
  Tape& tape() { return tape_; }
  /// Gradient of output i in its shape; undefined when nothing reached it. At least one output has one.
  Tensor d_output(std::size_t i = 0) const;
  /// Where the gradient of input i goes. Ask once for each input.
  GradientTarget d_input(std::size_t i);
  /// True when the memory of d_output(i) is this node's alone: it may be written over and passed on.
  bool owns_d_output(std::size_t i = 0) const { return node_.outputs[i].slot->is_exclusive(); }
  bool wants(std::size_t i) const { return node_.inputs[i].slot != nullptr; }
  /// Gives `gradient` to input i without a copy where possible. The caller must not write to it afterwards.
  void pass(std::size_t i, const Tensor& gradient);
  const Tensor& saved(std::size_t i) const { return node_.saved[i]; }
  /// Of saved_by_name().
  template <class Name>
  requires std::is_enum_v<Name>
  const Tensor& saved(Name name) const { return node_.saved.at(static_cast<std::size_t>(name)); }

 private:
  friend class Tape;
  BackwardContext(Tape& tape, Tape::Node& node) : tape_(tape), node_(node) {}
  Tape& tape_;
  Tape::Node& node_;
};

}  // namespace furlong
