#include "datasets/samplers/reverse_complement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "datasets/prepare/prepare.h"
#include "datasets/samplers/document_source.h"
#include "datasets/samplers/labeled_source.h"
#include "datasets/samplers/sampler.h"
#include "framework/core/error.h"
#include "tests/datasets/small_datasets.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

/// The first index whose sample is (or is not) transformed with this seed.
std::uint64_t first_index(bool transformed, std::uint64_t seed = 1) {
  const ReverseComplement strand(Vocabulary::dna(), seed);
  for (std::uint64_t index = 0;; ++index) {
    std::vector<std::int32_t> one{0};  // A
    strand.apply(index, one);
    if ((one[0] != 0) == transformed) return index;
  }
}

std::string transformed(const Vocabulary& vocabulary, const std::string& text,
                        const std::vector<std::uint64_t>& breaks = {}, std::uint64_t origin = 0) {
  std::vector<std::int32_t> tokens = vocabulary.encode(text);
  ReverseComplement(vocabulary, 1).apply(first_index(true), tokens, breaks, origin);
  return vocabulary.decode(tokens);
}

TEST(ReverseComplement, ReversesAndComplementsEveryCode) {
  const Vocabulary dna = Vocabulary::dna();
  EXPECT_EQ(transformed(dna, "AACGTN"), "NACGTT");
  EXPECT_EQ(transformed(dna, "ACGTRYSWKMBDHVN"), "NBDHVKMWSRYACGT");
  EXPECT_EQ(transformed(Vocabulary::rna(), "AACGU"), "ACGUU");
  EXPECT_EQ(transformed(dna, ""), "");
}

TEST(ReverseComplement, KeepsDocumentsAndBreaksInPlace) {
  const Vocabulary dna = Vocabulary::dna();
  EXPECT_EQ(transformed(dna, "AAC<document>GG<document>TTC"), "GTT<document>CC<document>GAA");
  // Positions 12 and 14 of the split begin something new; the tokens start at 10.
  EXPECT_EQ(transformed(dna, "AACCGA", {12, 14}, 10), "TTGGTC");
  EXPECT_EQ(transformed(dna, "AC<document>GG", {13}, 10), "GT<document>CC");
}

TEST(ReverseComplement, HalfOfTheSamplesAndTwiceIsTheIdentity) {
  const Vocabulary dna = Vocabulary::dna();
  const ReverseComplement strand(dna, 7), other_seed(dna, 8);
  const std::vector<std::int32_t> tokens = dna.encode("AACCGTN<document>GAT");
  int changed = 0, differ = 0;
  for (std::uint64_t index = 0; index < 10'000; ++index) {
    std::vector<std::int32_t> one = tokens, two = tokens;
    strand.apply(index, one);
    other_seed.apply(index, two);
    changed += one != tokens;
    differ += one != two;
    strand.apply(index, one);
    ASSERT_EQ(one, tokens);
  }
  EXPECT_NEAR(changed, 5000, 200);  // four standard deviations
  EXPECT_NEAR(differ, 5000, 200);
}

TEST(ReverseComplement, RejectsOtherVocabularies) {
  for (const Vocabulary& vocabulary : {Vocabulary::protein(), Vocabulary::bytes(true)})
    EXPECT_THAT(message_of<UserError>([&] { ReverseComplement(vocabulary, 1); }),
                HasSubstr("expected dna or rna; set it to false"));
}

class ReverseComplementSources : public testing::WithTemporaryFolder {
 protected:
  TokenizedDataset dataset() const {
    const Vocabulary dna = Vocabulary::dna();
    testing::Documents documents;
    for (const char* text : {"AACCGTNAAG", "GATTACA"}) {
      const std::vector<std::int32_t> ids = dna.encode(text);
      documents.emplace_back(ids.begin(), ids.end());
    }
    return TokenizedDataset::open(testing::write_documents(path("dna.h5"), dna, documents));
  }
  static std::string text(const Batch& batch, const std::vector<std::int32_t>& ids) {
    std::string found;
    for (std::int64_t i = 0; i < batch.n; ++i) {
      const std::int32_t id = ids[static_cast<std::size_t>(i)];
      const std::string symbol = id == ignored_target ? "." : Vocabulary::dna().symbol(id);
      found += symbol == "<document>" ? "|" : symbol;
    }
    return found;
  }
};

