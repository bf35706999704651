#include "framework/autodiff/tape.h"

#include "framework/core/trace.h"
#include "framework/primitives/arithmetic.h"

namespace furlong {

Variable Variable::leaf(const Tensor& value) {
  auto slot = std::make_shared<GradientSlot>();
  slot->shape = value.shape();
  slot->dtype = value.dtype();
  slot->device = value.device();
  slot->persistent = true;
  return Variable(value, std::move(slot));
}

void GradientSlot::settle_parts() {
  // The whole gradient is needed, but some column ranges have not been written. They become zero; later gradients are
  // added.
  if (written || parts.empty()) return;
  bool any = false;
  for (const auto& weak : parts) {
    const auto part = weak.lock();
    any = any || (part && part->written);
  }
  if (!any) return;
  std::int64_t covered = 0;
  for (const auto& weak : parts) {
    const auto part = weak.lock();
    require(part != nullptr, "a column range was destroyed before its gradient was complete");
    if (!part->written)
      ops::fill(Stream{device}, gradient.narrow(-1 + gradient.shape().rank(), part->part_start, part->shape[-1]), 0.0);
    covered += part->shape[-1];
  }
  require(covered == shape[-1], "column ranges cover {} of {} columns", covered, shape[-1]);
  written = true;
}

bool GradientSlot::lends_views() const {
  for (const auto& weak : parts) {
    const auto part = weak.lock();
    if (part && part->gradient.defined()) return true;
  }
  return false;
}

bool GradientSlot::is_exclusive() const {
  // Memory lent to column ranges belongs to this slot: make_exclusive() has run before.
  return base == nullptr && !persistent && gradient.defined() && (lends_views() || gradient.is_unique());
}

void GradientSlot::make_exclusive() {
  if (base || persistent || lends_views() || gradient.is_unique()) return;
  gradient = gradient.clone();
}

GradientTarget GradientSlot::target() {
  if (base) {
    if (!gradient.defined()) gradient = base->view_for_part(part_start, shape[-1]);
    const bool holds_something = written || base->written;
    written = true;
    return {gradient, holds_something ? GradientMode::accumulate : GradientMode::overwrite};
  }
  settle_parts();
  if (!gradient.defined()) gradient = Tensor::empty(shape, dtype, device);
  if (!written) {
    written = true;
    return {gradient, GradientMode::overwrite};
  }
  make_exclusive();  // a gradient that was passed on without a copy may still be another node's input
  return {gradient, GradientMode::accumulate};
}

Tensor GradientSlot::gathered(const Shape& as) {
  if (base && !written && base->written) {
    // Only the whole was used: the range's gradient is its part of the whole gradient.
    gradient = base->view_for_part(part_start, shape[-1]);
    written = true;
  }
  settle_parts();
  if (!written) return {};
  return gradient.shape() == as ? gradient : gradient.reshape(as);
}

Tensor GradientSlot::view_for_part(std::int64_t start, std::int64_t length) {
  if (gradient.defined()) {
    make_exclusive();
  } else {
    gradient = Tensor::empty(shape, dtype, device);
  }
  return gradient.narrow(shape.rank() - 1, start, length);
}

bool Tape::records(std::initializer_list<const Variable*> inputs) const {
  if (!recording_) return false;
  for (const Variable* input : inputs) {
    if (input->requires_gradient()) return true;
  }
  return false;
}

void Tape::check_finite(const Tensor& tensor, const std::string& what) const {
  if (!tensor.defined() || tensor.dtype() == DType::int32 || tensor.dtype() == DType::uint8) return;
  const std::int64_t bad = ops::count_non_finite(stream_, tensor);
  if (bad > 0)
    throw NonFiniteError(fmt::format("{}: {} of {} elements are NaN or infinite", what, bad, tensor.elements()));
}

void Tape::open(Node& node) {
  for (const End& input : node.inputs) {
    if (input.slot && input.slot->persistent) ++input.slot->open_uses;
  }
  for (const auto& slot : node.held) ++slot->open_uses;
}

void Tape::close(Node& node, bool announce) {
  const auto close_use = [announce](const std::shared_ptr<GradientSlot>& slot) {
    if (slot && slot->persistent && --slot->open_uses == 0 && announce && slot->on_final) slot->on_final();
  };
  for (const End& input : node.inputs) close_use(input.slot);
  for (const auto& slot : node.held) close_use(slot);
}

std::vector<Variable> Tape::record(const char* name, const std::vector<Variable>& inputs,
                                   const std::vector<Tensor>& outputs, std::vector<Tensor> saved,
                                   BackwardFunction backward) {
  trace::node("forward", scope_, name);
  if (checks_) {
    for (const Tensor& output : outputs) check_finite(output, scope_ + name);
  }
  bool wanted = false;
  for (const Variable& input : inputs) {
    if (!input.requires_gradient()) continue;
    wanted = true;
    if (touched_ && input.slot()->persistent) touched_->push_back(input.slot());
  }
  std::vector<Variable> results;
  results.reserve(outputs.size());
  if (!recording_ || !wanted) {
    for (const Tensor& output : outputs) results.emplace_back(output);
    return results;
  }
  Node node{name, scope_, {}, {}, std::move(saved), std::move(backward), {}};
  for (const Variable& input : inputs) node.inputs.push_back({input.slot(), input.defined() ? input.shape() : Shape{}});
  for (const Tensor& output : outputs) {
    auto slot = std::make_shared<GradientSlot>();
    slot->shape = output.shape();
    slot->dtype = output.dtype();
    slot->device = output.device();
    node.outputs.push_back({slot, output.shape()});
    results.emplace_back(output, std::move(slot));
  }
  open(node);
  nodes_.push_back(std::move(node));
  return results;
}

Variable Tape::record_one(const char* name, const std::vector<Variable>& inputs, const Tensor& output,
                          std::vector<Tensor> saved, BackwardFunction backward) {
  return record(name, inputs, {output}, std::move(saved), std::move(backward)).front();
}

Variable Tape::record_in_place(const char* name, const Variable& variable, std::vector<Tensor> saved,
                               BackwardFunction backward) {
  trace::node("forward", scope_, name);
  if (checks_) check_finite(variable.value(), scope_ + name);
  if (!records({&variable})) return variable;
  require(!variable.slot()->persistent,
          "{}: cannot change a parameter, or an input with a gradient (Variable::leaf), in place", name);
  const End end{variable.slot(), variable.shape()};
  nodes_.push_back(Node{name, scope_, {end}, {end}, std::move(saved), std::move(backward), {}});
  return variable;
}

std::vector<Variable> Tape::split_last(const Variable& variable, const std::vector<std::int64_t>& lengths) {
  std::vector<Variable> parts;
  std::int64_t start = 0;
  const int last = variable.shape().rank() - 1;
  const bool recorded = records({&variable});
  for (std::int64_t length : lengths) {
    const Tensor view = variable.value().narrow(last, start, length);
    std::shared_ptr<GradientSlot> slot;
    if (recorded) {
      require(variable.slot()->shape == variable.shape() && !variable.slot()->base,
              "split_last: the value is a view; only values that own their memory can be split");
      require(start > 0 || variable.slot()->parts.empty(), "split_last: a value of shape {} is split twice",
              variable.shape().text());
      slot = std::make_shared<GradientSlot>();
      slot->shape = view.shape();
      slot->dtype = view.dtype();
      slot->device = view.device();
      slot->base = variable.slot();
      slot->part_start = start;
      variable.slot()->parts.push_back(slot);
    }
    parts.emplace_back(view, slot);
    start += length;
  }
  require(start == variable.extent(-1), "split_last: the lengths sum to {}, expected {} columns", start,
          variable.extent(-1));
  if (recorded) {
    // This extra node keeps the parts' slots alive until the base's gradient is needed. It then zeroes unwritten parts.
    Node node{"split", scope_, {{variable.slot(), variable.shape()}}, {}, {}, {}, {}};
    node.backward = [slot = variable.slot()](BackwardContext&) { slot->gathered(slot->shape); };
    for (const Variable& part : parts) node.outputs.push_back({part.slot(), part.shape()});
    open(node);
    nodes_.push_back(std::move(node));
  }
  return parts;
}

std::vector<Variable> Tape::recompute(const char* name, const std::vector<Variable>& inputs, Segment segment) {
  if (!recording_) return segment(*this, inputs);
  std::vector<std::shared_ptr<GradientSlot>> touched;
  std::vector<Variable> outputs;
  {
    struct Gathering {
      Tape& tape;
      std::vector<std::shared_ptr<GradientSlot>>* before;
      ~Gathering() { tape.touched_ = before; }
    } const gathering{*this, std::exchange(touched_, &touched)};
    const NoGradient guard(*this);
    outputs = segment(*this, inputs);
  }
  std::vector<Tensor> saved, values;
  for (const Variable& input : inputs) saved.push_back(input.value());
  for (const Variable& output : outputs) values.push_back(output.value());
  bool wanted = !touched.empty();
  for (const Variable& input : inputs) wanted = wanted || input.requires_gradient();
  if (!wanted) return outputs;

  Node node{name, scope_, {}, {}, std::move(saved), {}, std::move(touched)};
  std::vector<Variable> results;
  for (const Variable& input : inputs) node.inputs.push_back({input.slot(), input.shape()});
  for (const Tensor& value : values) {
    auto slot = std::make_shared<GradientSlot>();
    slot->shape = value.shape();
    slot->dtype = value.dtype();
    slot->device = value.device();
    node.outputs.push_back({slot, value.shape()});
    results.emplace_back(value, std::move(slot));
  }
  node.backward = [segment = std::move(segment), count = inputs.size()](BackwardContext& context) {
    Tape& tape = context.tape();
    const std::size_t first = tape.nodes_.size();
    std::vector<Variable> leaves;
    for (std::size_t i = 0; i < count; ++i) {
      leaves.push_back(context.wants(i) ? Variable::leaf(context.saved(i)) : Variable(context.saved(i)));
    }
    const bool before = tape.recording_;
    tape.recording_ = true;
    {
      const std::vector<Variable> again = segment(tape, leaves);
      for (std::size_t i = 0; i < again.size(); ++i) {
        const Tensor d_output = context.d_output(i);
        if (d_output.defined() && again[i].requires_gradient()) tape.seed(again[i], d_output);
      }
    }
    tape.consume_down_to(first);
    tape.recording_ = before;
    for (std::size_t i = 0; i < count; ++i) {
      const Tensor d_input = leaves[i].gradient();
      if (context.wants(i) && d_input.defined()) context.pass(i, d_input);
    }
  };
  open(node);
  nodes_.push_back(std::move(node));
  return results;
}

void Tape::run(Node& node) {
  bool reached = false;
  for (const End& output : node.outputs) reached = reached || output.slot->gathered(output.shape).defined();
  if (!reached) return;
  const trace::Span span("backward", node.name, {.scope = &node.scope});
  if (node.in_place()) node.outputs[0].slot->make_exclusive();
  scope_ = node.scope;
  BackwardContext context(*this, node);
  node.backward(context);
  if (!checks_) return;
  for (const End& input : node.inputs) {
    if (input.slot && input.slot->written)
      check_finite(input.slot->gradient, fmt::format("gradient from {}{}", node.scope, node.name));
  }
}

void Tape::release(Node& node) {
  // The node that creates its outputs in forward is the last to use their gradients in backward. Column ranges are
  // released with the split that created them.
  for (const End& output : node.outputs) {
    if (node.in_place() || output.slot->persistent) continue;
    output.slot->gradient = Tensor{};
    output.slot->written = false;  // a later use of the value starts a new sum
    if (output.slot->base) output.slot->base->parts.clear();
  }
  node.saved.clear();
}

void Tape::consume_down_to(std::size_t first) {
  while (nodes_.size() > first) {
    Node node = std::move(nodes_.back());
    nodes_.pop_back();
    const std::size_t below = nodes_.size();
    try {
      const std::string scope_before = scope_;
      run(node);
      scope_ = scope_before;
      require(nodes_.size() == below, "{}: backward left nodes on the tape", node.name);
    } catch (...) {
      close(node, false);
      throw;
    }
    release(node);
    close(node, true);
  }
}

void Tape::seed(const Variable& output, const Tensor& d_output) {
  GradientSlot& slot = *output.slot();
  if (!slot.written && !slot.persistent && !slot.base && slot.parts.empty() && slot.dtype == d_output.dtype() &&
      d_output.is_contiguous()) {
    slot.gradient = d_output.reshape(slot.shape);
    slot.written = true;
    return;
  }
  GradientTarget target = slot.target();
  if (!(target.tensor.shape() == d_output.shape())) target.tensor = target.tensor.reshape(d_output.shape());
  ops::add(stream_, target.tensor, d_output, target.mode);
}

void Tape::backward(const Variable& loss, double scale) {
  require(loss.shape().elements() == 1, "backward: the loss has shape {}, expected a scalar", loss.shape().text());
  const Tensor d_loss = Tensor::empty(loss.shape(), loss.dtype(), loss.value().device());
  ops::fill(stream_, d_loss, scale);
  backward({loss}, {d_loss});
}

void Tape::backward(const std::vector<Variable>& outputs, const std::vector<Tensor>& d_outputs) {
  require(outputs.size() == d_outputs.size(),
          "backward: {} outputs with {} gradients, expected one gradient for each output", outputs.size(),
          d_outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    require(outputs[i].requires_gradient(), "backward: an output does not depend on any parameter");
    require(outputs[i].shape() == d_outputs[i].shape(), "backward: an output of shape {} with a gradient of shape {}",
            outputs[i].shape().text(), d_outputs[i].shape().text());
  }
  const bool recording_before = recording_;
  const std::string scope_before = scope_;
  try {
    for (std::size_t i = 0; i < outputs.size(); ++i) seed(outputs[i], d_outputs[i]);
    consume_down_to(0);
  } catch (...) {
    // After an error the tape is empty and no parameter has open uses.
    recording_ = recording_before;
    scope_ = scope_before;
    clear();
    throw;
  }
}

void Tape::clear() {
  for (Node& node : nodes_) {
    release(node);
    close(node, false);
  }
  nodes_.clear();
}

std::map<std::string, std::int64_t> Tape::saved_bytes() const {
  std::map<std::string, std::int64_t> bytes;
  for (const Node& node : nodes_) {
    for (const Tensor& tensor : node.saved) {
      if (tensor.defined()) bytes[node.name] += tensor.bytes();
    }
  }
  return bytes;
}

Tensor BackwardContext::d_output(std::size_t i) const {
  return node_.outputs[i].slot->gathered(node_.outputs[i].shape);
}

GradientTarget BackwardContext::d_input(std::size_t i) {
  const Tape::End& input = node_.inputs[i];
  if (!input.slot) return {};
  GradientTarget target = input.slot->target();
  if (!(target.tensor.shape() == input.shape)) target.tensor = target.tensor.reshape(input.shape);
  return target;
}

void BackwardContext::pass(std::size_t i, const Tensor& gradient) {
  const Tape::End& input = node_.inputs[i];
  if (!input.slot) return;
  require(gradient.elements() == input.shape.elements(), "{}: gradient of shape {} for input {} of shape {}",
          node_.name, gradient.shape().text(), i, input.shape.text());
  GradientSlot& slot = *input.slot;
  const bool untouched = !slot.written && !slot.gradient.defined();
  if (untouched && !slot.persistent && !slot.base && slot.dtype == gradient.dtype() && gradient.is_contiguous()) {
    slot.gradient = gradient.reshape(slot.shape);
    slot.written = true;
    return;
  }
  const GradientTarget target = d_input(i);
  ops::add(stream(), target.tensor, gradient.shape() == input.shape ? gradient : gradient.reshape(input.shape),
           target.mode);
}

}  // namespace furlong
