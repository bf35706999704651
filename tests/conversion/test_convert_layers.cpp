// furlong convert --layers: the selected layers change, the others do not.
#include <gmock/gmock.h>

#include <algorithm>

#include "framework/core/log.h"
#include "tests/conversion/convert_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::HasSubstr;
using ::testing::Not;

class ConvertLayers : public ConvertTest {
 protected:
  /// Converts one layer of a tiny Llama, with `data` measured or not.
  void convert_first(const std::string& attention, bool measures = false) {
    ConvertOptions options = from(tiny_llama());
    options.attention = attention;
    options.layers = "0";
    if (measures) options.data = store();
    convert(options);
    std::filesystem::rename(path("out.h5"), path("first.h5"));
  }
  /// Returns options that convert the other layer.
  ConvertOptions second(const std::string& attention) const {
    ConvertOptions options;
    options.source = path("first.h5");
    options.destination = path("out.h5");
    options.overwrite = true;
    options.attention = attention;
    options.layers = "1";
    return options;
  }
};

TEST_F(ConvertLayers, ConvertsSelectedLayersAndHeads) {
  ConvertOptions options = from(tiny_gpt2());
  options.attention = "favor_positive";
  options.features = 24;
  options.layers = "1";
  convert(options);
  EXPECT_EQ(settings_of_result().model.attention.layer_mechanisms, (std::vector<std::string>{"softmax", "linear"}));
  EXPECT_EQ(settings_of_result().model.attention.n_features, 24);

  options.heads_keep_softmax = "1:0";
  convert(options);
  EXPECT_EQ(settings_of_result().model.attention.layer_mechanisms,
            (std::vector<std::string>{"softmax", "softmax linear"}));

  options.layers.clear();
  options.heads_keep_softmax = "0-1:0";
  convert(options);
  EXPECT_TRUE(settings_of_result().model.attention.layer_mechanisms.empty());
  EXPECT_EQ(settings_of_result().model.attention.head_mechanisms, (std::vector<std::string>{"softmax", "linear"}));

  // Converts the first result back to softmax everywhere.
  std::filesystem::copy(path("out.h5"), path("first.h5"));
  ConvertOptions again = options;
  again.source = path("first.h5");
  again.attention = "softmax";
  again.features = 0;
  again.heads_keep_softmax.clear();
  const ConversionResult back = convert(again);
  EXPECT_EQ(settings_of_result().model.attention, settings_of_result().model.attention.plain());
  EXPECT_EQ(back.tensors.left_behind.size(), 2U);  // random projections
}

TEST_F(ConvertLayers, OthersKeepTheirFeatureMap) {
  convert_first("favor_positive");
  const std::int64_t features = open_source_model(path("first.h5")).model.settings.model.attention.n_features;
  EXPECT_THAT(refused(second("taylor:2")), HasSubstr("leaves unchanged use favor_positive (m = "));
  ConvertOptions more = second("favor_positive");
  more.features = features + 8;
  EXPECT_THAT(refused(more), HasSubstr("leaves unchanged use favor_positive (m = "));
  ConvertOptions automatic = second("auto");
  automatic.data = store();
  automatic.target_error = 0.9;
  automatic.cost_at = 1 << 20;
  EXPECT_THAT(refused(automatic), HasSubstr("leaves unchanged use favor_positive (m = "));
  convert(second("favor_positive"));  // the default is the number of the other layer
  EXPECT_EQ(settings_of_result().model.attention.n_features, features);
  EXPECT_EQ(settings_of_result().model.attention.mechanism, "linear");
}

TEST_F(ConvertLayers, OthersKeepTheirWindow) {
  convert_first("windowed:4");
  EXPECT_THAT(refused(second("windowed:8")), HasSubstr("leaves unchanged use a window of 4 tokens"));
  convert(second("windowed:4"));
  EXPECT_EQ(settings_of_result().model.attention.mechanism, "windowed");
  convert_first("favor_positive");
  convert(second("windowed:8"));  // linear layers have no window
  EXPECT_EQ(settings_of_result().model.attention.softmax_window, 8);
}

TEST_F(ConvertLayers, MeasurementsLeaveOthersUnchanged) {
  convert_first("oprf+centering", true);
  ConvertOptions options = second("oprf+centering");
  options.data = store();
  options.data->batches = 1;
  options.overrides = {"seed=7"};
  convert(options);
  const SourceModel before = open_source_model(path("first.h5")), after = open_source_model(path("out.h5"));
  int compared = 0;
  for (const Parameter& parameter : before.model.store->parameters()) {
    if (!parameter.name().starts_with("blocks.0.attention.")) continue;
    EXPECT_EQ(parameter.master().to_vector<float>(),
              after.model.store->find(parameter.name()).master().to_vector<float>())
        << parameter.name();
    ++compared;
  }
  EXPECT_GT(compared, 5) << "projections, centers, constants and statistics";
  for (const float a : after.model.store->find("blocks.1.attention.oprf_a").master().to_vector<float>())
    EXPECT_LT(a, -1e-3F);
}

TEST_F(ConvertLayers, NewConstantsOfOthersAreMeasured) {
  convert_first("favor_positive");
  ConvertOptions options = second("favor_positive");
  options.data = store();
  options.overrides = {"model.attention.centering=true"};
  convert(options);
  const SourceModel after = open_source_model(path("out.h5"));
  for (const char* block : {"blocks.0", "blocks.1"}) {
    const auto center =
        after.model.store->find(std::string(block) + ".attention.query_center").master().to_vector<float>();
    EXPECT_GT(*std::max_element(center.begin(), center.end()), 1e-3F) << block;
  }
}

TEST_F(ConvertLayers, MeasuredConstantsCannotBeFolded) {
  convert_first("oprf", true);
  ConvertOptions options = second("");
  options.layers.clear();
  options.data = store();
  options.fold_scaling = true;
  EXPECT_THAT(refused(options), HasSubstr("constants of oprf belong to the weights as they are"));
  options.attention = "softmax";
  EXPECT_TRUE(convert(options).fold) << "softmax has no constants";
}

TEST_F(ConvertLayers, LostSlidingWindowIsReported) {
  ConvertOptions window = from(tiny_llama());
  window.overrides = {"model.attention.window=6"};
  convert(window);
  std::filesystem::rename(path("out.h5"), path("first.h5"));
  const auto log_of = [&](const std::string& attention) {
    const ConvertOptions options = second(attention);
    const LogCapture log;
    convert(options);
    return log.text();
  };
  EXPECT_THAT(log_of("windowed:4"), HasSubstr("a sliding window of 6 tokens"));
  EXPECT_THAT(log_of("favor_positive"), Not(HasSubstr("sliding window")));
}

}  // namespace
}  // namespace furlong