TEST_F(ReverseComplementSources, WindowsPredictTheNextTokenOfTheOtherStrand) {
  const TokenizedDataset data = dataset();  // AACCGTNAAG|GATTACA|
  SamplerOptions options;
  options.order = SamplerOptions::Order::sequential;
  options.sequence_length = 18;
  options.seed = 1;
  const Sampler plain(data, Split::train, options);
  options.ignore_tokens = {"N"};
  options.separate_documents = options.reverse_complement = true;
  const Sampler sampler(data, Split::train, options);
  ASSERT_EQ(sampler.n_windows(), 1u);
  const Batch same = sampler.batch(first_index(false), 1), other = sampler.batch(first_index(true), 1);
  EXPECT_EQ(text(same, same.inputs), "AACCGTNAAG|GATTACA");
  EXPECT_EQ(text(other, other.inputs), "CTTNACGGTT|TGTAATC");
  EXPECT_EQ(text(other, other.targets), "TT.ACGGTT|.GTAATC|");
  EXPECT_EQ(other.documents, same.documents);
  EXPECT_EQ(plain.batch(first_index(true), 1).inputs, same.inputs);
}

// Without targets of next tokens, the other strand of a window has no token of the next window.
TEST_F(ReverseComplementSources, WindowsOfMaskedTokensAreThoseOfTheFirstStrand) {
  const TokenizedDataset data = dataset();
  SamplerOptions options;
  options.order = SamplerOptions::Order::sequential;
  options.sequence_length = 4;
  options.seed = 1;
  options.next_tokens = false;
  const Sampler plain(data, Split::train, options);
  options.reverse_complement = true;
  const Sampler sampler(data, Split::train, options);
  std::size_t transformed = 0;
  for (std::uint64_t index = 0; index + 1 < sampler.n_windows(); ++index) {  // the last one has padding
    const Batch first = plain.batch(index, 1), other = sampler.batch(index, 1);
    std::string expected = text(first, first.inputs), found = text(other, other.inputs);
    transformed += expected != found;
    if (expected != found)
      for (char& letter : found) letter = std::string("TGCA|N")[std::string("ACGT|N").find(letter)];
    std::sort(expected.begin(), expected.end());
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, expected) << index;
  }
  EXPECT_GT(transformed, 0u);
}

TEST_F(ReverseComplementSources, RowsOfDocuments) {
  const TokenizedDataset data = dataset();
  const DocumentSource source(
      data, Split::train,
      {.sequence_length = 10, .shuffled = false, .pad_to_longest = false, .seed = 1, .reverse_complement = true});
  // Rows alternate between the two documents.
  const auto row_of = [&](bool transformed, std::uint64_t document) {
    for (std::uint64_t index = document;; index += 2) {
      std::vector<std::int32_t> one{0};
      ReverseComplement(Vocabulary::dna(), 1).apply(index, one);
      if ((one[0] != 0) == transformed) return source.batch(index, 1);
    }
  };
  EXPECT_EQ(text(row_of(false, 1), row_of(false, 1).inputs).substr(0, 7), "GATTACA");
  EXPECT_EQ(text(row_of(true, 1), row_of(true, 1).inputs).substr(0, 7), "TGTAATC");
  EXPECT_EQ(text(row_of(true, 0), row_of(true, 0).targets), "TTNACGGTT|");
}

TEST_F(ReverseComplementSources, LabeledDocumentsKeepTheirLabels) {
  PrepareOptions options;
  options.format = PrepareOptions::Format::labeled;
  options.inputs = {file("input.tsv", "AACCG\tyes\nGATTACA\tno\n")};
  options.output = path("labeled.h5");
  options.alphabet = "dna";
  options.labeled.kind = LabeledFormat::Kind::tsv;
  options.store.split_by = DatasetWriterOptions::SplitBy::document;
  options.store.shares = {{1, 0, 0}};
  prepare(options);
  const TokenizedDataset data = TokenizedDataset::open(options.output);
  const LabeledSource source(data, Split::train,
                             {.sequence_length = 8, .shuffled = false, .seed = 1, .reverse_complement = true});
  std::set<std::pair<std::string, std::int32_t>> seen;
  for (std::uint64_t index = 0; index < 40; ++index) {
    const Batch batch = source.batch(index, 1);
    seen.insert({text(batch, batch.inputs).substr(0, 5), batch.labels[0]});
  }
  const std::int32_t yes = data.vocabulary().labels()[0] == "yes" ? 0 : 1;
  EXPECT_THAT(seen, ::testing::UnorderedElementsAre(std::pair("AACCG", yes), std::pair("CGGTT", yes),
                                                    std::pair("GATTA", 1 - yes), std::pair("TGTAA", 1 - yes)));
}

}  // namespace
}  // namespace furlong
