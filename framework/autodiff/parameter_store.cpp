#include "framework/autodiff/parameter_store.h"

#include "framework/core/parallel.h"
#include "framework/primitives/arithmetic.h"

namespace furlong {
namespace {

constexpr std::int64_t border = 64;  // elements: each parameter starts on a cache line, for any dtype

template <class T>
void write_initial(T* values, const Shape& shape, const Initializer& initializer, const RandomKey& key) {
  const std::int64_t n = shape.elements();
  switch (initializer.kind) {
    case Initializer::Kind::zeros:
      std::fill_n(values, n, T{0});
      return;
    case Initializer::Kind::ones:
      std::fill_n(values, n, T{1});
      return;
    case Initializer::Kind::normal:
      parallel_ranges(n, 4096, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const double normal = random_normal(key, static_cast<std::uint64_t>(i));
          values[i] = static_cast<T>(normal * initializer.standard_deviation);
        }
      });
      return;
    case Initializer::Kind::causal_dirac:
      for (std::int64_t i = 0; i < n; ++i) values[i] = (i + 1) % shape[-1] == 0 ? T{1} : T{0};
      return;
    case Initializer::Kind::identity:
      for (std::int64_t i = 0; i < n; ++i) values[i] = i / shape[-1] % shape[-2] == i % shape[-1] ? T{1} : T{0};
      return;
  }
}

}  // namespace

ParameterStore::ParameterStore(DType compute, Device device) : compute_dtype_(compute), device_(device) {
  require(compute == DType::float32 || compute == DType::bfloat16 || compute == DType::float64,
          "ParameterStore: compute dtype {}, expected float32, bfloat16 or float64", name_of(compute));
}

Parameter& ParameterStore::add(const std::string& name, const Shape& shape, Initializer initializer, bool decays) {
  require(!values_.defined(), "{}: the parameter store is already allocated; declare parameters before allocate()",
          name);
  require(!by_name_.contains(name), "a parameter named {} already exists", name);
  Parameter& parameter = parameters_.emplace_back();
  parameter.name_ = name;
  parameter.shape_ = shape;
  parameter.initializer_ = initializer;
  parameter.decays_ = decays;
  by_name_[name] = &parameter;
  return parameter;
}

Parameter& ParameterStore::add_buffer(const std::string& name, const Shape& shape, bool accumulates_statistics) {
  Parameter& parameter = add(name, shape, Initializer::zeros(), false);
  parameter.role_ = Parameter::Role::buffer;
  parameter.accumulates_statistics_ = accumulates_statistics;
  return parameter;
}

void ParameterStore::freeze(const std::function<bool(const Parameter&)>& frozen) {
  require(!values_.defined(), "the parameter store is already allocated; freeze parameters before allocate()");
  for (Parameter& parameter : parameters_) {
    if (parameter.role_ == Parameter::Role::trained && frozen(parameter)) parameter.role_ = Parameter::Role::frozen;
  }
}

void ParameterStore::allocate(std::optional<std::uint64_t> seed) {
  std::int64_t total = 0;
  const auto lay_out = [&](const auto& belongs) {
    for (Parameter& parameter : parameters_) {
      if (!belongs(parameter)) continue;
      parameter.offset_ = total;
      total += (parameter.shape_.elements() + border - 1) / border * border;
    }
    return total;
  };
  decayed_elements_ = lay_out([&](const Parameter& parameter) { return is_trained(parameter) && parameter.decays_; });
  const std::int64_t trained =
      lay_out([&](const Parameter& parameter) { return is_trained(parameter) && !parameter.decays_; });
  lay_out([&](const Parameter& parameter) { return is_frozen(parameter); });
  all_values_ = Tensor::zeros({total}, master_dtype(), device_);
  all_compute_values_ =
      compute_dtype_ == master_dtype() ? all_values_ : Tensor::zeros({total}, compute_dtype_, device_);
  values_ = all_values_.narrow(0, 0, trained);
  compute_values_ = all_compute_values_.narrow(0, 0, trained);
  gradients_ = Tensor::zeros({trained}, master_dtype(), device_);
  for (Parameter& parameter : parameters_) {
    place(parameter);
    if (seed) draw(parameter, *seed);
  }
  refresh_compute_values(Stream{device_});
}

