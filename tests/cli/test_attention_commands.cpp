// The programs furlong attend and furlong bench attention: output, errors and exit status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "framework/core/random.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;

class AttentionCommandTest : public testing::WithProgram {
 protected:
  Finished attend(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"attend", "--input", path("in.h5"), "--output", path("out.h5")};
    all.insert(all.end(), more.begin(), more.end());
    return furlong(all);
  }
  void write_input() const {
    AtomicFile place(path("in.h5"));
    hdf5::File out = hdf5::File::create(place);
    for (const char* name : {"query", "key", "value", "d_output"}) {
      std::vector<float> values(2 * 3 * 20 * 8);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(random_normal({1, 0, random_stream(name)}, i));
      out.write(name, hdf5::Type::f32, {2, 3, 20, 8}, values.data());
    }
    out.close();
    place.commit();
  }
};

TEST_F(AttentionCommandTest, AttendWritesOutputAndPrintsReport) {
  write_input();
  const Finished done =
      attend({"--mechanism", "linear", "--feature-map", "taylor", "--order", "1", "--causal", "--gradients"});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(
      done.out,
      AllOf(HasSubstr("output [2, 3, 20, 8], linear, taylor with 9 features (causal, float32, parallel)"),
            HasSubstr("s backward"), HasSubstr("read query, key, value, d_output"), HasSubstr(" of 120 rows guarded")));
  const hdf5::File file = hdf5::File::open(path("out.h5"));
  for (const char* name : {"output", "d_query", "d_key", "d_value"})
    EXPECT_EQ(file.dataset(name).shape(), (hdf5::Shape{2, 3, 20, 8})) << name;
  EXPECT_FALSE(file.has("random_projection"));
  EXPECT_EQ(file.integer("order"), 1);
  EXPECT_EQ(file.text("normalizer"), "sum");
  EXPECT_FALSE(file.has_attribute("kernel_epsilon"));
  ASSERT_EQ(attend({"--mechanism", "linear", "--feature-map", "favor_relu", "--kernel-epsilon", "0.25", "--normalizer",
                    "none"})
                .status,
            0);
  const hdf5::File other = hdf5::File::open(path("out.h5"));
  EXPECT_EQ(other.number("kernel_epsilon"), 0.25);
  EXPECT_EQ(other.text("normalizer"), "none");
}

TEST_F(AttentionCommandTest, AttendPrintsJson) {
  write_input();
  const Finished done = attend({"--mechanism",
                                "windowed",
                                "--window",
                                "4",
                                "--feature-map",
                                "favor_hyperbolic",
                                "--features",
                                "10",
                                "--causal",
                                "--mode",
                                "recurrent",
                                "--prefill",
                                "7",
                                "--chunk",
                                "3",
                                "--dtype",
                                "bfloat16",
                                "--seed",
                                "3",
                                "--random-projection",
                                "iid",
                                "--json"});
  ASSERT_EQ(done.status, 0) << done.err;
  const Json report = Json::parse(done.out);
  EXPECT_EQ(report["output"], path("out.h5"));
  EXPECT_EQ(report["shape"], Json({2, 3, 20, 8}));
  EXPECT_EQ(report["mechanism"], "windowed");
  EXPECT_EQ(report["m"], 10);
  EXPECT_EQ(report["mode"], "recurrent");
  EXPECT_EQ(report["rows"], 120);
  EXPECT_FALSE(report.contains("backward_seconds"));
  const hdf5::File file = hdf5::File::open(path("out.h5"));
  EXPECT_EQ(file.integer("peak_bytes"), report["peak_bytes"]);
  EXPECT_EQ(file.integer("seed"), 3);
  EXPECT_EQ(file.integer("window"), 4);
  EXPECT_EQ(file.text("random_projection"), "iid");
  EXPECT_EQ(file.text("dtype"), "bfloat16");
  EXPECT_EQ(file.dataset("random_projection").shape(), (hdf5::Shape{5, 8}));
}

