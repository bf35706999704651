// furlong attend: content of files, and errors.
#include "tests/evaluation/attend/attend_testing.h"

namespace furlong {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using AttendFileTest = AttendTest;

TEST_F(AttendFileTest, ReadsAllStorageTypes) {
  Problem p(7, 7);
  for (auto& [name, content] : p.data) {
    for (double& x : content.second) x = static_cast<double>(bfloat16(static_cast<float>(x)));  // exact in all types
  }
  write(p);
  const layers::AttentionConfig config = config_of("softmax", true);
  const std::vector<double> exact = all_heads(p, softmax_head(config));
  AttendOptions o = options(config, DType::bfloat16);
  o.gradients = true;
  attend(o);
  EXPECT_LT(relative_difference(dataset("output"), exact), 0x1p-8) << "one rounding of the output to bfloat16";
  {
    const hdf5::File in = hdf5::File::open(path("out.h5"));
    EXPECT_EQ(in.dataset("d_query").type(), hdf5::Type::f32);
  }

  // The same numbers stored in 32 and in 16 bits.
  AtomicFile place(path("in.h5"));
  hdf5::File narrow = hdf5::File::create(place);
  for (const auto& [name, content] : p.data) {
    const std::vector<float> floats(content.second.begin(), content.second.end());
    std::vector<bfloat16> halves;
    for (const float x : floats) halves.emplace_back(x);
    if (name == "key")
      narrow.write(name, hdf5::Type::bf16, content.first, halves.data());
    else
      narrow.write(name, hdf5::Type::f32, content.first, floats.data());
  }
  narrow.close();
  place.commit();
  attend(options(config));
  EXPECT_LT(relative_difference(dataset("output"), exact), tolerance_of(DType::float64));
}

TEST_F(AttendFileTest, WritesSettingsAsAttributes) {
  Problem p(40, 40);
  write(p);
  layers::AttentionConfig config = config_of("linear", true);
  config.feature_map = "favor_trig";
  AttendOptions o = options(config, DType::float32);
  o.gradients = true;
  const AttendReport report = attend(o);
  EXPECT_THAT(report.read, ElementsAre("query", "key", "value", "d_output"));
  EXPECT_EQ(report.denominators.rows, 2 * 4 * 40);
  EXPECT_LT(report.denominators.least, 1);
  const hdf5::File file = hdf5::File::open(path("out.h5"));
  EXPECT_EQ(file.text("mechanism"), "linear");
  EXPECT_EQ(file.text("feature_map"), "favor_trig");
  EXPECT_EQ(file.integer("m"), 12);
  EXPECT_EQ(file.integer("rows"), report.denominators.rows);
  EXPECT_EQ(file.integer("guarded_rows"), report.denominators.guarded);
  EXPECT_EQ(file.number("least_denominator"), report.denominators.least);
  EXPECT_GT(file.number("forward_seconds"), 0);
  EXPECT_EQ(file.number("seconds"), file.number("forward_seconds") + file.number("backward_seconds"));
  const std::int64_t output_and_gradients = 4 * 2 * 40 * (4 * 5 + 4 * 6 + 2 * 6 + 2 * 5);
  EXPECT_EQ(file.integer("peak_bytes"), report.peak_bytes);
  EXPECT_GE(report.peak_bytes, output_and_gradients);
}

TEST_F(AttendFileTest, ErrorNamesFileDatasetAndShape) {
  const layers::AttentionConfig linear = config_of("linear", true);
  const auto with = [&](const AttendOptions& o, const std::function<void(Problem&)>& change) {
    Problem p;
    change(p);
    write(p);
    return refused(o);
  };
  const auto reshaped = [](const char* name, const hdf5::Shape& shape) {
    return [name, shape](Problem& p) { p.data[name] = {shape, std::vector<double>(hdf5::n_elements(shape), 1.0)}; };
  };
  EXPECT_EQ(with(options(), [](Problem& p) { p.data.erase("value"); }),
            path("in.h5") + ": HDF5 dataset 'value' is missing; expected shape [batch, heads, n_key, d_value]");
  EXPECT_THAT(with(options(), reshaped("query", {4, 9, 6})),
              HasSubstr("dataset 'query' has shape [4, 9, 6], expected [batch, heads, n, d]"));
  EXPECT_THAT(with(options(), reshaped("key", {2, 2, 0, 6})), HasSubstr("'key' has shape [2, 2, 0, 6] and is empty"));
  EXPECT_THAT(with(options(), reshaped("key", {2, 3, 9, 6})), HasSubstr("'key' has 3 heads, 'query' has 4"));
  EXPECT_THAT(with(options(), reshaped("key", {2, 2, 9, 7})),
              HasSubstr("'key' has shape [2, 2, 9, 7], expected [2, 2, 9, 6]: batch and d"));
  EXPECT_THAT(with(options(), reshaped("value", {2, 2, 8, 5})),
              HasSubstr("'value' has shape [2, 2, 8, 5], expected [2, 2, 9, 5]"));
  EXPECT_THAT(with(options(), reshaped("mask", {9})), HasSubstr("'mask' has shape [9], expected [2, 9]"));
  EXPECT_THAT(with(options(),
                   [](Problem& p) {
                     p.data["mask"] = {{2, 9}, std::vector<double>(18, 2.0)};
                   }),
              HasSubstr("'mask' contains 2; expected 1"));
  EXPECT_THAT(with(options(), reshaped("maskk", {2, 9})), HasSubstr("unknown dataset 'maskk'; did you mean mask?"));
  EXPECT_THAT(with(options(linear), reshaped("random_projection", {7, 5})),
              HasSubstr("'random_projection' has shape [7, 5], expected [7, 6] or [4, 7, 6]: rows of width d"));
  EXPECT_THAT(with(options(linear),
                   [](Problem& p) {
                     p.data["random_projection"] = {{1, 6}, {1, 2, 3, NAN, 5, 6}};
                   }),
              HasSubstr("'random_projection' contains NaN or infinity"));
  EXPECT_THAT(with(options(linear),
                   [](Problem& p) {
                     p.data["scaling"] = {{4, 6}, std::vector<double>(24, -1.0)};
                   }),
              HasSubstr("'scaling' contains -1; expected numbers above 0"));
  AttendOptions o = options();
  o.gradients = true;
  EXPECT_THAT(with(o, [](Problem& p) { p.data.erase("d_output"); }),
              HasSubstr("dataset 'd_output' is missing; expected shape [2, 4, 9, 5]"));
  o = options(linear);
  o.features = 9;
  EXPECT_THAT(with(o, [](Problem& p) { p.random_projection(8); }),
              HasSubstr("--features 9: HDF5 dataset 'random_projection'"));
  o = options(linear);
  o.config.feature_map = "oprf";
  EXPECT_THAT(with(o, [](Problem&) {}), HasSubstr("dataset 'oprf_a' is missing; expected shape [4]"));
  EXPECT_THAT(with(o, reshaped("oprf_a", {4})), HasSubstr("'oprf_a' contains 1; expected numbers at most 0"));
  o.config.feature_map = "elu1";
  EXPECT_THAT(with(o, reshaped("scaling", {4, 6})),
              HasSubstr("dataset 'scaling' applies only to feature maps that estimate softmax, not to elu1"));
  o = options(linear);
  o.recurrent = true;
  EXPECT_THAT(with(o, [](Problem& p) { p.two_documents(); }), HasSubstr("dataset 'documents': --mode recurrent"));
  o = options(config_of("linformer", false));
  EXPECT_THAT(with(o, [](Problem&) {}), HasSubstr("dataset 'key_projection' is missing; expected shape [r, 9]"));
  EXPECT_THAT(with(o, reshaped("key_projection", {3, 8})),
              HasSubstr("'key_projection' has shape [3, 8], expected [3, 9] or [2, 3, 9]"));
  EXPECT_THAT(with(o, [](Problem& p) { p.two_documents(); }), HasSubstr("its projection mixes all positions"));
  write(Problem(5, 9));
  EXPECT_THAT(refused(options(linear)), HasSubstr("'key' has 9 tokens, 'query' has 5; --causal"));
  o = options();
  o.input = path("nothing.h5");
  EXPECT_THAT(refused(o), HasSubstr("nothing.h5"));
}

TEST_F(AttendFileTest, FailureKeepsExistingOutput) {
  Problem p;
  write(p);
  attend(options());
  const std::string before = content(path("out.h5"));
  p.data.erase("value");
  write(p);
  message_of<UserError>([&] { attend(options()); });
  EXPECT_EQ(content(path("out.h5")), before);
  AttendOptions o = options();
  o.output = o.input;
  EXPECT_THAT(message_of<UserError>([&] { attend(o); }), HasSubstr("is both input and output"));
  write(Problem());
  o.output = path("missing/out.h5");
  EXPECT_THAT(message_of<UserError>([&] { attend(o); }), HasSubstr("missing"));
}

}  // namespace
}  // namespace furlong
