// Rotary scaling in GGUF metadata, read as llama.cpp reads it.
#include <gmock/gmock.h>

#include "conversion/import_model.h"
#include "tests/conversion/tiny_gguf.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

class GgufImport : public WithTemporaryFolder {
 protected:
  layers::ModelConfig imported(const std::vector<std::string>& metadata) {
    return open_source_model(file("model.gguf", tiny_gguf(metadata))).model.settings.model;
  }
  std::string refused(const std::vector<std::string>& metadata, const std::vector<float>& divisors = {}) {
    return message_of<UserError>([&] { open_source_model(file("model.gguf", tiny_gguf(metadata, divisors))); });
  }
};

const auto type = [](const char* name) { return gguf_text_pair("llama.rope.scaling.type", name); };
const auto factor = [](float value) { return gguf_real("llama.rope.scaling.factor", value); };

TEST_F(GgufImport, FactorWithoutTypeIsLinear) {
  for (const auto& metadata : {std::vector{factor(2.5F)}, std::vector{gguf_real("llama.rope.scale_linear", 2.5F)},
                               std::vector{type("linear"), gguf_real("llama.rope.scale_linear", 2.5F)},
                               std::vector{gguf_real("llama.rope.scale_linear", 8), factor(2.5F)}}) {
    const layers::ModelConfig model = imported(metadata);
    EXPECT_EQ(model.rotary_scaling.kind, ops::RotaryScalingKind::linear);
    EXPECT_EQ(model.rotary_scaling.factor, 2.5);
  }
}

TEST_F(GgufImport, IgnoresNeutralScaling) {
  const std::vector<std::vector<std::string>> cases{{},
                                                    {factor(1)},
                                                    {factor(0)},
                                                    {gguf_real("llama.rope.scale_linear", 1)},
                                                    {type("linear")},
                                                    {type("none"), factor(4)},
                                                    {type("yarn")},
                                                    {gguf_real("llama.rope.scaling.attn_factor", 1)}};
  for (const auto& metadata : cases) EXPECT_EQ(imported(metadata).rotary_scaling.kind, ops::RotaryScalingKind::none);
}

TEST_F(GgufImport, ReadsYarnParameters) {
  const layers::ModelConfig plain = imported({type("yarn"), factor(4)});
  EXPECT_EQ(plain.rotary_scaling.kind, ops::RotaryScalingKind::yarn);
  EXPECT_EQ(plain.rotary_scaling.original_length, 16);  // the context length
  EXPECT_EQ(plain.rotary_scaling.beta_fast, 32);
  const layers::ModelConfig given =
      imported({type("yarn"), factor(4), gguf_integer("llama.rope.scaling.original_context_length", 4),
                gguf_real("llama.rope.scaling.yarn_beta_fast", 16), gguf_real("llama.rope.scaling.yarn_beta_slow", 2)});
  EXPECT_EQ(given.rotary_scaling.original_length, 4);
  EXPECT_EQ(given.rotary_scaling.beta_fast, 16);
  EXPECT_EQ(given.rotary_scaling.beta_slow, 2);
}

TEST_F(GgufImport, RejectsUnsupportedKeysByName) {
  EXPECT_THAT(refused({type("longrope"), factor(4)}),
              HasSubstr("llama.rope.scaling.type: found longrope; expected none, linear or yarn"));
  EXPECT_THAT(refused({type("a\x1b\xff")}), HasSubstr("found a\\x1b\\xff; expected none"));
  EXPECT_THAT(refused({gguf_real("llama.rope.scaling.attn_factor", 2)}),
              HasSubstr("llama.rope.scaling.attn_factor: this key"));
  EXPECT_THAT(refused({type("yarn"), factor(4), gguf_real("llama.rope.scaling.yarn_log_multiplier", 0.1F)}),
              HasSubstr("yarn_log_multiplier"));
  EXPECT_THAT(refused({gguf_real("llama.rope.scale_linear", 2)}, {1}),
              AllOf(HasSubstr("llama.rope.scale_linear: found 2"), HasSubstr("rope_freqs.weight")));
  EXPECT_THAT(refused({factor(0.5F)}), HasSubstr("rotary_scaling_factor"));
  // Before memory is allocated for the width.
  EXPECT_THAT(refused({gguf_integer("llama.attention.key_length", 4'000'000'000)}, {1}),
              HasSubstr("tensor rope_freqs.weight has 1 elements; expected 2000000000, half the head width"));
}

}  // namespace
}  // namespace furlong