void ParameterStore::place(Parameter& parameter) {
  if (is_buffer(parameter)) {
    parameter.master_ = Tensor::zeros(parameter.shape_, master_dtype(), device_);
    parameter.compute_ = parameter.master_;
    return;
  }
  parameter.master_ = part_of(all_values_, parameter);
  parameter.compute_ = part_of(all_compute_values_, parameter);
  if (is_frozen(parameter)) return;
  parameter.gradient_ = part_of(gradients_, parameter);
  parameter.slot_ = std::make_shared<GradientSlot>();
  parameter.slot_->shape = parameter.shape_;
  parameter.slot_->dtype = master_dtype();
  parameter.slot_->device = device_;
  parameter.slot_->gradient = parameter.gradient_;
  parameter.slot_->persistent = true;
}

void ParameterStore::draw(Parameter& parameter, std::uint64_t seed) {
  if (is_buffer(parameter) || device_.is_shape_only()) return;
  const RandomKey key{seed, 0, random_stream("initialize." + parameter.name_)};
  const Tensor host = device_.is_cpu() ? parameter.master_ : Tensor::empty(parameter.shape_, master_dtype());
  if (master_dtype() == DType::float64) {
    write_initial(host.data<double>(), parameter.shape_, parameter.initializer_, key);
  } else {
    write_initial(host.data<float>(), parameter.shape_, parameter.initializer_, key);
  }
  if (!device_.is_cpu()) parameter.master_.copy_from(host);
}

std::int64_t ParameterStore::trained_parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters_) count += is_trained(parameter) ? parameter.shape_.elements() : 0;
  return count;
}

std::int64_t ParameterStore::total_parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters_) count += is_buffer(parameter) ? 0 : parameter.shape_.elements();
  return count;
}

Tensor ParameterStore::slice(const Tensor& flat, const Parameter& parameter) const {
  require(is_trained(parameter), "{} is {}: only trained parameters have a place in the flat tensors", parameter.name_,
          is_frozen(parameter) ? "frozen" : "a buffer");
  return part_of(flat, parameter);
}

std::int64_t ParameterStore::offset(const Parameter& parameter) const {
  require(is_trained(parameter), "{} is {}: only trained parameters have a place in the flat tensors", parameter.name_,
          is_frozen(parameter) ? "frozen" : "a buffer");
  return parameter.offset_;
}

Tensor ParameterStore::part_of(const Tensor& flat, const Parameter& parameter) {
  return flat.narrow(0, parameter.offset_, parameter.shape_.elements()).reshape(parameter.shape_);
}

Parameter& ParameterStore::find(const std::string& name) {
  const auto found = by_name_.find(name);
  require(found != by_name_.end(), "no parameter is named {}", name);
  return *found->second;
}

void ParameterStore::forget_gradients() {
  for (Parameter& parameter : parameters_) {
    if (parameter.slot_) parameter.slot_->written = false;
  }
}

void ParameterStore::complete_gradients(const Stream& stream) {
  for (Parameter& parameter : parameters_) {
    if (!parameter.slot_ || parameter.slot_->written) continue;
    ops::fill(stream, parameter.gradient_, 0.0);
    parameter.slot_->written = true;
  }
}

void ParameterStore::refresh_compute_values(const Stream& stream) {
  if (!all_compute_values_.shares_memory_with(all_values_)) ops::convert(stream, all_compute_values_, all_values_);
}

void ParameterStore::on_gradient_final(std::function<void(Parameter&)> callback) {
  for (Parameter& parameter : parameters_) {
    if (!parameter.slot_) continue;
    if (callback) {
      parameter.slot_->on_final = [callback, &parameter] { callback(parameter); };
    } else {
      parameter.slot_->on_final = nullptr;
    }
  }
}

}  // namespace furlong
