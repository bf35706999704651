// Against other libraries: tests/parity/goldens/*.h5 were made by running them (tests/parity/make_goldens.py).
//
// In float64 both sides compute the same formulas: what is left is the order of sums, a few hundred roundings of 1e-16
// under the cancellation of gradients. In float32 each side has its own rounding errors; 1e-5 of the largest element is
// what the modes promise.
#include <gtest/gtest.h>

#include "framework/io/hdf5.h"
#include "framework/ops/attention/compat/compat_attention.h"
#include "framework/ops/attention/linformer/sequence_projection.h"
#include "framework/ops/attention/softmax/softmax_attention.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/places.h"

namespace furlong {
namespace {

using ops::Compat;
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

/// Runs `attention` on leaves of the named inputs and compares output and gradients with what the library gave.
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

struct CompatFile {
  const char* file;
  Compat library;
  FeatureMap map;
};
const CompatFile compat_files[] = {
    {"performer_pytorch_softmax.h5", Compat::performer_pytorch, FeatureMap::favor_positive},
    {"performer_pytorch_relu.h5", Compat::performer_pytorch, FeatureMap::favor_relu},
    {"fast_transformers_elu.h5", Compat::fast_transformers, FeatureMap::elu1},
    {"fast_transformers_favor.h5", Compat::fast_transformers, FeatureMap::favor_hyperbolic},
    {"fast_transformers_generalized.h5", Compat::fast_transformers, FeatureMap::favor_relu},
    {"fast_transformers_cross.h5", Compat::fast_transformers, FeatureMap::favor_hyperbolic}};

class CompatParity : public ::testing::TestWithParam<CompatFile> {};

TEST_P(CompatParity, OutputsAndGradientsAreTheLibrarys) {
  const hdf5::File file = golden(GetParam().file);
  std::size_t cases = 0;
  for (const auto& member : file.members()) {
    if (member.kind != hdf5::Kind::group) continue;
    ++cases;
    const hdf5::Group group = file.group(member.name);
    ops::CompatAttentionOptions options;
    options.library = GetParam().library;
    options.feature_map = GetParam().map;
    options.n_heads = options.n_kv_heads = 2;
    options.causal = group.integer("causal") != 0;
    options.stabilize = group.has_attribute("stabilize") && group.integer("stabilize") != 0;
    ops::AttentionMask mask;
    if (group.integer("masked") != 0) mask.keys = mask_of(file);
    for (const Precision& precision : precisions) {
      Tensor directions;
      if (file.has("directions")) directions = read(file, "directions").as(precision.dtype);
      compare(file, member.name, {"query", "key", "value"}, precision,
              [&](Tape& tape, const std::map<std::string, Variable>& inputs) {
                return ops::compat_attention(tape, inputs.at("query"), inputs.at("key"), inputs.at("value"), directions,
                                             mask, options);
              });
    }
  }
  EXPECT_GE(cases, std::string(GetParam().file) == "fast_transformers_cross.h5" ? 1u : 4u);
}

INSTANTIATE_TEST_SUITE_P(Files, CompatParity, ::testing::ValuesIn(compat_files), [](const auto& info) {
  const std::string name = info.param.file;
  return name.substr(0, name.find('.'));
});

/// Linformer is three ops: E along the keys, F along the values, and exact attention over the r rows that come out.
/// With `share_kv` the library takes projected keys for values too.
TEST(LinformerParity, OutputsAndGradientsAreTheLibrarys) {
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
