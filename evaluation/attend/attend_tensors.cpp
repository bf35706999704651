#include "evaluation/attend/attend_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "framework/config/nearest.h"
#include "framework/core/parallel.h"
#include "framework/core/printable.h"
#include "framework/io/foreign_hdf5.h"
#include "framework/ops/attention/linformer/sequence_projection.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/dispatch.h"

namespace furlong {
namespace {

const std::vector<std::string>& known_datasets() {
  static const std::vector<std::string> names{
      "query",  "key",     "value",        "d_output",   "mask", "documents",      "random_projection",
      "oprf_a", "scaling", "query_center", "key_center", "gate", "key_projection", "value_projection"};
  return names;
}

constexpr const char* former_projection_name = "directions";  // still accepted in inputs

std::string text_of(const hdf5::Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

template <class Stored>
std::vector<Stored> elements(const hdf5::ForeignDataset& dataset) {
  std::vector<Stored> values(static_cast<std::size_t>(hdf5::n_elements(dataset.shape())));
  dataset.read(values.data(), values.size() * sizeof(Stored));
  return values;
}

/// Calls body(vector) with the elements in their stored type. Returns false if that is not a floating type.
template <class Body>
bool with_floating_elements(const hdf5::ForeignDataset& dataset, const Body& body) {
  switch (dataset.type()) {
    case hdf5::Type::f32:
      body(elements<float>(dataset));
      return true;
    case hdf5::Type::f64:
      body(elements<double>(dataset));
      return true;
    case hdf5::Type::bf16:
      body(elements<bfloat16>(dataset));
      return true;
    default:
      return false;
  }
}

template <class Body>
bool with_integer_elements(const hdf5::ForeignDataset& dataset, const Body& body) {
  switch (dataset.type()) {
    case hdf5::Type::u8:
      body(elements<std::uint8_t>(dataset));
      return true;
    case hdf5::Type::u16:
      body(elements<std::uint16_t>(dataset));
      return true;
    case hdf5::Type::u32:
      body(elements<std::uint32_t>(dataset));
      return true;
    case hdf5::Type::i32:
      body(elements<std::int32_t>(dataset));
      return true;
    case hdf5::Type::u64:
      body(elements<std::uint64_t>(dataset));
      return true;
    case hdf5::Type::i64:
      body(elements<std::int64_t>(dataset));
      return true;
    default:
      return false;
  }
}

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, bfloat16>) {
    return bfloat16(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

/// Reads datasets of one file. Errors name the file and the dataset.
class InputFile {
 public:
  InputFile(const std::string& path, DType dtype, const Device& device)
      : path_(path), dtype_(dtype), device_(device), file_(hdf5::ForeignFile::open(path)) {
    for (const hdf5::Group::Member& member : file_->members()) {
      if (std::find(known_datasets().begin(), known_datasets().end(), member.name) != known_datasets().end()) continue;
      const std::string near = config::nearest(member.name, known_datasets());
      if (!near.empty())
        throw UserError("{}: unknown dataset '{}'; did you mean {}? Known datasets are {}", path_,
                        foreign::printable(member.name), near, fmt::join(known_datasets(), ", "));
    }
  }

  bool has(const std::string& name) const { return file_->has(name); }

  /// Returns the shape of a required dataset. Checks that it has as many dimensions as `expected`, all of them not
  /// empty.
  hdf5::Shape shape(const std::string& name, const char* expected) {
    if (!has(name)) throw UserError("{}: HDF5 dataset '{}' is missing; expected shape {}", path_, name, expected);
    const hdf5::ForeignDataset dataset = open(name);
    const hdf5::Shape found = dataset.shape();
    if (found.size() !=
        static_cast<std::size_t>(std::count(expected, expected + std::string_view(expected).size(), ',')) + 1)
      throw UserError("{}: HDF5 dataset '{}' has shape {}, expected {}", path_, name, text_of(found), expected);
    for (const std::uint64_t extent : found) {
      if (extent == 0)
        throw UserError("{}: HDF5 dataset '{}' has shape {} and is empty; expected {}", path_, name, text_of(found),
                        expected);
    }
    return found;
  }

  void expect_shape(const std::string& name, const std::vector<Shape>& allowed, const std::string& meaning) {
    const hdf5::Shape found = open(name).shape();
    std::string expected;
    for (const Shape& shape : allowed) {
      if (std::equal(found.begin(), found.end(), shape.begin(), shape.end(),
                     [](std::uint64_t a, std::int64_t b) { return static_cast<std::int64_t>(a) == b; }))
        return;
      expected += (expected.empty() ? "" : " or ") + shape.text();
    }
    throw UserError("{}: HDF5 dataset '{}' has shape {}, expected {}: {}", path_, name, text_of(found), expected,
                    meaning);
  }

  hdf5::Shape shape_of(const std::string& name) { return open(name).shape(); }
  /// Returns the number of rows of a matrix or of stacked matrices. Returns 1 for fewer dimensions, which
  /// expect_shape() then reports.
  std::int64_t second_to_last_extent(const std::string& name) {
    const hdf5::Shape shape = shape_of(name);
    return shape.size() < 2 ? 1 : std::max<std::int64_t>(1, static_cast<std::int64_t>(shape[shape.size() - 2]));
  }

  /// Reads [batch, heads, n, width] as [batch, n, heads·width] in the storage type.
  Tensor by_tokens(const std::string& name) {
    const hdf5::ForeignDataset dataset = open(name);
    const auto extent = [&](std::size_t i) { return static_cast<std::int64_t>(dataset.shape()[i]); };
    const std::int64_t batch = extent(0), heads = extent(1), n = extent(2), width = extent(3);
    Tensor tensor;
    with_floating(dataset, [&](const auto& source) {
      ops::with_float_type(dtype_, "attend", [&](auto type) {
        using T = typename decltype(type)::type;
        std::vector<T> values(source.size());
        parallel_ranges(batch * n, 64, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            for (std::int64_t h = 0; h < heads; ++h) {
              const auto* from = source.data() + ((row / n * heads + h) * n + row % n) * width;
              T* to = values.data() + (row * heads + h) * width;
              for (std::int64_t c = 0; c < width; ++c) to[c] = converted<T>(from[c]);
            }
          }
        });
        tensor = Tensor::from(values, {batch, n, heads * width}, device_);
      });
    });
    read_.push_back(name);
    return tensor;
  }

  /// Reads a constant in its own shape, as float32, or as float64 if the storage type is float64.
  Tensor constant(const std::string& name) { return unchanged(name, accumulate_dtype(dtype_)); }
  /// Reads a constant and checks each number with `allows`.
  template <class Allows>
  Tensor constant_in(const std::string& name, const Allows& allows, const char* expected) {
    with_floating(open(name), [&](const auto& source) {
      for (const auto value : source) {
        if (const double number = converted<double>(value); !allows(number))
          throw UserError("{}: HDF5 dataset '{}' contains {}; expected numbers {}", path_, name, number, expected);
      }
    });
    return constant(name);
  }
  /// Reads a weight in its own shape and the storage type.
  Tensor weight(const std::string& name) { return unchanged(name, dtype_); }

  Tensor key_mask(const std::string& name, const Shape& shape) {
    return integers(name, shape, [&](const auto& source, std::vector<std::int32_t>& values) {
      for (std::size_t i = 0; i < source.size(); ++i) {
        if (source[i] != 0 && source[i] != 1)
          throw UserError("{}: HDF5 dataset '{}' contains {}; expected 1 for visible keys and 0 for masked keys", path_,
                          name, source[i]);
        values[i] = static_cast<std::int32_t>(source[i]);
      }
    });
  }

  /// Numbers the runs of equal ids from 0, so that ids can have any value.
  Tensor documents(const std::string& name, const Shape& shape) {
    return integers(name, shape, [&](const auto& source, std::vector<std::int32_t>& values) {
      for (std::size_t i = 1; i < source.size(); ++i) {
        const bool row_begins = static_cast<std::int64_t>(i) % shape[1] == 0;
        values[i] = row_begins ? 0 : values[i - 1] + (source[i] != source[i - 1] ? 1 : 0);
      }
    });
  }

  const std::string& path() const { return path_; }
  std::vector<std::string> take_read() { return std::move(read_); }

 private:
  Tensor unchanged(const std::string& name, DType dtype) {
    const hdf5::ForeignDataset dataset = open(name);
    Shape shape;
    for (const std::uint64_t extent : dataset.shape()) shape.push_back(static_cast<std::int64_t>(extent));
    Tensor tensor;
    with_floating(dataset, [&](const auto& source) {
      ops::with_float_type(dtype, "attend", [&](auto type) {
        using T = typename decltype(type)::type;
        std::vector<T> values;
        values.reserve(source.size());
        for (const auto value : source) {
          if (!std::isfinite(converted<double>(value)))
            throw UserError("{}: HDF5 dataset '{}' contains NaN or infinity; expected finite values", path_, name);
          values.push_back(converted<T>(value));
        }
        tensor = Tensor::from(values, shape, device_);
      });
    });
    read_.push_back(name);
    return tensor;
  }

  hdf5::ForeignDataset open(const std::string& name) {
    try {
      return file_->dataset(name);
    } catch (const UserError& error) {
      if (name == "mask") throw UserError("{}; store masks as uint8", error.what());
      throw UserError("{}; expected a dataset of {}", error.what(),
                      name == "documents" ? "int32 or int64" : "float32 or float64");
    }
  }

  template <class Body>
  void with_floating(const hdf5::ForeignDataset& dataset, const Body& body) {
    if (!with_floating_elements(dataset, body))
      throw UserError("{}: HDF5 dataset '{}' has type {}; expected float32, float64 or bfloat16", path_,
                      dataset.path().substr(1), hdf5::name_of(dataset.type()));
  }

  template <class Fill>
  Tensor integers(const std::string& name, const Shape& shape, const Fill& fill) {
    expect_shape(name, {shape}, "batch and number of keys");
    const hdf5::ForeignDataset dataset = open(name);
    std::vector<std::int32_t> values(static_cast<std::size_t>(shape.elements()));
    if (!with_integer_elements(dataset, [&](const auto& source) { fill(source, values); }))
      throw UserError("{}: HDF5 dataset '{}' has type {}; expected integers", path_, name,
                      hdf5::name_of(dataset.type()));
    read_.push_back(name);
    return Tensor::from(values, shape, device_);
  }

  std::string path_;
  DType dtype_;
  Device device_;
  std::shared_ptr<hdf5::ForeignFile> file_;
  std::vector<std::string> read_;
};

void read_query_key_value(InputFile& file, const layers::AttentionConfig& config, AttendTensors& found) {
  const hdf5::Shape query = file.shape("query", "[batch, heads, n, d]");
  const hdf5::Shape key = file.shape("key", "[batch, heads, n_key, d]");
  const hdf5::Shape value = file.shape("value", "[batch, heads, n_key, d_value]");
  const auto size = [](std::uint64_t extent) { return static_cast<std::int64_t>(extent); };
  found.batch = size(query[0]), found.n_heads = size(query[1]), found.n = size(query[2]), found.d = size(query[3]);
  found.n_kv_heads = size(key[1]), found.n_key = size(key[2]), found.d_value = size(value[3]);
  if (found.n_heads % found.n_kv_heads != 0)
    throw UserError(
        "{}: HDF5 dataset 'key' has {} heads, 'query' has {}; the number of key heads must divide that of query heads",
        file.path(), found.n_kv_heads, found.n_heads);
  file.expect_shape("key", {{found.batch, found.n_kv_heads, found.n_key, found.d}}, "batch and d of 'query'");
  file.expect_shape("value", {{found.batch, found.n_kv_heads, found.n_key, found.d_value}},
                    "batch, heads and n of 'key'");
  if (found.n != found.n_key && (config.causal || layers::mechanism_info(config.mechanism).window_in(config) > 0)) {
    throw UserError("{}: HDF5 dataset 'key' has {} tokens, 'query' has {}; {} requires equal numbers", file.path(),
                    found.n_key, found.n, config.causal ? "--causal" : "--window");
  }
  found.query = file.by_tokens("query");
  found.key = file.by_tokens("key");
  found.value = file.by_tokens("value");
}

void read_masks(InputFile& file, const layers::AttentionConfig& config, AttendTensors& found) {
  if (file.has("mask")) found.mask.keys = file.key_mask("mask", {found.batch, found.n_key});
  if (!file.has("documents")) return;
  if (found.n != found.n_key)
    throw UserError("{}: HDF5 dataset 'documents' requires as many queries as keys; found {} and {}", file.path(),
                    found.n, found.n_key);
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  if (!mechanism.separates_documents)
    throw UserError("{}: HDF5 dataset 'documents': {} cannot separate documents, because {}; use softmax or linear",
                    file.path(), mechanism.name, mechanism.limits);
  found.mask.documents = file.documents("documents", {found.batch, found.n_key});
}

void read_feature_constants(InputFile& file, const layers::AttentionConfig& config, AttendTensors& found) {
  const ops::FeatureMapInfo& info = ops::feature_map_info(config.feature_map);
  ops::LinearAttentionConstants& constants = found.constants;
  if (const char* const name = file.has("random_projection") ? "random_projection" : former_projection_name;
      info.needs_random_projection && file.has(name)) {
    // The file determines the number of rows.
    const std::int64_t rows = file.second_to_last_extent(name);
    file.expect_shape(name, {{rows, found.d}, {found.n_heads, rows, found.d}},
                      "rows of width d, for all heads or for each head");
    constants.random_projection = file.constant(name);
    found.projection_name = name;
  }
  if (info.needs_oprf_a) {
    if (!file.has("oprf_a")) {
      throw UserError(
          "{}: HDF5 dataset 'oprf_a' is missing; expected shape [{}], oprf's constant of each head, at most 0 (0: "
          "favor_positive)",
          file.path(), found.n_heads);
    }
    file.expect_shape("oprf_a", {{found.n_heads}}, "one constant for each query head");
    constants.oprf_a = file.constant_in(
        "oprf_a", [](double a) { return a <= 0; }, "at most 0");
  }
  for (const auto& [name, tensor] :
       {std::pair{"query_center", &constants.query_center}, std::pair{"key_center", &constants.key_center},
        std::pair{"scaling", &constants.scaling}}) {
    if (!file.has(name)) continue;
    if (!info.estimates_softmax) {
      throw UserError(
          "{}: HDF5 dataset '{}' applies only to feature maps that estimate softmax, not to {}; remove it, or use a "
          "map such as favor_positive",
          file.path(), name, info.name);
    }
    file.expect_shape(name, {{found.n_heads, found.d}}, "one row of width d for each query head");
    *tensor = std::string_view(name) == "scaling" ? file.constant_in(
                                                        name, [](double x) { return x > 0; }, "above 0")
                                                  : file.constant(name);
  }
}

void read_mean_pooling(const InputFile& file, std::int64_t pooled_length, AttendTensors& found) {
  if (pooled_length < 1) throw UserError("--projection mean requires a number of rows; add --projected-length R");
  if (pooled_length > found.n_key)
    throw UserError("--projected-length {}: {} has {} keys; expected at most as many rows", pooled_length, file.path(),
                    found.n_key);
  found.projected_length = pooled_length;
  found.max_length = found.n_key;
}

void read_linear_projection(InputFile& file, const std::string& name, AttendTensors& found, Tensor& weight) {
  const hdf5::Shape shape = file.shape_of(name);
  const std::int64_t rows = file.second_to_last_extent(name),
                     columns = shape.empty() ? 0 : static_cast<std::int64_t>(shape.back());
  const std::int64_t r = found.projected_length > 0 ? found.projected_length : rows;
  const std::int64_t longest = std::max(found.max_length > 0 ? found.max_length : columns, found.n_key);
  file.expect_shape(name, {{r, longest}, {found.n_kv_heads, r, longest}},
                    fmt::format("r rows with at least {} columns, one per key, for all heads or for each head of 'key'",
                                found.n_key));
  if (r > longest)
    throw UserError("{}: HDF5 dataset '{}' has {} rows and {} columns; expected at most as many rows as columns",
                    file.path(), name, r, longest);
  found.projected_length = r;
  found.max_length = longest;
  weight = file.weight(name);
}

void read_convolution(InputFile& file, const std::string& name, std::int64_t width, AttendTensors& found,
                      Tensor& weight) {
  const hdf5::Shape shape = file.shape_of(name);
  const std::int64_t columns = shape.empty() ? 1 : std::max<std::int64_t>(1, static_cast<std::int64_t>(shape.back()));
  const std::int64_t stride = found.projected_length > 0 ? found.max_length / found.projected_length : columns;
  file.expect_shape(name, {{width, stride}, {found.n_kv_heads, width, stride}},
                    "one filter per channel, as wide as the stride, for all heads or for each head of 'key'");
  found.projected_length = (found.n_key + stride - 1) / stride;
  found.max_length = found.projected_length * stride;
  weight = file.weight(name);
}

void read_projections(InputFile& file, const layers::AttentionConfig& config, std::int64_t pooled_length,
                      AttendTensors& found) {
  const ops::SequenceProjection kind = config.projection;
  if (kind == ops::SequenceProjection::mean) return read_mean_pooling(file, pooled_length, found);
  const bool linear = kind == ops::SequenceProjection::linear;
  if (!file.has("key_projection")) {
    throw UserError(
        "{}: HDF5 dataset 'key_projection' is missing; expected shape {}, for all heads or for each (or use "
        "--projection mean, which has no weights)",
        file.path(), linear ? fmt::format("[r, {}]", found.n_key) : fmt::format("[{}, stride]", found.d));
  }
  const bool shared = !file.has("value_projection");
  if (linear) {
    read_linear_projection(file, "key_projection", found, found.key_projection);
    if (!shared) read_linear_projection(file, "value_projection", found, found.value_projection);
    return;
  }
  if (shared && found.d != found.d_value) {
    throw UserError(
        "{}: HDF5 dataset 'value_projection' is missing, and 'key_projection' has {} channels but values have {}",
        file.path(), found.d, found.d_value);
  }
  read_convolution(file, "key_projection", found.d, found, found.key_projection);
  if (!shared) read_convolution(file, "value_projection", found.d_value, found, found.value_projection);
}

hdf5::Shape file_shape(const Shape& shape) {
  hdf5::Shape result;
  for (const std::int64_t extent : shape) result.push_back(static_cast<std::uint64_t>(extent));
  return result;
}

template <class T>
std::vector<T> by_heads(const Tensor& tensor, std::int64_t heads) {
  const std::int64_t batch = tensor.extent(0), n = tensor.extent(1), width = tensor.extent(2) / heads;
  const auto source = tensor.to_vector<T>();
  std::vector<T> values(source.size());
  parallel_ranges(batch * n, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t h = 0; h < heads; ++h)
        std::copy_n(source.data() + (row * heads + h) * width, width,
                    values.data() + ((row / n * heads + h) * n + row % n) * width);
    }
  });
  return values;
}

