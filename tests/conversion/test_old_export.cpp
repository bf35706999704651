// A directory that version 0.1 exported: model_type furlong_performer, tensors "furlong.PARAMETER", old config keys.
#include <gtest/gtest.h>

#include "conversion/import_model.h"
#include "tests/places.h"

namespace furlong {
namespace {

TEST(OldExport, OpensBitForBit) {
  const SourceModel source = open_source_model(testing::source_directory() / "tests/conversion/old_export");
  EXPECT_EQ(source.report.matched.size(), source.model.store->parameters().size());
  EXPECT_TRUE(source.report.missing.empty());
  EXPECT_TRUE(source.report.unexpected.empty());
  const auto first = [&](const char* name) { return source.model.store->find(name).master().to_vector<float>()[0]; };
  EXPECT_EQ(first("token_embedding.weight"), -0x1.c2575a0000000p-6F);
  EXPECT_EQ(first("blocks.0.attention.directions"), 0x1.4600000000000p-1F);
  EXPECT_EQ(source.model.settings.model.norm_placement, layers::NormPlacement::pre);
}

}  // namespace
}  // namespace furlong