TEST_F(AttentionCommandTest, AttendRejectsIncompatibleOptions) {
  write_input();
  const auto refused = [&](const std::vector<std::string>& more, const std::string& message) {
    SCOPED_TRACE(more.back());
    expect_user_error(attend(more), {message});
    EXPECT_FALSE(std::filesystem::exists(path("out.h5")));
  };
  refused({"--feature-map", "elu1"}, "--feature-map applies only to --mechanism linear or windowed");
  refused({"--mechanism", "linear", "--order", "3"}, "--order applies only to --feature-map taylor or limit");
  refused({"--mechanism", "linear", "--denominator-guard", "0.1"},
          "--denominator-guard applies only to feature maps whose sums of weights can cancel: favor_trig, taylor, "
          "limit, cosine");
  refused({"--mechanism", "linear", "--feature-map", "taylor", "--normalizer", "none", "--denominator-guard", "0.1"},
          "--denominator-guard applies only to --normalizer sum");
  refused({"--mechanism", "linear", "--feature-map", "taylor", "--order", "9"}, "--order 9 --max-features 4096: ");
  refused({"--mechanism", "linear", "--feature-map", "elu1", "--features", "9"},
          "elu1 always has 8 features for heads of width 8");
  refused({"--mechanism", "linear", "--feature-map", "elu1", "--seed", "1"},
          "--seed has no effect: feature map elu1 has no random projection");
  refused({"--mechanism", "linear", "--feature-map", "favor_trig", "--features", "9"}, "--features 9: ");
  refused({"--mechanism", "windowed"}, "add --window W");
  refused({"--mechanism", "linformer", "--causal"}, "linformer cannot be --causal");
  refused({"--mechanism", "linformer", "--projected-length", "4"},
          "applies only to --mechanism linformer --projection mean");
  refused({"--mechanism", "linformer", "--projection", "mean"}, "add --projected-length R");
  refused({"--mechanism", "linformer", "--projection", "mean", "--projected-length", "21"},
          "20 keys; expected at most as many rows");
  refused({"--mechanism", "linformer", "--mode", "recurrent"}, "linformer cannot run recurrently");
  refused({"--mechanism", "linear", "--mode", "recurrent"}, "add --causal");
  refused({"--causal", "--mode", "recurrent", "--gradients"}, "--mode recurrent computes no gradients");
  refused({"--causal", "--prefill", "3"}, "--prefill 3 applies only to --mode recurrent");
  refused({"--mechanism", "linear", "--causal", "--mode", "recurrent", "--chunk", "4"},
          "--chunk has no effect with --mode recurrent");
  refused({"--mechanism", "linear", "--feature-map", "elu1", "--kernel-epsilon", "0.1"}, "--feature-map favor_relu");
  refused({"--mechanism", "nonlinear"}, "--mechanism: found nonlinear; expected softmax");
  refused({"--device", "cuda"}, "device: 'cuda'");
}

TEST_F(AttentionCommandTest, BenchPrintsAndWritesJson) {
  const Finished done = furlong({"bench", "attention", "--lengths", "64,128", "--mechanism", "softmax,linear",
                                 "--feature-map", "favor_positive,elu1", "--heads", "2", "--head-dim", "16",
                                 "--features", "24", "--train", "--repeats", "2", "--json-file", path("bench.json")});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out,
              AllOf(StartsWith("2 heads of 16, batch 1, float32, forward and backward; "), HasSubstr("\npeak "),
                    HasSubstr("\nsoftmax, causal\n"), HasSubstr("\nlinear, favor_positive with 24 features, causal\n"),
                    HasSubstr("\nlinear, elu1 with 16 features, causal\n"), HasSubstr("time grows as n^"),
                    HasSubstr("\nroofline: float32 ")));
  const Json object = Json::parse(content(path("bench.json")));
  for (const char* rate : {"float32_flops_per_second", "bfloat16_flops_per_second", "memory_bytes_per_second"})
    EXPECT_GT(object["roofline"][rate], 1e8) << rate;
  ASSERT_EQ(object["attention"].size(), 3u);
  for (const Json& attention : object["attention"]) {
    ASSERT_EQ(attention["lengths"].size(), 2u);
    EXPECT_TRUE(attention["exponent"].is_number());
    const double peak = attention["peak_flops_per_second"];
    EXPECT_LE(peak, object["peak_flops_per_second"]);
    for (const Json& length : attention["lengths"]) {
      EXPECT_EQ(length["seconds"].size(), 2u);
      const double seconds = length["median_seconds"], flops = length["flops"], n = length["n"];
      EXPECT_DOUBLE_EQ(length["tokens_per_second"], n / seconds);
      EXPECT_DOUBLE_EQ(length["flops_per_second"], flops / seconds);
      EXPECT_DOUBLE_EQ(length["fraction_of_peak"], flops / seconds / peak);
      EXPECT_GT(length["peak_bytes"], 0);
    }
  }
  EXPECT_EQ(object["attention"][1]["m"], 24);
  EXPECT_EQ(object["train"], true);
}

