// model.attention.layers, whose entries name one mechanism or one for each head.
#include "layers/attention/mechanism.h"
#include "layers/blocks/block.h"
#include "tests/temporary_folder.h"
#include "trainers/model/model.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;

Settings settings_of(const std::string& attention, const std::string& model = "n_layers: 2, d_model: 32, n_heads: 4") {
  return from_yaml_text("model: {" + model + ", attention: {" + attention + "}}\ndata: {dataset: x.h5}\n", "test")
      .settings;
}

TEST(LayerMechanisms, OneForEachHeadOfALayer) {
  const Settings settings =
      settings_of("layers: [softmax linear linear softmax, linear], feature_map: elu1, chunk_size: 32");
  EXPECT_TRUE(layers::uses(settings.model.attention, &layers::MechanismInfo::is_softmax));
  EXPECT_TRUE(layers::uses(settings.model.attention, &layers::MechanismInfo::has_features));
  EXPECT_FALSE(layers::uses(settings.model.attention, &layers::MechanismInfo::is_hybrid));
  const layers::AttentionConfig first = layers::attention_of_layer(settings.model, 0),
                                second = layers::attention_of_layer(settings.model, 1);
  EXPECT_EQ(first.head_mechanisms, (std::vector<std::string>{"softmax", "linear", "linear", "softmax"}));
  EXPECT_TRUE(second.head_mechanisms.empty());
  EXPECT_EQ(second.mechanism, "linear");
  EXPECT_EQ(from_yaml_text(to_yaml(settings), "again").settings, settings);
}

// Keys of features have an effect where a single head has some.
TEST(LayerMechanisms, KeysOfFeaturesBelongToASingleHead) {
  EXPECT_NO_THROW(settings_of("layers: [softmax, softmax softmax softmax linear], n_features: 16"));
  const std::string message = testing::message_of<UserError>(
      [] { settings_of("layers: [softmax, softmax softmax softmax softmax], n_features: 16"); });
  EXPECT_THAT(message, HasSubstr("n_features has no effect"));
}

TEST(LayerMechanisms, RefusesOthers) {
  const auto message = [](const std::string& attention,
                          const std::string& model = "n_layers: 2, d_model: 32, n_heads: 4") {
    return testing::message_of<UserError>([&] { settings_of(attention, model); });
  };
  EXPECT_THAT(message("layers: [softmax, softmax linear]"),
              HasSubstr("layer 1 (from 0) lists 2 mechanisms; expected one, or one for each"));
  EXPECT_THAT(message("layers: [softmax linear linear sofmax, softmax]"), HasSubstr("layer 0 (from 0): found sofmax"));
  EXPECT_THAT(message("layers: [softmax, lineal]"), HasSubstr("layer 1 (from 0): found lineal"));
  EXPECT_THAT(message("layers: [softmax]"), HasSubstr("lists 1 mechanisms"));
  EXPECT_THAT(message("layers: [softmax, softmax linear linear linear]",
                      "n_layers: 2, d_model: 32, n_heads: 4, n_key_value_heads: 2"),
              HasSubstr("heads 0 and 1 (from 0) share a key and value head"));
}

// The same heads, said by `layers` and by `heads`, are the same model.
TEST(LayerMechanisms, SayTheSameAsHeads) {
  const auto hidden = [](const std::string& attention) {
    Model model = make_model(settings_of(attention), Vocabulary::bytes(false), Device{}, DType::float32);
    Tape tape(Stream{});
    const Tape::NoGradient guard(tape);
    layers::ForwardContext context{tape};
    std::vector<std::int32_t> tokens(40);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 37 % 256);
    return model.decoder->hidden(context, Tensor::from(tokens, {1, 40})).value().to_vector<float>();
  };
  const std::string map = ", feature_map: favor_positive, n_features: 32";
  const std::vector<float> by_heads = hidden("heads: [softmax, linear, linear, softmax]" + map);
  EXPECT_EQ(hidden("layers: [softmax linear linear softmax, softmax linear linear softmax]" + map), by_heads);
  EXPECT_NE(hidden("layers: [softmax linear linear softmax, softmax]" + map), by_heads);
}

}  // namespace
}  // namespace furlong
