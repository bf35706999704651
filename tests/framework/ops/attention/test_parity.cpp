// Comparison with other libraries: tests/parity/make_goldens.py ran them to create tests/parity/goldens/*.h5.
//
// In float64 both sides compute the same formulas and differ by the order of sums: a few hundred roundings of 1e-16,
// amplified by cancellation in gradients. In float32 each side has its own rounding errors: 1e-5 of the largest
// element. Libraries of linear attention add epsilons that Furlong does not have. The reference uses them and matches
// the goldens; the distance of the op itself is a measured bound.
#include <gtest/gtest.h>

#include "framework/io/hdf5.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "framework/ops/attention/linformer/sequence_projection.h"
#include "framework/ops/attention/softmax/softmax_attention.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/places.h"
#include "tests/reference/library_attention.h"

namespace furlong {
namespace {

using ops::FeatureMap;
using testing::relative_error;
using testing::tensor_of;
using testing::values_of;

struct Values {
  Shape shape;
  std::vector<double> values;
  Tensor as(DType dtype) const { return tensor_of(values, shape, dtype); }
};

Values read(const hdf5::Group& group, const std::string& name) {
  const hdf5::Dataset dataset = group.dataset(name);
  Values result;
  std::vector<std::int64_t> extents(dataset.shape().begin(), dataset.shape().end());
  for (const std::int64_t extent : extents) result.shape.push_back(extent);
  const auto load = [&]<class T>(std::type_identity<T>) {
    std::vector<T> values(hdf5::n_elements(dataset.shape()));
    dataset.read(values.data(), values.size() * sizeof(T));
    result.values.assign(values.begin(), values.end());
  };
  if (dataset.type() == hdf5::Type::f64) {
    load(std::type_identity<double>{});
  } else if (dataset.type() == hdf5::Type::i32) {
    load(std::type_identity<std::int32_t>{});
  } else {
    load(std::type_identity<float>{});
  }
  return result;
}

Tensor mask_of(const hdf5::Group& file) {
  const Values mask = read(file, "mask");
  return Tensor::from(std::vector<std::int32_t>(mask.values.begin(), mask.values.end()), mask.shape);
}

hdf5::File golden(const std::string& name) {
  return hdf5::File::open((testing::source_directory() / "tests/parity/goldens" / name).string());
}

struct Precision {
  const char* name;
  DType dtype;
  double tolerance;
};
constexpr Precision precisions[] = {{"f32", DType::float32, 1e-5}, {"f64", DType::float64, 1e-13}};

/// Runs `attention` on leaves of the named inputs and compares output and gradients with the library's.
using Attention = std::function<Variable(Tape&, const std::map<std::string, Variable>&)>;
void compare(const hdf5::Group& file, const std::string& case_name, const std::vector<std::string>& names,
             const Precision& precision, const Attention& attention) {
  SCOPED_TRACE(file.file_name() + ", " + case_name + ", " + precision.name);
  Tape tape{Stream{}};
  std::map<std::string, Variable> leaves;
  for (const std::string& name : names) leaves[name] = Variable::leaf(read(file, name).as(precision.dtype));
  const Variable output = attention(tape, leaves);
  tape.backward({output}, {read(file, "d_output").as(precision.dtype)});
  const hdf5::Group expected = file.group(case_name + "/" + precision.name);
  EXPECT_LT(relative_error(values_of(output.value()), read(expected, "output").values), precision.tolerance)
      << "output";
  for (const std::string& name : names) {
    if (!expected.has("d_" + name)) continue;  // a library with shared projections has fewer inputs
    EXPECT_LT(relative_error(values_of(leaves[name].gradient()), read(expected, "d_" + name).values),
              precision.tolerance)
        << "d_" << name;
  }
}

/// What a library adds to the definition of linear attention, and the maximum distance of our op, which adds nothing,
/// from its goldens: the largest difference over the largest element, for output and gradients.
struct Library {
  const char* file;
  FeatureMap map;
  double input_scale, feature_epsilon, sum_epsilon, denominator_epsilon;  // sum_epsilon: causal only
  bool subtract_maximum, mask_features;
  double distance;
};
const double fourth_root_of_d = std::pow(3.0, 0.25);
const Library libraries[] = {
    {"performer_pytorch_softmax.h5", FeatureMap::favor_positive, 1, 1e-4, 1e-6, 0, true, false, 1},
    {"performer_pytorch_relu.h5", FeatureMap::favor_relu, 1, 1e-3, 1e-6, 0, false, false, 3e-6},
    {"fast_transformers_elu.h5", FeatureMap::elu1, 1, 0, 0, 1e-6, false, true, 2e-6},
    {"fast_transformers_favor.h5", FeatureMap::favor_hyperbolic, 1, 0, 0, 1e-6, false, true, 8e-6},
    {"fast_transformers_generalized.h5", FeatureMap::favor_relu, fourth_root_of_d, 0, 0, 1e-6, false, true, 1.1e-5},
    {"fast_transformers_cross.h5", FeatureMap::favor_hyperbolic, 1, 0, 0, 1e-6, false, true, 5e-8}};

class LibraryParity : public ::testing::TestWithParam<Library> {
 protected:
  static constexpr std::int64_t heads = 2;