TEST_F(AttentionCommandTest, BenchReportsSettingsOfAttention) {
  const Finished done = furlong({"bench",
                                 "attention",
                                 "--lengths",
                                 "16,64",
                                 "--mechanism",
                                 "linear,linformer",
                                 "--feature-map",
                                 "taylor,favor_relu",
                                 "--order",
                                 "2",
                                 "--denominator-guard",
                                 "0.001",
                                 "--kernel-epsilon",
                                 "0.01",
                                 "--projection",
                                 "convolution",
                                 "--projected-length",
                                 "32",
                                 "--bidirectional",
                                 "--heads",
                                 "1",
                                 "--head-dim",
                                 "8",
                                 "--dtype",
                                 "float64",
                                 "--repeats",
                                 "1",
                                 "--json-file",
                                 path("bench.json")});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out,
              AllOf(HasSubstr("no fraction of peak: "), HasSubstr("\nlinformer, convolution, bidirectional\n")));
  const Json object = Json::parse(content(path("bench.json")));
  EXPECT_EQ(object["device"], "cpu");
  EXPECT_TRUE(object["peak_flops_per_second"].is_null());
  const Json &taylor = object["attention"][0], &relu = object["attention"][1], &linformer = object["attention"][2];
  EXPECT_EQ(taylor["order"], 2);
  EXPECT_EQ(taylor["normalizer"], "sum");
  EXPECT_EQ(taylor["denominator_guard"], 0.001);
  EXPECT_FALSE(taylor.contains("kernel_epsilon"));
  EXPECT_TRUE(taylor["lengths"][0]["fraction_of_peak"].is_null());
  EXPECT_EQ(relu["kernel_epsilon"], 0.01);
  EXPECT_FALSE(relu.contains("denominator_guard"));
  EXPECT_EQ(linformer["projection"], "convolution");
  EXPECT_EQ(linformer["lengths"][0]["projected_length"], 16);
  EXPECT_EQ(linformer["lengths"][1]["projected_length"], 32);
}

TEST_F(AttentionCommandTest, BenchRejectsInvalidOptionsBeforeMeasuring) {
  const auto refused = [&](std::vector<std::string> more, const std::string& message) {
    SCOPED_TRACE(more.back());
    more.insert(more.begin(), {"bench", "attention"});
    expect_user_error(furlong(more), {message});
  };
  refused({"--lengths", "0"}, "--lengths 0: expected at least 1");
  refused({"--lengths", "16,16"}, "--lengths 16,16: 16 is listed twice");
  refused({"--mechanism", "softmax,linear,softmax"}, "softmax is listed twice");
  refused({"--lengths", "16", "--heds", "2"}, "see furlong bench attention --help");
  refused({"--lengths", "99999999999999"},
          "--lengths 99999999999999: query, key, value, output take at least 819199999999991808 bytes");
  refused({"--mechanism", "softmax", "--features", "4"}, "--features applies only to");
  refused({"--mechanism", "linformer", "--causal"}, "linformer cannot be --causal");
  refused({"--feature-map", "elu1,favor_trig", "--features", "7"}, "--features 7: ");
  refused({"--feature-map", "taylor", "--order", "3"}, "47905 features");
  refused({"--lengths", "16", "--json-file", path("missing/bench.json")}, "missing/bench.json");
  const std::string store = testing::write_store(path("store.h5"), testing::synthetic_text(400));
  refused({"--lengths", "16", "--json-file", store}, "is a tokenized dataset; this command does not replace it");
}

}  // namespace
}  // namespace furlong
