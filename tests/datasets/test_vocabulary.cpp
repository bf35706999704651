#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "datasets/split.h"
#include "datasets/vocabulary.h"
#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

TEST(Vocabulary, KeepsTheMarkOfEndedDocuments) {
  const Vocabulary plain = Vocabulary::protein(), marked = plain.with_encoder_tokens().with_ended_documents();
  EXPECT_FALSE(plain.ends_documents());
  EXPECT_FALSE(Vocabulary::from_json(plain.to_json(), "f").ends_documents());
  EXPECT_TRUE(marked == plain.with_encoder_tokens());
  const Vocabulary read = Vocabulary::from_json(marked.to_json(), "f").with_labels({"no", "yes"});
  EXPECT_TRUE(read.ends_documents());
  EXPECT_EQ(read.to_json(), marked.with_labels({"no", "yes"}).to_json());
  EXPECT_THAT(testing::message_of<UserError>([&] {
                Vocabulary::from_json(marked.with_labels({"no", "no"}).to_json(), "f");
              }),
              ::testing::HasSubstr("a label occurs twice"));
  EXPECT_THROW(Vocabulary::from_json(R"({"kind": "bytes", "symbols": [], "ends_documents": 1})", "f"), UserError);
}

TEST(Vocabulary, HasExpectedSizesAndIds) {
  EXPECT_EQ(Vocabulary::bytes(false).size(), 256);
  EXPECT_EQ(Vocabulary::bytes(true).size(), 257);
  EXPECT_EQ(Vocabulary::dna().size(), 16);
  EXPECT_EQ(Vocabulary::rna().size(), 16);
  EXPECT_EQ(Vocabulary::protein().size(), 29);
  EXPECT_FALSE(Vocabulary::bytes(false).document_id());
  EXPECT_EQ(Vocabulary::bytes(true).document_id(), 256);
  EXPECT_EQ(Vocabulary::protein().document_id(), 28);
  EXPECT_EQ(Vocabulary::dna().symbol(*Vocabulary::dna().unknown_id()), "N");
  EXPECT_EQ(Vocabulary::protein().symbol(*Vocabulary::protein().unknown_id()), "X");
  EXPECT_FALSE(Vocabulary::bytes(true).unknown_id());
}

TEST(Vocabulary, AcceptsLettersInBothCases) {
  for (const char* name : {"dna", "rna", "protein"}) {
    const Vocabulary vocabulary = Vocabulary::alphabet(name);
    std::string letters;
    for (std::int32_t id = 0; id + 1 < vocabulary.size(); ++id) letters += vocabulary.symbol(id);
    const auto ids = vocabulary.encode(letters);
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], static_cast<std::int32_t>(i));
    for (char& letter : letters) letter = static_cast<char>(std::tolower(letter));
    EXPECT_EQ(vocabulary.encode(letters), ids);
  }
  EXPECT_EQ(Vocabulary::dna().id_of_byte('U'), -1);
  EXPECT_EQ(Vocabulary::rna().id_of_byte('T'), -1);
}

TEST(Vocabulary, IdentifiesAmbiguousLetters) {
  const auto ambiguous = [](const Vocabulary& vocabulary) {
    std::string letters;
    for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
      if (vocabulary.is_ambiguous(id)) letters += vocabulary.symbol(id);
    }
    return letters;
  };
  EXPECT_EQ(ambiguous(Vocabulary::dna()), "RYSWKMBDHVN");
  EXPECT_EQ(ambiguous(Vocabulary::protein()), "XBZJ");
  EXPECT_EQ(ambiguous(Vocabulary::bytes(true)), "");
}