/// Converts to the type of files: float64 stays, all others become float32.
Tensor in_file_type(const Tensor& tensor) {
  const DType wanted = accumulate_dtype(tensor.dtype());
  if (wanted == tensor.dtype()) return tensor;
  const Tensor result = Tensor::empty(tensor.shape(), wanted, tensor.device());
  ops::convert(Stream{tensor.device()}, result, tensor);
  return result;
}

}  // namespace

AttendTensors read_attend_tensors(const std::string& path, const layers::AttentionConfig& config, DType dtype,
                                  bool gradients, std::int64_t pooled_length, const Device& device) {
  InputFile file(path, dtype, device);
  AttendTensors found;
  read_query_key_value(file, config, found);
  read_masks(file, config, found);
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  if (mechanism.has_features) read_feature_constants(file, config, found);
  if (mechanism.projects_sequence) read_projections(file, config, pooled_length, found);
  if (mechanism.is_hybrid && file.has("gate")) {
    file.expect_shape("gate", {{found.n_heads}}, "one number for each query head");
    found.gate = file.constant("gate");
  }
  if (gradients) {
    if (!file.has("d_output")) {
      throw UserError(
          "{}: HDF5 dataset 'd_output' is missing; expected shape [{}, {}, {}, {}], the gradient of the output for "
          "--gradients (ones for the sum of the output)",
          path, found.batch, found.n_heads, found.n, found.d_value);
    }
    file.expect_shape("d_output", {{found.batch, found.n_heads, found.n, found.d_value}}, "the shape of the output");
    found.d_output = file.by_tokens("d_output");
  }
  found.read = file.take_read();
  return found;
}

void write_by_heads(hdf5::Group& file, const std::string& name, const Tensor& tensor, std::int64_t heads) {
  const Tensor source = in_file_type(tensor);
  const Shape shape{source.extent(0), heads, source.extent(1), source.extent(2) / heads};
  if (source.dtype() == DType::float64)
    file.write(name, hdf5::Type::f64, file_shape(shape), by_heads<double>(source, heads).data());
  else
    file.write(name, hdf5::Type::f32, file_shape(shape), by_heads<float>(source, heads).data());
}

void write_unchanged(hdf5::Group& file, const std::string& name, const Tensor& tensor) {
  const Tensor source = in_file_type(tensor);
  if (source.dtype() == DType::float64)
    file.write(name, hdf5::Type::f64, file_shape(source.shape()), source.to_vector<double>().data());
  else
    file.write(name, hdf5::Type::f32, file_shape(source.shape()), source.to_vector<float>().data());
}

}  // namespace furlong