  /// Calls body for each case of the file.
  template <class Body>
  void for_each_case(const Body& body) const {
    const hdf5::File file = golden(GetParam().file);
    std::size_t cases = 0;
    for (const auto& member : file.members()) {
      if (member.kind != hdf5::Kind::group) continue;
      ++cases;
      SCOPED_TRACE(file.file_name() + ", " + member.name);
      body(file, member.name, file.group(member.name));
    }
    EXPECT_GE(cases, std::string(GetParam().file) == "fast_transformers_cross.h5" ? 1u : 4u);
  }
};

/// Returns the columns of one head in one sequence of [batch, n, heads·width].
std::vector<double> head_of(const Values& all, std::int64_t sequence, std::int64_t head, std::int64_t heads) {
  const std::int64_t n = all.shape[1], width = all.shape[2] / heads;
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto first = all.values.begin() + ((sequence * n + i) * heads + head) * width;
    values.insert(values.end(), first, first + width);
  }
  return values;
}

TEST_P(LibraryParity, ReferenceWithLibraryEpsilonsMatchesOutputs) {
  const Library& library = GetParam();
  for_each_case([&](const hdf5::Group& file, const std::string& name, const hdf5::Group& group) {
    const Values query = read(file, "query"), key = read(file, "key"), value = read(file, "value"),
                 expected = read(file, name + "/f64/output");
    reference::LibraryAttentionCase c;
    c.n_query = query.shape[1], c.n_key = key.shape[1], c.d_value = value.shape[2] / heads;
    c.features.map = library.map;
    c.features.options.kernel_epsilon = 0;
    c.features.d = query.shape[2] / heads;
    if (file.has("directions")) c.features.random_projection = read(file, "directions").values;
    c.features.n_projections = static_cast<std::int64_t>(c.features.random_projection.size()) / c.features.d;
    c.causal = group.integer("causal") != 0;
    c.input_scale = library.input_scale;
    c.feature_epsilon = library.feature_epsilon;
    c.sum_epsilon = c.causal ? library.sum_epsilon : 0;
    c.denominator_epsilon = library.denominator_epsilon;
    c.subtract_maximum = library.subtract_maximum;
    c.subtract_norm = group.has_attribute("stabilize") && group.integer("stabilize") != 0;
    c.mask_features = library.mask_features;
    for (std::int64_t sequence = 0; sequence < query.shape[0]; ++sequence) {
      if (group.integer("masked") != 0) {
        const Values mask = read(file, "mask");
        c.mask.assign(mask.values.begin() + sequence * c.n_key, mask.values.begin() + (sequence + 1) * c.n_key);
      }
      for (std::int64_t head = 0; head < heads; ++head) {
        const auto of = [&](const Values& all) { return head_of(all, sequence, head, heads); };
        EXPECT_LT(relative_error(reference::library_attention_output(c, of(query), of(key), of(value)), of(expected)),
                  1e-13)
            << "sequence " << sequence << ", head " << head;
      }
    }
  });
}

/// Only cases in which no masked key counts. An epsilon added to exponentials, or to a denominator after features were
/// divided by a maximum, is no longer small: docs/internals/numerics.md has the measured distances.
TEST_P(LibraryParity, LinearAttentionDiffersOnlyByEpsilons) {
  const Library& library = GetParam();
  for_each_case([&](const hdf5::Group& file, const std::string& name, const hdf5::Group& group) {
    const bool masked = group.integer("masked") != 0;
    if (masked && !library.mask_features) return;
    ops::LinearAttentionOptions options;
    options.feature_map = library.map;
    options.map_options.kernel_epsilon = library.feature_epsilon;
    options.n_heads = options.n_kv_heads = heads;
    options.causal = group.integer("causal") != 0;
    ops::LinearAttentionInputs inputs;
    if (masked) inputs.mask.keys = mask_of(file);
    if (file.has("directions")) {
      Values random_projection = read(file, "directions");
      for (double& value : random_projection.values) value *= library.input_scale;
      inputs.constants.random_projection = random_projection.as(DType::float64);
    }
    const auto attention = [&](Tape& tape, const std::map<std::string, Variable>& leaves) {
      inputs.query = leaves.at("query"), inputs.key = leaves.at("key"), inputs.value = leaves.at("value");
      return ops::linear_attention(tape, inputs, options);
    };
    const bool stabilized = group.has_attribute("stabilize") && group.integer("stabilize") != 0;
    if (!library.subtract_maximum && !stabilized) {
      compare(file, name, {"query", "key", "value"}, {"f64", DType::float64, library.distance}, attention);
      return;
    }
    Tape tape{Stream{}};
    std::map<std::string, Variable> constants;
    for (const char* input : {"query", "key", "value"})
      constants[input] = Variable(read(file, input).as(DType::float64));
    const double distance =
        relative_error(values_of(attention(tape, constants).value()), read(file, name + "/f64/output").values);
    EXPECT_GT(distance, 0.25);
    EXPECT_LT(distance, 1.3);
  });
}

INSTANTIATE_TEST_SUITE_P(Files, LibraryParity, ::testing::ValuesIn(libraries), [](const auto& info) {
  const std::string name = info.param.file;
  return name.substr(0, name.find('.'));
});

/// Linformer is three ops: E along the keys, F along the values, and exact attention over the resulting r rows. With
/// `share_kv` the library uses projected keys as values too.
TEST(LinformerParity, OutputsAndGradientsMatchLibrary) {
  for (const char* name : {"linformer_heads.h5", "linformer_one_kv_head.h5"}) {
    const hdf5::File file = golden(name);
    for (const char* case_name : {"separate", "shared"}) {
      const hdf5::Group group = file.group(case_name);
      const bool shared = group.integer("share_kv") != 0;
      for (const Precision& precision : precisions) {
        compare(file, case_name, {"query", "key", "value", "E", "F"}, precision,
                [&](Tape& tape, const std::map<std::string, Variable>& inputs) {
                  ops::SequenceProjectionOptions projection;
                  projection.n_heads = group.integer("kv_heads");
                  projection.projected_length = inputs.at("E").extent(0);
                  projection.max_length = inputs.at("E").extent(1);
                  const Variable key = ops::sequence_projection(tape, inputs.at("key"), inputs.at("E"), {}, projection);
                  const Variable value = ops::sequence_projection(tape, inputs.at(shared ? "key" : "value"),
                                                                  inputs.at(shared ? "E" : "F"), {}, projection);
                  ops::SoftmaxAttentionOptions options;
                  options.n_heads = 2;
                  options.n_kv_heads = projection.n_heads;
                  options.causal = false;
                  return ops::softmax_attention(tape, inputs.at("query"), key, value, options);
                });
      }
    }
  }
}

}  // namespace
}  // namespace furlong
