#pragma once
// Problems for tests of furlong attend: files with tensors, and the results of the definitions in double precision.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "evaluation/attend/attend.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5.h"
#include "tests/reference/linear_attention.h"
#include "tests/reference/sequence_projection.h"
#include "tests/reference/softmax_attention.h"
#include "tests/reference/values.h"
#include "tests/temporary_folder.h"

namespace furlong::testing {

using reference::Matrix;
using reference::relative_difference;
using Datasets = std::map<std::string, std::pair<hdf5::Shape, std::vector<double>>>;

inline std::vector<double> normal(std::size_t n, const std::string& name, double scale = 1) {
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = scale * random_normal({5, 0, random_stream(name)}, i);
  return values;
}

/// Sizes and tensors of one problem, in the layout of the file.
struct Problem {
  std::size_t batch = 2, heads = 4, kv_heads = 2, n = 9, n_key = 9, d = 6, d_value = 5;
  Datasets data{};

  explicit Problem(std::size_t n_ = 9, std::size_t n_key_ = 9, double scale = 1) : n(n_), n_key(n_key_) {
    data["query"] = {{batch, heads, n, d}, normal(batch * heads * n * d, "q", scale)};
    data["key"] = {{batch, kv_heads, n_key, d}, normal(batch * kv_heads * n_key * d, "k", scale)};
    data["value"] = {{batch, kv_heads, n_key, d_value}, normal(batch * kv_heads * n_key * d_value, "v")};
    data["d_output"] = {{batch, heads, n, d_value}, normal(batch * heads * n * d_value, "g")};
  }
  const std::vector<double>& at(const std::string& name) const { return data.at(name).second; }
  /// One head's rows.
  Matrix rows(const std::string& name, std::size_t b, std::size_t h) const {
    const auto& [shape, values] = data.at(name);
    const std::size_t size = shape[2] * shape[3], start = (b * shape[1] + h) * size;
    return {values.begin() + static_cast<std::ptrdiff_t>(start),
            values.begin() + static_cast<std::ptrdiff_t>(start + size)};
  }
  std::vector<int> row_of(const std::string& name, std::size_t b) const {
    std::vector<int> row;
    for (std::size_t j = 0; data.count(name) && j < n_key; ++j)
      row.push_back(static_cast<int>(at(name)[b * n_key + j]));
    return row;
  }
  void mask_some() {
    std::vector<double> mask(batch * n_key, 1.0);
    for (std::size_t i = 0; i < mask.size(); i += 3) mask[i] = 0;
    data["mask"] = {{batch, n_key}, mask};
  }
  void two_documents() {
    std::vector<double> ids;
    for (std::size_t i = 0; i < batch * n_key; ++i) ids.push_back(i % n_key < 4 ? 70 : 9);
    data["documents"] = {{batch, n_key}, ids};
  }
  void random_projection(std::size_t rows) { data["random_projection"] = {{rows, d}, normal(rows * d, "w")}; }
};

/// Returns the output of sequence b and query head h: rows [n, d_value].
using Head = std::function<Matrix(const Problem&, std::size_t b, std::size_t h)>;
inline std::vector<double> all_heads(const Problem& p, const Head& head) {
  std::vector<double> output;
  for (std::size_t b = 0; b < p.batch; ++b) {
    for (std::size_t h = 0; h < p.heads; ++h) {
      const Matrix rows = head(p, b, h);
      output.insert(output.end(), rows.begin(), rows.end());
    }
  }
  return output;
}

inline Matrix softmax_rows(const Matrix& query, const Matrix& key, const Matrix& value, std::size_t n, std::size_t d,
                           std::size_t d_value, bool causal, std::int64_t window, const std::vector<int>& mask,
                           const std::vector<int>& documents) {
  reference::SoftmaxAttentionCase c;
  c.n_query = static_cast<std::int64_t>(n), c.n_key = static_cast<std::int64_t>(key.size() / d);
  c.d_key = static_cast<std::int64_t>(d), c.d_value = static_cast<std::int64_t>(d_value);
  c.causal = causal, c.window = window;
  c.keys.assign(mask.begin(), mask.end());
  c.documents.assign(documents.begin(), documents.end());
  return reference::softmax_attention(c, query, key, value).output;
}

inline Head softmax_head(const layers::AttentionConfig& config) {
  return [config](const Problem& p, std::size_t b, std::size_t h) {
    const std::size_t g = h / (p.heads / p.kv_heads);
    return softmax_rows(p.rows("query", b, h), p.rows("key", b, g), p.rows("value", b, g), p.n, p.d, p.d_value,
                        config.causal, config.window, p.row_of("mask", b), p.row_of("documents", b));
  };
}

inline Head linear_head(const layers::AttentionConfig& config) {
  return [config](const Problem& p, std::size_t b, std::size_t h) {
    const std::size_t g = h / (p.heads / p.kv_heads);
    const auto of_head = [&](const char* name, std::size_t width) {
      Matrix row;
      for (std::size_t i = 0; p.data.count(name) && i < width; ++i) row.push_back(p.at(name)[h * width + i]);
      return row;
    };
    reference::LinearAttentionCase c;
    c.features = {ops::feature_map_info(config.feature_map).map, config.map_options, static_cast<std::int64_t>(p.d)};
    if (p.data.count("random_projection")) {
      const auto& [shape, values] = p.data.at("random_projection");
      const std::size_t size = shape[shape.size() - 2] * p.d, start = shape.size() == 3 ? h * size : 0;
      c.features.n_projections = static_cast<std::int64_t>(shape[shape.size() - 2]);
      c.features.random_projection.assign(values.begin() + static_cast<std::ptrdiff_t>(start),
                                          values.begin() + static_cast<std::ptrdiff_t>(start + size));
    }
    if (p.data.count("oprf_a")) c.features.oprf_a = p.at("oprf_a")[h];
    c.n_query = static_cast<std::int64_t>(p.n), c.n_key = static_cast<std::int64_t>(p.n_key),
    c.d_value = static_cast<std::int64_t>(p.d_value);
    c.causal = config.causal;
    c.softmax_window = config.softmax_window;
    c.window = config.window;
    c.rms = config.normalizer == ops::Normalizer::rms;
    if (p.data.count("gate")) c.gate = p.at("gate")[h];
    c.query_center = of_head("query_center", p.d), c.key_center = of_head("key_center", p.d),
    c.scaling = of_head("scaling", p.d);
    c.mask = p.row_of("mask", b), c.documents = p.row_of("documents", b);
    return reference::linear_attention(c, p.rows("query", b, h), p.rows("key", b, g), p.rows("value", b, g));
  };
}

/// E and F in the layout of the file: one matrix for all heads, or one per head.
inline Head linformer_head(const layers::AttentionConfig& config, std::int64_t pooled) {
  return [=](const Problem& p, std::size_t b, std::size_t h) {
    const std::size_t g = h / (p.heads / p.kv_heads);
    const std::vector<int> mask = p.row_of("mask", b);
    const std::vector<std::int32_t> keys(mask.begin(), mask.end());
    const auto projected = [&](const char* name, const char* rows, std::size_t width) {
      ops::SequenceProjectionOptions options;
      options.kind = config.projection;
      options.projected_length = pooled, options.max_length = static_cast<std::int64_t>(p.n_key);
      std::vector<double> weight;
      if (options.kind != ops::SequenceProjection::mean) {
        const auto& [shape, values] = p.data.at(p.data.count(name) ? name : "key_projection");
        const std::size_t size = shape[shape.size() - 2] * shape.back(), start = shape.size() == 3 ? g * size : 0;
        weight.assign(values.begin() + static_cast<std::ptrdiff_t>(start),
                      values.begin() + static_cast<std::ptrdiff_t>(start + size));
        const auto stride = static_cast<std::int64_t>(shape.back());
        const bool linear = options.kind == ops::SequenceProjection::linear;
        options.projected_length =
            linear ? static_cast<std::int64_t>(shape[shape.size() - 2]) : (options.max_length + stride - 1) / stride;
        options.max_length = linear ? stride : options.projected_length * stride;
      }
      return reference::sequence_projection(p.rows(rows, b, g), weight, true, keys, 1, p.n_key, width, options);
    };
    const Matrix key = projected("key_projection", "key", p.d),
                 value = projected("value_projection", "value", p.d_value);
    return softmax_rows(p.rows("query", b, h), key, value, p.n, p.d, p.d_value, false, 0, {}, {});
  };
}

inline layers::AttentionConfig config_of(const char* mechanism, bool causal, std::int64_t window = 0) {
  layers::AttentionConfig config;
  config.mechanism = mechanism;
  config.causal = causal;
  config.chunk_size = 4;
  if (const auto place = layers::mechanism_info(mechanism).window) config.*place = window;
  return config;
}

class AttendTest : public WithTemporaryFolder {
 protected:
  void write(const Problem& p, const std::string& name = "in.h5") const {
    AtomicFile place(path(name));
    hdf5::File out = hdf5::File::create(place);
    for (const auto& [dataset, content] : p.data) {
      if (dataset == "mask") {
        const std::vector<std::uint8_t> mask(content.second.begin(), content.second.end());
        out.write(dataset, hdf5::Type::u8, content.first, mask.data());
      } else if (dataset == "documents") {
        std::vector<std::int64_t> ids;
        for (const double id : content.second) ids.push_back(static_cast<std::int64_t>(id) << 40);
        out.write(dataset, hdf5::Type::i64, content.first, ids.data());
      } else {
        out.write(dataset, hdf5::Type::f64, content.first, content.second.data());
      }
    }
    out.close();
    place.commit();
  }
  AttendOptions options(const layers::AttentionConfig& config = config_of("softmax", false),
                        DType dtype = DType::float64) const {
    AttendOptions result;
    result.input = path("in.h5");
    result.output = path("out.h5");
    result.config = config;
    result.dtype = dtype;
    return result;
  }
  std::vector<double> dataset(const std::string& name, const std::string& file = "out.h5") const {
    const hdf5::File in = hdf5::File::open(path(file));
    const hdf5::Dataset found = in.dataset(name);
    std::vector<double> values(hdf5::n_elements(found.shape()));
    if (found.type() == hdf5::Type::f64) {
      found.read(values.data(), values.size() * sizeof(double));
    } else {
      EXPECT_EQ(found.type(), hdf5::Type::f32);
      std::vector<float> floats(values.size());
      found.read(floats.data(), floats.size() * sizeof(float));
      values.assign(floats.begin(), floats.end());
    }
    return values;
  }
  hdf5::Shape shape_of(const std::string& name) const {
    const hdf5::File in = hdf5::File::open(path("out.h5"));
    return in.dataset(name).shape();
  }
  std::string refused(const AttendOptions& o) const {
    std::string message = message_of<UserError>([&] { attend(o); });
    EXPECT_FALSE(std::filesystem::exists(o.output));
    EXPECT_TRUE(partial_files(o.output).empty());
    return message;
  }
  /// Writes the problem, runs attend, and compares the output with the definition.
  void expect_output(const Problem& p, const AttendOptions& o, const Head& head, double tolerance) const {
    write(p);
    attend(o);
    EXPECT_EQ(shape_of("output"), (hdf5::Shape{p.batch, p.heads, p.n, p.d_value}));
    EXPECT_LT(relative_difference(dataset("output"), all_heads(p, head)), tolerance);
  }
  /// Compares some elements of d_NAME with fourth-order central differences of the definition.
  void expect_gradient(const Problem& p, const std::string& name, const Head& head) const {
    const std::vector<double> found = dataset("d_" + name);
    ASSERT_EQ(shape_of("d_" + name), p.data.at(name).first);
    const auto loss = [&](const Problem& changed) {
      const std::vector<double> output = all_heads(changed, head);
      double sum = 0;
      for (std::size_t i = 0; i < output.size(); ++i) sum += output[i] * p.at("d_output")[i];
      return sum;
    };
    double largest = 0;
    for (const double g : found) largest = std::max(largest, std::abs(g));
    ASSERT_GT(largest, 1e-3) << name;
    const double step = 1e-3;
    for (std::size_t i = 0; i < found.size(); i += 1 + found.size() / 12) {
      const auto at = [&](double offset) {
        Problem changed = p;
        changed.data[name].second[i] += offset;
        return loss(changed);
      };
      const double derivative = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
      EXPECT_NEAR(found[i], derivative, 1e-8 * largest)
          << "d_" << name << " " << i;  // the differences' own error is about step⁴ / 30 · f⁽⁵⁾
    }
  }
};

// n·d_value terms in float32 cost a few roundings each; float64 sums in another order than the reference.
// Measured: at most 1.2e-15 and 3.6e-7.
inline double tolerance_of(DType dtype) { return dtype == DType::float64 ? 1e-14 : 2e-6; }

}  // namespace furlong::testing
