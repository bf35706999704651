// furlong attend: all mechanisms, compared with the definitions in double precision.
#include "tests/evaluation/attend/attend_testing.h"

namespace furlong {
namespace {

using namespace testing;

TEST_F(AttendTest, SoftmaxWithMasksWindowsAndDocuments) {
  for (const DType dtype : {DType::float64, DType::float32}) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t window : {0, 3}) {
        const layers::AttentionConfig config = config_of("softmax", causal, window);
        Problem p;
        expect_output(p, options(config, dtype), softmax_head(config), tolerance_of(dtype));
        p.mask_some();
        p.two_documents();
        expect_output(p, options(config, dtype), softmax_head(config), tolerance_of(dtype));
      }
    }
  }
  const Problem cross(5, 11);
  expect_output(cross, options(), softmax_head(config_of("softmax", false)), tolerance_of(DType::float64));
}

TEST_F(AttendTest, EveryFeatureMap) {
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, {}", info.name, causal ? "causal" : "bidirectional"));
      layers::AttentionConfig config = config_of("linear", causal);
      config.feature_map = info.name;
      // Small entries with a common part keep the denominators of signed maps away from zero, where rounding errors
      // would dominate.
      Problem p(9, causal ? 9 : 12, 0.3);
      for (const char* name : {"query", "key"}) {
        for (double& x : p.data[name].second) x += 0.3;
      }
      if (info.needs_random_projection) p.random_projection(14);
      if (info.map == ops::FeatureMap::oprf) p.data["oprf_a"] = {{4}, {0, -0.05, -0.1, -0.2}};
      if (causal) p.two_documents();
      p.mask_some();
      expect_output(p, options(config), linear_head(config), tolerance_of(DType::float64));
      attend(options(config, DType::float32));
      EXPECT_LT(relative_difference(dataset("output"), all_heads(p, linear_head(config))),
                tolerance_of(DType::float32));
    }
  }
}

TEST_F(AttendTest, ConstantsAndProjectionsPerHead) {
  layers::AttentionConfig config = config_of("linear", true);
  Problem p;
  p.data["random_projection"] = {{p.heads, 10, p.d}, normal(p.heads * 10 * p.d, "w")};
  p.data["query_center"] = {{p.heads, p.d}, normal(p.heads * p.d, "a", 0.3)};
  p.data["key_center"] = {{p.heads, p.d}, normal(p.heads * p.d, "b", 0.3)};
  std::vector<double> scaling = normal(p.heads * p.d, "psi", 0.2);
  for (double& x : scaling) x = std::exp(x);
  p.data["scaling"] = {{p.heads, p.d}, scaling};
  expect_output(p, options(config), linear_head(config), tolerance_of(DType::float64));
  config.normalizer = ops::Normalizer::rms;
  expect_output(p, options(config), linear_head(config), tolerance_of(DType::float64));
  config.normalizer = ops::Normalizer::sum;
  config.window = 3;
  expect_output(p, options(config), linear_head(config), tolerance_of(DType::float64));
}

TEST_F(AttendTest, WindowedHybridAndItsGate) {
  for (const bool causal : {true, false}) {
    const layers::AttentionConfig config = config_of("windowed", causal, 3);
    Problem p(13, 13);
    p.random_projection(8);
    expect_output(p, options(config), linear_head(config), tolerance_of(DType::float64));
    p.data["gate"] = {{4}, {0.5, -0.25, 0, 2}};
    AttendOptions o = options(config);
    o.gradients = true;
    expect_output(p, o, linear_head(config), tolerance_of(DType::float64));
    for (const char* name : {"query", "key", "value", "gate"}) expect_gradient(p, name, linear_head(config));
  }
}

TEST_F(AttendTest, LinformerOfEveryKind) {
  layers::AttentionConfig config = config_of("linformer", false);
  for (const ops::SequenceProjection kind : all_values<ops::SequenceProjection>()) {
    for (const bool own : {false, true}) {  // a projection for each head, and one for values
      SCOPED_TRACE(fmt::format("{} {}", name_of(kind), own));
      config.projection = kind;
      Problem p(5, 11);
      if (!own) p.mask_some();
      AttendOptions o = options(config);
      o.gradients = true;
      if (kind == ops::SequenceProjection::mean) {
        o.projected_length = 4;
      } else {
        const bool linear = kind == ops::SequenceProjection::linear;
        const std::size_t rows_k = linear ? 4 : p.d, rows_v = linear ? 4 : p.d_value,
                          columns = linear ? 14 : 3;  // 14: shorter input
        const auto weight = [&](std::size_t rows, const char* stream) {
          hdf5::Shape shape{rows, columns};
          if (own) shape.insert(shape.begin(), p.kv_heads);
          return std::pair{shape, normal(hdf5::n_elements(shape), stream, 0.5)};
        };
        p.data["key_projection"] = weight(rows_k, "E");
        if (own || !linear) p.data["value_projection"] = weight(rows_v, "F");
      }
      const Head head = linformer_head(config, 4);
      expect_output(p, o, head, tolerance_of(DType::float64));
      for (const auto& [dataset, content] : p.data) {
        if (dataset != "d_output" && dataset != "mask") expect_gradient(p, dataset, head);
      }
      EXPECT_EQ(hdf5::File::open(path("out.h5")).has("d_value_projection"), p.data.count("value_projection") > 0);
    }
  }
}