TEST(Vocabulary, EncodesAndDecodesText) {
  const Vocabulary dna = Vocabulary::dna();
  EXPECT_EQ(dna.encode("acg T\nN<document>A"), (std::vector<std::int32_t>{0, 1, 2, 3, 14, 15, 0}));
  EXPECT_EQ(dna.decode(dna.encode("ACGTN<document>A")), "ACGTN<document>A");
  EXPECT_THAT(message_of<UserError>([&] { dna.encode("ACGE"); }),
              HasSubstr("'E' at position 4 is not a letter of the dna alphabet"));
  EXPECT_THROW(dna.decode(std::vector<std::int32_t>{16}), ContractError);
  EXPECT_THROW(dna.decode(std::vector<std::int32_t>{-1}), ContractError);

  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const Vocabulary bytes = Vocabulary::bytes(true);
  EXPECT_EQ(bytes.decode(bytes.encode(all)), all);
  EXPECT_EQ(bytes.encode("<document>").size(), 10u);  // plain text may contain these characters
  EXPECT_EQ(bytes.decode(std::vector<std::int32_t>{97, 256}), "a<document>");
}

TEST(Vocabulary, FindsIdsOfSymbols) {
  EXPECT_EQ(Vocabulary::dna().id_of("n"), 14);
  EXPECT_EQ(Vocabulary::dna().id_of("<document>"), 15);
  EXPECT_EQ(Vocabulary::bytes(false).id_of("\n"), 10);
  EXPECT_EQ(Vocabulary::bytes(false).id_of("0x0a"), 10);
  EXPECT_THAT(message_of<UserError>([] { Vocabulary::dna().id_of("J"); }),
              HasSubstr("A C G T R Y S W K M B D H V N and <document>"));
  EXPECT_THROW(Vocabulary::bytes(false).id_of("<document>"), UserError);
  EXPECT_THROW(Vocabulary::dna().id_of(""), UserError);
}

TEST(Vocabulary, RoundTripsJsonAndRejectsDamage) {
  for (const Vocabulary& vocabulary : {Vocabulary::bytes(false), Vocabulary::bytes(true), Vocabulary::dna(),
                                       Vocabulary::rna(), Vocabulary::protein()}) {
    EXPECT_EQ(Vocabulary::from_json(vocabulary.to_json(), "x"), vocabulary);
  }
  EXPECT_FALSE(Vocabulary::dna() == Vocabulary::rna());
  std::string swapped = Vocabulary::dna().to_json();
  swapped.replace(swapped.find("\"A\",\"C\""), 7, "\"C\",\"A\"");
  for (const std::string& damaged :
       {std::string(), std::string("{"), std::string("[]"), std::string(R"({"kind":"dna"})"),
        std::string(R"({"kind":3,"symbols":[]})"), std::string(R"({"kind":"words","symbols":["A"]})"),
        std::string(R"({"kind":"bytes","symbols":["A"]})"), std::string(R"({"kind":"dna","symbols":7})"),
        std::string(R"({"kind":"dna","symbols":["A","<mask>","<class>","<mask>","<class>"]})"), swapped}) {
    EXPECT_THAT(message_of<UserError>([&] { Vocabulary::from_json(damaged, "store.h5"); }),
                HasSubstr("store.h5: the vocabulary is damaged"))
        << damaged;
  }
}

TEST(SplitShares, ParsesNamedAndPositionalShares) {
  EXPECT_EQ(parse_split_shares("train:0.9,validation:0.1").share, (std::array<double, 3>{0.9, 0.1, 0}));
  EXPECT_EQ(parse_split_shares("test:0.25,train:0.75").share, (std::array<double, 3>{0.75, 0, 0.25}));
  EXPECT_EQ(parse_split_shares("0.8,0.1,0.1").share, (std::array<double, 3>{0.8, 0.1, 0.1}));
  EXPECT_EQ(parse_split_shares("1").share, (std::array<double, 3>{1, 0, 0}));
  for (const char* wrong :
       {"", "0.9", "0.9,0.2", "0.5,0.2,0.2,0.1", "train:0.9,train:0.1", "train:0.9,dev:0.1", "train:0.9,0.1", "train:x",
        "train:1.5,test:-0.5", "0,1", "train:0.9,", "nan,1", "0.5 ,0.5"}) {
    EXPECT_THROW(parse_split_shares(wrong), UserError) << wrong;
  }
  EXPECT_THAT(message_of<UserError>([] { parse_split_shares("0.8,0.1"); }), HasSubstr("add up to 0.9"));
}

}  // namespace
}  // namespace furlong
