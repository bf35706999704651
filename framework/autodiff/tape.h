#pragma once
// The tape: a flat list of nodes, walked backward in a loop. A node stores its op's name and exactly the tensors that
// its backward needs; they are released when the node has run. Gradients are summed in place: each backward function is
// asked to overwrite, accumulate or skip.
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

/// A value or gradient is NaN or infinite; thrown only if checks are on. The message names the first op that produced
/// it.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// Returns the tensors that an op saves, ordered by `Name`, the op's enum of the tensors that its backward needs. A
/// tensor may be undefined.
template <class Name>
requires std::is_enum_v<Name> std::vector<Tensor> saved_by_name(
    std::initializer_list<std::pair<Name, Tensor>> tensors) {
  std::vector<Tensor> saved(tensors.size());
  for (const auto& [name, tensor] : tensors) saved.at(static_cast<std::size_t>(name)) = tensor;
  return saved;
}

class BackwardContext;
/// Computes the gradients of a node's inputs from those of its outputs. Small parameters are captured by value. Tensors
/// go through `saved`.
using BackwardFunction = std::function<void(BackwardContext&)>;

/// Records ops and computes gradients. Every op runs immediately on the tape's stream; the tape stores what backward
/// needs. Not thread-safe: one thread records and runs backward.
class Tape {
 public:
  /// `stream`: the stream on which ops and backward run their work. On a GPU, neither waits for it.
  explicit Tape(Stream stream) : stream_(stream) {}
  ~Tape() { clear(); }
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  const Stream& stream() const { return stream_; }
  const Device& device() const { return stream_.device; }

  /// Returns whether an op on these inputs must save tensors for backward.
  bool records(std::initializer_list<const Variable*> inputs) const;

  /// Adds a node and returns its outputs as variables. `backward` reads the tensors of `saved` with
  /// BackwardContext::saved(). If recording is off or no input requires a gradient, the outputs are constants and
  /// `saved` is dropped.
  std::vector<Variable> record(const char* name, const std::vector<Variable>& inputs,
                               const std::vector<Tensor>& outputs, std::vector<Tensor> saved,
                               BackwardFunction backward);
  /// Adds a node with one output.
  Variable record_one(const char* name, const std::vector<Variable>& inputs, const Tensor& output,
                      std::vector<Tensor> saved, BackwardFunction backward);
  /// Adds a node that changed `variable`'s memory in place. The same slot is input and output, and `backward` changes
  /// the gradient in place (context.d_output(0)). Nodes recorded earlier must not have saved the value. Throws
  /// ContractError for a parameter or leaf.
  Variable record_in_place(const char* name, const Variable& variable, std::vector<Tensor> saved,
                           BackwardFunction backward);

  /// Splits the last dimension into ranges of the given lengths, which must sum to its extent. Values and gradients are
  /// views, not copies. Throws ContractError if a recorded variable is itself a view or was split before.
  std::vector<Variable> split_last(const Variable& variable, const std::vector<std::int64_t>& lengths);

  /// Computes the outputs of a segment from its inputs, recording ops on the given tape.
  using Segment = std::function<std::vector<Variable>(Tape&, const std::vector<Variable>&)>;
  /// Runs `segment` without saving its intermediate tensors; backward runs it again from its inputs (activation
  /// checkpointing). `segment` must depend only on its inputs, on parameters and on counter-based random numbers, so
  /// that both runs compute the same values.
  std::vector<Variable> recompute(const char* name, const std::vector<Variable>& inputs, Segment segment);

  /// Computes gradients: walks the tape from its end with d_loss = `scale` for the scalar `loss`, and empties the tape.
  /// Returns when all work is enqueued on the stream. Throws ContractError if `loss` has more than one element, and
  /// NonFiniteError if checks are on and a gradient is not finite.
  void backward(const Variable& loss, double scale = 1.0);
  /// Walks the tape with the given gradients of several outputs (shapes and dtypes of the values), and empties it.
  void backward(const std::vector<Variable>& outputs, const std::vector<Tensor>& d_outputs);

  /// Drops all nodes without running them.
  void clear();

  /// With this on, an op that would save a cheap value (norm, activation) for backward saves a function that recomputes
  /// it. This takes a third less memory and a few more element-wise passes in backward; gradients have the same bits.
  /// Off by default.
  void set_recomputes_values(bool on) { recomputes_values_ = on; }
  bool recomputes_values() const { return recomputes_values_; }

  /// Returns whether ops are recorded; false while a NoGradient exists.
  bool recording() const { return recording_; }
  /// True during the first run of a recomputed segment. Nothing is recorded then, but backward runs the segment again
  /// and must compute the same bits.
  bool will_rerun() const { return touched_ != nullptr; }
  /// Number of recorded ops that backward has not yet run.
  std::size_t node_count() const { return nodes_.size(); }
  /// Bytes saved for backward, by op name. A tensor that several nodes save counts once for each node.
  std::map<std::string, std::int64_t> saved_bytes() const;

  /// With checks on, every output and every gradient is tested; the first one that is not finite throws NonFiniteError.
  /// Each test blocks until the device's work is done. Off by default.
  void set_checks(bool on) { checks_ = on; }

  /// Turns recording off during its lifetime: for evaluation, a teacher, the first run of a recomputed segment.
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
  /// During its lifetime, names in messages start with `name` ("blocks.0.attention").
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
    Shape shape;                         // the variable's shape; may be a reshape of the slot's
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
  bool checks_ = false, recomputes_values_ = false;
  std::vector<std::shared_ptr<GradientSlot>>* touched_ = nullptr;  // collects parameters in a segment's first run
};

/// A node as its backward function sees it; valid only during the call.
class BackwardContext {
 public:
  const Stream& stream() const { return tape_.stream_; }
  Tape& tape() { return tape_; }
  /// Returns the gradient of output i in the output's shape, a view; undefined if no later op contributed to it. At
  /// least one output has a gradient.
  Tensor d_output(std::size_t i = 0) const;
  /// Returns where to write the gradient of input i, and whether to overwrite or accumulate; `skip` if it is not
  /// needed. Call once for each input.
  GradientTarget d_input(std::size_t i);
  /// Returns whether only this node uses the memory of d_output(i). The node may then overwrite it and pass it on.
  bool owns_d_output(std::size_t i = 0) const { return node_.outputs[i].slot->is_exclusive(); }
  /// Returns whether the gradient of input i is needed.
  bool wants(std::size_t i) const { return node_.inputs[i].slot != nullptr; }
  /// Gives `gradient` to input i, without a copy if possible. The caller must not write to it afterwards.
  void pass(std::size_t i, const Tensor& gradient);
  /// Returns element i of the node's `saved` tensors; it may be undefined.
  const Tensor& saved(std::size_t i) const { return node_.saved[i]; }
  /// Returns a tensor saved with saved_by_name().
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