TEST_F(AttendTest, GradientsOfSoftmaxAndFeatures) {
  Problem p;
  p.mask_some();
  p.random_projection(8);
  for (const char* mechanism : {"softmax", "linear"}) {
    for (const bool causal : {false, true}) {
      const layers::AttentionConfig config = config_of(mechanism, causal);
      const Head head = layers::mechanism_info(mechanism).is_softmax ? softmax_head(config) : linear_head(config);
      write(p);
      AttendOptions o = options(config);
      o.gradients = true;
      attend(o);
      for (const char* name : {"query", "key", "value"}) expect_gradient(p, name, head);
      o.dtype = DType::float32;
      const std::vector<double> exact = dataset("d_query");
      attend(o);
      EXPECT_LT(relative_difference(dataset("d_query"), exact), 4e-6);
    }
  }
}

TEST_F(AttendTest, RecurrentMatchesParallel) {
  struct Form {
    layers::AttentionConfig config;
    bool masked = false;
  };
  std::vector<Form> forms;
  for (const bool masked : {false, true}) {
    for (const std::int64_t window : {0, 3}) forms.push_back({config_of("softmax", true, window), masked});
    for (const char* map : {"favor_positive", "elu1", "taylor"}) {
      forms.push_back({config_of("linear", true), masked});
      forms.back().config.feature_map = map;
    }
  }
  forms.push_back({config_of("windowed", true, 3), false});
  forms.push_back({config_of("linear", true, 3), false});
  for (const Form& form : forms) {
    SCOPED_TRACE(fmt::format("{} {} window {} masked {}", form.config.mechanism, form.config.feature_map,
                             layers::mechanism_info(form.config.mechanism).window_in(form.config), form.masked));
    Problem p(11, 11);
    p.random_projection(8);
    if (form.masked) p.mask_some();
    write(p);
    for (const DType dtype : {DType::float64, DType::float32}) {
      AttendOptions o = options(form.config, dtype);
      attend(o);
      const std::vector<double> parallel = dataset("output");
      o.recurrent = true;
      for (const std::int64_t prefill : {0, 5, 99}) {
        o.prefill = prefill;
        attend(o);
        EXPECT_LT(relative_difference(dataset("output"), parallel), tolerance_of(dtype));
      }
    }
  }
}

TEST_F(AttendTest, OutputHoldsTheRandomProjection) {
  Problem p;
  write(p);
  AttendOptions o = options(config_of("linear", true), DType::float32);
  const AttendReport report = attend(o);
  EXPECT_TRUE(report.drew_projection);
  EXPECT_EQ(report.features, 12) << "twice the width of a head";
  const std::vector<double> drawn = dataset("random_projection"), output = dataset("output");
  EXPECT_EQ(shape_of("random_projection"), (hdf5::Shape{12, 6}));
  {
    const hdf5::File file = hdf5::File::open(path("out.h5"));
    EXPECT_EQ(file.text("random_projection"), "orthogonal");
    EXPECT_EQ(file.integer("seed"), 0);
  }
  attend(o);
  EXPECT_EQ(dataset("random_projection"), drawn) << "the same seed";
  for (const char* name : {"directions", "random_projection"}) {  // the former name, too
    p.data[name] = {{12, 6}, drawn};
    write(p);
    attend(o);
    EXPECT_EQ(dataset("output"), output) << "the same bits with the random projection of the output";
    p.data.erase(name);
  }
  EXPECT_EQ(hdf5::File::open(path("out.h5")).text("random_projection"), "given");
  write(p);
  o.seed = 1;
  o.features = 7;
  o.projection_kind = "iid";
  attend(o);
  EXPECT_EQ(shape_of("random_projection"), (hdf5::Shape{7, 6}));
  EXPECT_NE(dataset("random_projection")[0], drawn[0]);
}

}  // namespace
}  // namespace furlong
