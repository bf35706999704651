#include "framework/config/nearest.h"

#include <gtest/gtest.h>

namespace furlong::config {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("n_layer", "n_layers"), 1u);
  EXPECT_EQ(edit_distance("nrom", "norm"), 1u);
  EXPECT_EQ(edit_distance("ca", "abc"),
            3u);  // restricted: no edits inside a swapped pair (the unrestricted distance is 2)
}

TEST(Nearest, SuggestsOnlyWhatIsClose) {
  const std::vector<std::string> keys = {"learning_rate", "beta1", "beta2", "weight_decay", "seed"};
  EXPECT_EQ(nearest("learnign_rate", keys), "learning_rate");
  EXPECT_EQ(nearest("Learning_Rate", keys), "learning_rate");
  EXPECT_EQ(nearest("beta3", keys), "beta1");
  EXPECT_EQ(nearest("weight", keys), "weight_decay");
  EXPECT_EQ(nearest("seeds", keys), "seed");
  EXPECT_EQ(nearest("wibble", keys), "");
  EXPECT_EQ(nearest("gpu", {"auto", "cpu"}), "");  // with three letters, one edit makes another word
  EXPECT_EQ(nearest("txt", {"fasta", "text"}), "text");
  EXPECT_EQ(nearest("", keys), "");
  EXPECT_EQ(nearest(std::string(100000, 'a'), keys), "");
}

}  // namespace
}  // namespace furlong::config
