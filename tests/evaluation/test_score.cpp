#include "evaluation/score.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "datasets/tokenizers/tokenizer.h"
#include "evaluation/mutations.h"
#include "framework/core/arena.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/evaluation/sequence_testing.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using testing::defined_log_probability;
using testing::defined_run;
using testing::message_of;
using testing::residues;
using testing::sequence_model;
using testing::with;

class ScoreTest : public testing::WithTemporaryFolder {
 protected:
  static std::string text_of(bool json, const ScoreOptions& options, const std::function<void(ScoreFile&)>& work) {
    std::string text;
    ScoreFile file(json, options.positions, [&](std::string_view part) { text += part; });
    work(file);
    return text;
  }
  Json scores(Model& model, const std::string& input, const ScoreOptions& options = {},
              DocumentSeparator separator = DocumentSeparator::line) const {
    return Json::parse(text_of(true, options, [&](ScoreFile& file) {
      score(model, {.paths = {input}, .separator = separator}, file, options);
    }));
  }
  Json mutations(Model& model, const std::string& sequence, const std::string& text,
                 const ScoreOptions& options = {}) const {
    return Json::parse(text_of(true, options, [&](ScoreFile& out) {
      score_mutations(model, {.paths = {file("wild.txt", sequence + "\n")}}, file("mutations.txt", text), out, options);
    }));
  }
};

/// log p of each scored token of a causal model by the definition.
std::vector<double> defined_causal(const Model& model, const std::vector<std::int32_t>& tokens) {
  const auto run = defined_run(model, tokens);
  std::vector<double> found;
  for (std::size_t i = 1; i < tokens.size(); ++i)
    found.push_back(defined_log_probability(model, run, i - 1, tokens[i]));
  return found;
}

/// log p of `token` at `place` of an encoder's tokens, where it is hidden.
double defined_masked(const Model& model, std::vector<std::int32_t> tokens, std::size_t place, std::int32_t token) {
  tokens[place] = *model.vocabulary.mask_id();
  return defined_log_probability(model, defined_run(model, tokens), place, token);
}

TEST_F(ScoreTest, CausalLogLikelihoodMatchesItsDefinitionInFloat64) {
  for (const bool with_documents : {false, true}) {
    Model model =
        sequence_model(Vocabulary::bytes(with_documents),
                       {"model.attention.mechanism=softmax", "model.position=learned", "model.max_sequence_length=64"});
    const std::vector<std::string> texts{"a furlong", "ab", "of 220 yards, an eighth of a mile", "x y"};
    std::string lines;
    for (const std::string& text : texts) lines += text + "\n";
    for (const std::int64_t batch_tokens : {20, 8192}) {
      const Json found = scores(model, file("text.txt", lines), {.positions = true, .batch_tokens = batch_tokens});
      ASSERT_EQ(found.size(), texts.size());
      for (std::size_t i = 0; i < texts.size(); ++i) {
        std::vector<std::int32_t> tokens = model.vocabulary.encode(texts[i]);
        if (with_documents) tokens.insert(tokens.begin(), *model.vocabulary.document_id());
        const std::vector<double> expected = defined_causal(model, tokens);
        const Json& one = found[i];
        EXPECT_EQ(one["id"], std::to_string(i + 1));
        EXPECT_EQ(one["tokens"], expected.size());
        const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
        EXPECT_NEAR(one["log_likelihood"], sum, 1e-10);
        EXPECT_NEAR(one["perplexity"], std::exp(-sum / static_cast<double>(expected.size())), 1e-9);
        for (std::size_t k = 0; k < expected.size(); ++k) {
          const Json& position = one["positions"][k];
          EXPECT_NEAR(position["log_probability"], expected[k], 1e-11);
          EXPECT_EQ(position["position"], k + (with_documents ? 1 : 2)) << "in the sequence alone";
          EXPECT_EQ(position["token"], model.vocabulary.symbol(tokens[k + 1]));
        }
      }
    }
  }
}

TEST_F(ScoreTest, StartTokenIsTheOneAskedFor) {
  Model model = sequence_model(Vocabulary::bytes(true), {"model.attention.mechanism=softmax"});
  const std::string input = file("text.txt", "furlong\n");
  const double without = scores(model, input, {.start = "none"})[0]["log_likelihood"],
               after_a = scores(model, input, {.start = "a"})[0]["log_likelihood"];
  const auto tokens = model.vocabulary.encode("afurlong");
  const std::vector<double> expected = defined_causal(model, tokens);
  EXPECT_NEAR(after_a, std::accumulate(expected.begin(), expected.end(), 0.0), 1e-10);
  EXPECT_EQ(scores(model, input, {.start = "<document>"}), scores(model, input));
  EXPECT_EQ(scores(model, input, {.start = "none"})[0]["tokens"], 6);
  EXPECT_NE(without, after_a);
  // A model that has seen documents from their first token on has learned nothing about what comes after <document>.
  Model rows = sequence_model(Vocabulary::bytes(true), {"data.sampler=documents"});
  EXPECT_EQ(scores(rows, input)[0]["tokens"], 6);
  EXPECT_THAT(message_of<UserError>([&] { scores(model, input, {.start = "<none such>"}); }), HasSubstr("--start"));
  Model masked = sequence_model(Vocabulary::protein(), testing::encoder);
  for (const char* start : {"A", "none"}) {
    EXPECT_THAT(message_of<UserError>([&] { scores(masked, input, {.start = start}); }),
                HasSubstr("both sides; remove --start"));
  }
}

// Pieces sum the same products in another order: in float64 rounding of some hundred terms.
TEST_F(ScoreTest, PiecesOfALongSequenceGiveTheLogLikelihoodOfOnePass) {
  const std::string input = file("text.txt", testing::synthetic_text(1500) + "\nabc\n" + testing::synthetic_text(90));
  for (const std::string mechanism : {"linear", "softmax", "windowed"}) {
    std::vector<std::string> overrides{"model.attention.mechanism=" + mechanism, "model.short_convolution=4"};
    if (mechanism == "windowed") overrides.emplace_back("model.attention.softmax_window=16");
    Model model = sequence_model(Vocabulary::bytes(true), overrides);
    const Json whole = scores(model, input, {.positions = true, .batch_tokens = 1 << 16});
    for (const std::int64_t batch_tokens : {1, 64, 1000}) {
      if (mechanism == "softmax" && batch_tokens == 1) continue;  // one row for each token, and nothing new
      const Json pieces = scores(model, input, {.positions = true, .batch_tokens = batch_tokens});
      ASSERT_EQ(pieces.size(), 3u);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(pieces[i]["id"], whole[i]["id"]);
        EXPECT_EQ(pieces[i]["tokens"], whole[i]["tokens"]);
        EXPECT_NEAR(pieces[i]["log_likelihood"], whole[i]["log_likelihood"], 1e-8) << mechanism << " " << batch_tokens;
        ASSERT_EQ(pieces[i]["positions"].size(), whole[i]["positions"].size());
        for (std::size_t k = 0; k < pieces[i]["positions"].size(); ++k) {
          EXPECT_EQ(pieces[i]["positions"][k]["position"], whole[i]["positions"][k]["position"]);
          EXPECT_NEAR(pieces[i]["positions"][k]["log_probability"], whole[i]["positions"][k]["log_probability"], 1e-10);
        }
      }
    }
  }
}

TEST_F(ScoreTest, MemoryDoesNotGrowWithTheLengthOfASequence) {
  Model model = make_model(testing::small_settings("none.h5", {"model.attention.mechanism=linear"}).settings,
                           Vocabulary::bytes(false), Device{});
  // Beyond 65,536 positions tables of rotary positions do not grow either.
  std::vector<std::int64_t> peaks;
  for (const std::size_t length : {80'000, 240'000}) {
    const std::string input = file("long.txt", testing::synthetic_text(length));
    arena(Device{}).reset_peak();
    const Json found = scores(model, input, {.batch_tokens = 2048}, DocumentSeparator::file);
    peaks.push_back(arena(Device{}).counters().peak_bytes);
    EXPECT_EQ(found[0]["tokens"], length - 1);
    EXPECT_LT(found[0]["log_likelihood"], 0);
  }
  EXPECT_EQ(peaks[0], peaks[1]);
}

TEST_F(ScoreTest, PseudoLogLikelihoodMatchesItsDefinitionInFloat64) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  const std::vector<std::string> sequences{residues(11), residues(3, 2), residues(7, 3)};
  const std::string input = file("s.txt", fmt::format("{}\n", fmt::join(sequences, "\n")));
  for (const std::int64_t batch_tokens : {1, 50, 8192}) {
    const Json found = scores(model, input, {.positions = true, .batch_tokens = batch_tokens});
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      std::vector<std::int32_t> tokens = model.vocabulary.encode(sequences[i]);
      tokens.push_back(*model.vocabulary.document_id());
      double sum = 0;
      ASSERT_EQ(found[i]["positions"].size(), sequences[i].size()) << "<document> is not scored";
      for (std::size_t k = 0; k < sequences[i].size(); ++k) {
        const double expected = defined_masked(model, tokens, k, tokens[k]);
        EXPECT_NEAR(found[i]["positions"][k]["log_probability"], expected, 1e-11);
        EXPECT_EQ(found[i]["positions"][k]["position"], k + 1);
        EXPECT_EQ(found[i]["positions"][k]["token"], std::string(1, sequences[i][k]));
        sum += expected;
      }
      EXPECT_NEAR(found[i]["log_likelihood"], sum, 1e-10);
    }
  }
}

// Prepared documents end with the end token, which the tokenizer does not add.
TEST_F(ScoreTest, PseudoLogLikelihoodOfATokenizerReadsTheEndToken) {
  const Vocabulary vocabulary = Vocabulary::of_tokenizer(load_tokenizer(testing::bpe_tokenizer(folder_ / "bpe")));
  Model model = sequence_model(vocabulary, testing::encoder);
  const Json found = scores(model, file("s.txt", "in the\n"), {.positions = true});
  std::vector<std::int32_t> tokens = vocabulary.encode("in the");
  const std::size_t count = tokens.size();
  tokens.push_back(*vocabulary.document_id());
  ASSERT_EQ(found[0]["positions"].size(), count);
  for (std::size_t k = 0; k < count; ++k)
    EXPECT_NEAR(found[0]["positions"][k]["log_probability"], defined_masked(model, tokens, k, tokens[k]), 1e-11);
}

TEST_F(ScoreTest, CountsWhatTheTokenizerOrTrainingLeavesOut) {
  const auto summary_of = [&](Model& model, const std::string& input) {
    ScoreFile none(true, false, [](std::string_view) {});
    return score(model, {.paths = {input}}, none, {});
  };
  const auto tokenizer =
      load_tokenizer(file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nC\nO\nCl\nBr\nc\n(\n)\n"));
  EXPECT_EQ(tokenizer->count_ignored("ClC(=O)c1[nH]%10[Xe]Br!"), 1u);
  EXPECT_EQ(tokenizer->count_ignored("ÄCl C,\tO "), 2u) << "characters, not bytes; whitespace does not count";
  EXPECT_EQ(tokenizer->count_ignored("[Xe]"), 0u) << "an unknown token";
  Model molecules = sequence_model(Vocabulary::of_tokenizer(tokenizer), testing::encoder);
  for (const char* name : {"a.txt", "a.csv"}) {
    const ReadSummary found = summary_of(molecules, file(name, "CO!!C\nCCl\nÄC\n"));
    EXPECT_EQ(found.ignored.characters, 3u);
    EXPECT_EQ(found.ignored.documents, 2u);
    EXPECT_EQ(found.untrained.characters, 0u);
  }
  for (const std::string architecture : {"encoder", "decoder"}) {
    std::vector<std::string> overrides{"data.ignore_tokens=[X,B]"};
    if (architecture == "encoder") overrides = with(testing::encoder, overrides);
    Model proteins = sequence_model(Vocabulary::protein(), overrides);
    const ReadSummary found = summary_of(proteins, file("p.fasta", ">a\nMKxV\n>b\nMKV\n>c\nMBKXX\n"));
    EXPECT_EQ(found.untrained.characters, 4u) << architecture;
    EXPECT_EQ(found.untrained.documents, 2u) << architecture;
    EXPECT_EQ(found.ignored.characters, 0u);
  }
}

TEST_F(ScoreTest, CountsSequencesLongerThanThoseOfTheTraining) {
  const auto longer = [](Model& model, const std::string& input, const ScoreOptions& options = {}) {
    ScoreFile none(true, false, [](std::string_view) {});
    return score(model, {.paths = {input}}, none, options).longer;
  };
  // data.sequence_length is 32; the last token of a causal row is only a target.
  const std::string lines = file("lines.txt", fmt::format("{}\n{}\n{}\n", residues(31), residues(32), residues(33))),
                    more = file("more.txt", residues(34) + "\n" + residues(70) + "\n");
  Model causal = sequence_model(Vocabulary::bytes(false), {"model.attention.mechanism=linear"});
  for (const std::int64_t batch_tokens : {4, 8192}) {
    EXPECT_EQ(longer(causal, lines, {.batch_tokens = batch_tokens}), 0u);
    EXPECT_EQ(longer(causal, more, {.batch_tokens = batch_tokens}), 2u);
  }
  Model masked = sequence_model(Vocabulary::protein(), testing::encoder);
  EXPECT_EQ(longer(masked, lines), 2u) << "<document> is a token of the row";
  ScoreFile none(true, false, [](std::string_view) {});
  EXPECT_EQ(score_mutations(masked, {.paths = {file("wild.txt", "M" + residues(33) + "\n")}},
                            file("mutations.txt", "M1W\n"), none, {})
                .longer,
            1u);
  causal.settings.data.stateful = true;
  EXPECT_EQ(longer(causal, more), 0u);
  masked.settings.data.use("");
  EXPECT_EQ(longer(masked, lines), 0u) << "of an imported model the length is not known";
}

TEST_F(ScoreTest, CountsMutationsOfTokensThatWereNotTrained) {
  Model model = sequence_model(Vocabulary::protein(), with(testing::encoder, {"data.ignore_tokens=[X,B]"}));
  ScoreFile output(true, false, [](std::string_view) {});
  const ReadSummary found = score_mutations(model, {.paths = {file("wild.txt", "MKXV\n")}},
                                            file("mutations.txt", "K2R\nK2B\nX3A\nM1W:K2X\n"), output, {});
  EXPECT_EQ(found.untrained_mutations, 3u);
}

TEST_F(ScoreTest, CountsMutationsOfAFirstTokenWithoutProbability) {
  Model model = sequence_model(Vocabulary::protein(), {});
  ScoreFile output(true, false, [](std::string_view) {});
  const std::string wild = file("wild.txt", "MKLV\n"), mutations = file("mutations.txt", "M1W\nK2R\nM1A:K2X\n");
  EXPECT_EQ(score_mutations(model, {.paths = {wild}}, mutations, output, {.start = "none"}).first_mutations, 2u);
  ScoreFile started(true, false, [](std::string_view) {});
  EXPECT_EQ(score_mutations(model, {.paths = {wild}}, mutations, started, {.start = "V"}).first_mutations, 0u);
  ScoreFile short_output(true, false, [](std::string_view) {});
  const std::string one = file("one.txt", "M\n"), of_one = file("of_one.txt", "M1W\n");
  EXPECT_THAT(
      message_of<UserError>([&] { score_mutations(model, {.paths = {one}}, of_one, short_output, {.start = "none"}); }),
      HasSubstr("one token with nothing before it"));
}

TEST_F(ScoreTest, ProgressCountsWhatIsScoredAndNotWhatIsRead) {
  Model masked = sequence_model(Vocabulary::protein(), testing::encoder);
  Model causal = sequence_model(Vocabulary::protein(), {"model.attention.mechanism=linear"});
  const std::string text = fmt::format("{0}\n{0}\n{0}\n{0}\n", residues(9));
  const std::string input = file("s.txt", text);
  for (Model* model : {&masked, &causal}) {
    for (const std::int64_t batch_tokens : {4, 20, 8192}) {
      const bool in_pieces = model == &causal && batch_tokens == 4;
      std::vector<std::uint64_t> bytes, sequences;
      scores(*model, input, {.batch_tokens = batch_tokens, .progress = [&](std::uint64_t done, std::uint64_t count) {
                               bytes.push_back(done);
                               sequences.push_back(count);
                             }});
      EXPECT_TRUE(std::is_sorted(bytes.begin(), bytes.end()));
      EXPECT_TRUE(std::is_sorted(sequences.begin(), sequences.end()));
      EXPECT_EQ(bytes.front(), in_pieces ? text.size() : 0u) << "nothing is scored when the file is read";
      EXPECT_EQ(bytes.back(), text.size());
      EXPECT_EQ(sequences.back(), 4u);
    }
  }
  std::vector<std::uint64_t> sequences;
  scores(masked, input, {.batch_tokens = 20, .progress = [&](std::uint64_t, std::uint64_t count) {
                           if (sequences.empty() || count != sequences.back()) sequences.push_back(count);
                         }});
  EXPECT_THAT(sequences, ::testing::ElementsAre(0, 1, 2, 3, 4));
  for (Model* model : {&masked, &causal}) {
    std::vector<double> shares;
    ScoreFile none(true, false, [](std::string_view) {});
    score_mutations(*model, {.paths = {file("wild.txt", "MKVLAAGW\n")}}, file("mutations.txt", "K2R\nG7D\n"), none,
                    {.batch_tokens = 9}, [&](double share) { shares.push_back(share); });
    EXPECT_EQ(shares.size(), 2u);
    EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
    EXPECT_EQ(shares.back(), 1);
  }
}

TEST_F(ScoreTest, MarginalScoresOfMutationsMatchTheirDefinition) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  const std::string wild = "MKVLAAGW";
  std::vector<std::int32_t> tokens = model.vocabulary.encode(wild);
  tokens.push_back(*model.vocabulary.document_id());
  const auto visible = defined_run(model, tokens);
  const auto id = [&](const char* letter) { return model.vocabulary.id_of(letter); };
  const auto masked = [&](std::size_t at, const char* from, const char* to) {
    return defined_masked(model, tokens, at - 1, id(to)) - defined_masked(model, tokens, at - 1, id(from));
  };
  const auto seen = [&](std::size_t at, const char* from, const char* to) {
    return defined_log_probability(model, visible, at - 1, id(to)) -
           defined_log_probability(model, visible, at - 1, id(from));
  };
  for (const std::int64_t batch_tokens : {1, 8192}) {
    const Json found =
        mutations(model, wild, "mutant,score\nK2R,1\n# a comment\n\nK2R:G7D,2\nm1w\n", {.batch_tokens = batch_tokens});
    ASSERT_EQ(found.size(), 3u);
    EXPECT_EQ(found[1]["mutation"], "K2R:G7D");
    EXPECT_NEAR(found[0]["masked_marginal"], masked(2, "K", "R"), 1e-11);
    EXPECT_NEAR(found[0]["wild_type_marginal"], seen(2, "K", "R"), 1e-11);
    EXPECT_NEAR(found[1]["masked_marginal"], masked(2, "K", "R") + masked(7, "G", "D"), 1e-11);
    EXPECT_NEAR(found[1]["wild_type_marginal"], seen(2, "K", "R") + seen(7, "G", "D"), 1e-11);
    EXPECT_NEAR(found[2]["masked_marginal"], masked(1, "M", "W"), 1e-11);
  }
}

TEST_F(ScoreTest, RejectsASecondMutationOnALine) {
  Model model = sequence_model(Vocabulary::protein(), {"model.attention.mechanism=softmax"});
  for (const char* separator : {",", "\t"})
    EXPECT_THAT(message_of<UserError>([&] { mutations(model, "MKV", std::string("K2R") + separator + "V3D\n"); }),
                HasSubstr("'V3D' is a second mutation on the line"));
}

TEST_F(ScoreTest, CausalModelsScoreAMutationByTheRatioOfLikelihoods) {
  Model model = sequence_model(Vocabulary::protein(), {"model.attention.mechanism=softmax"});
  const auto likelihood = [&](const std::string& sequence) {
    std::vector<std::int32_t> tokens = model.vocabulary.encode(sequence);
    tokens.insert(tokens.begin(), *model.vocabulary.document_id());
    const auto all = defined_causal(model, tokens);
    return std::accumulate(all.begin(), all.end(), 0.0);
  };
  const Json found = mutations(model, "MKVLAAGW", "K2R\nK2R:G7D\n", {.batch_tokens = 1});
  EXPECT_NEAR(found[0]["log_likelihood_ratio"], likelihood("MRVLAAGW") - likelihood("MKVLAAGW"), 1e-10);
  EXPECT_NEAR(found[1]["log_likelihood_ratio"], likelihood("MRVLAADW") - likelihood("MKVLAAGW"), 1e-10);
}

// Letters that a tokenizer merges have no position of their own, nor do those that a mutation would merge.
TEST_F(ScoreTest, MutationsNeedATokenForEachLetter) {
  const std::filesystem::path folder = testing::bpe_tokenizer(folder_ / "bpe");
  Json tokenizer = Json::parse(content((folder / "tokenizer.json").string()));
  Json& bpe = tokenizer["model"];
  bpe["vocab"]["NY"] = bpe["vocab"]["in"];
  bpe["vocab"].erase("in");
  bpe["merges"].back() = "N Y";
  file("bpe/tokenizer.json", tokenizer.dump());
  Model model = sequence_model(Vocabulary::of_tokenizer(load_tokenizer(folder)), {});
  const auto likelihood = [&](const std::string& sequence) {
    return scores(model, file("one.txt", sequence + "\n"))[0]["log_likelihood"].get<double>();
  };
  EXPECT_NEAR(mutations(model, "MNAQK", "A3Q\n")[0]["log_likelihood_ratio"], likelihood("MNQQK") - likelihood("MNAQK"),
              1e-9);
  const auto refused = [&](const std::string& sequence, const std::string& text) {
    return message_of<UserError>([&] { mutations(model, sequence, text); });
  };
  EXPECT_THAT(refused("MNAQK", "K5A\nA3Y\n"), HasSubstr("mutations.txt:2: A3Y: the bpe tokenizer"));
  EXPECT_THAT(refused("MNAQK", "A3Y\n"), HasSubstr("does not read the mutant as one token for each letter"));
  EXPECT_THAT(refused("MNYQQQQK", "Q5A\n"), HasSubstr("does not read the sequence as one token for each letter"));
}

// Words of WordPiece are read as whole as BPE's; letters with spaces between them, and records of FASTA, are single.
TEST_F(ScoreTest, WordPieceReadsSingleLettersAsTokens) {
  std::filesystem::create_directories(folder_ / "wordpiece");
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nKN\n";
  for (const char* prefix : {"", "##"})
    for (const char letter : std::string("MNAQK")) vocabulary += std::string(prefix) + letter + "\n";
  Model model = sequence_model(Vocabulary::of_tokenizer(load_tokenizer(file("wordpiece/vocab.txt", vocabulary))), {});
  const auto refused = [&](const std::string& sequence, const std::string& text) {
    return message_of<UserError>([&] { mutations(model, sequence, text); });
  };
  EXPECT_THAT(refused("MNAQK", "M1K\n"), HasSubstr("as one token for each letter"));
  const auto likelihood = [&](const std::string& sequence) {
    return scores(model, file("one.txt", sequence + "\n"))[0]["log_likelihood"].get<double>();
  };
  for (const char* sequence : {"M N A Q K", "M N A Q X"}) {
    std::string mutant = sequence;
    mutant[0] = 'K';
    EXPECT_NEAR(mutations(model, sequence, "M1K\n")[0]["log_likelihood_ratio"],
                likelihood(mutant) - likelihood(sequence), 1e-9)
        << sequence;
  }
}

TEST_F(ScoreTest, CountsSequencesThatAreNotUtf8) {
  const Vocabulary vocabulary =
      Vocabulary::of_tokenizer(load_tokenizer(testing::letters_tokenizer(folder_ / "letters")));
  Model model = sequence_model(vocabulary, testing::encoder);
  ScoreFile none(true, false, [](std::string_view) {});
  const std::string input = file("latin.txt", "MKV\nMK\xe9V\n\xe9\n");
  EXPECT_EQ(score(model, {.paths = {input}}, none, {}).ignored.not_utf8, 2u);
}

TEST_F(ScoreTest, InvalidMutationsAreErrorsWithTheirLine) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  const auto refused = [&](const std::string& text, const std::string& sequence = "MKVLAAGW") {
    return message_of<UserError>([&] { mutations(model, sequence, text); });
  };
  EXPECT_THAT(refused("K2R\nA3G\n"), HasSubstr("mutations.txt:2: A3G: the sequence has V at position 3; expected A"));
  EXPECT_THAT(refused("W9A\n"), HasSubstr("mutations.txt:1: W9A: the sequence has 8 positions"));
  EXPECT_THAT(refused("K0R\n"), HasSubstr("mutations.txt:1: found 'K0R'"));
  EXPECT_THAT(refused("\nK2\n"), HasSubstr("mutations.txt:2: found 'K2'"));
  EXPECT_THAT(refused("K2R:\n"), HasSubstr("found 'K2R:'"));
  EXPECT_THAT(refused("K99999999999999999999R\n"), HasSubstr("found"));
  EXPECT_THAT(refused("K2R:K2A\n"), HasSubstr("changes position 2 twice"));
  EXPECT_THAT(refused("K2R:K2A:\x1b[2J\n"), HasSubstr("'K2R:K2A:\\x1b[2J' changes position 2 twice"));
  EXPECT_THAT(refused("# none\n"), HasSubstr("there is no mutation"));
  EXPECT_THAT(refused("K2R\n", "MKV\nMKV"), HasSubstr("several sequences"));
  Model dna = sequence_model(Vocabulary::dna(), testing::encoder);
  EXPECT_THAT(message_of<UserError>([&] { mutations(dna, "ACGT", "A1E\n"); }), HasSubstr("'E' is no token"));
}

TEST_F(ScoreTest, ModelsWithoutProbabilitiesOfTokensAreRefused) {
  Model labels = sequence_model(Vocabulary::protein().with_labels({"no", "yes"}),
                                {"model.architecture=encoder", "objective.name=classification"});
  EXPECT_THAT(message_of<UserError>([&] { scores(labels, file("a.txt", "MKV\n")); }),
              ::testing::AllOf(HasSubstr("learns labels"), HasSubstr("furlong predict")));
  Model headless = sequence_model(Vocabulary::protein(), with(testing::encoder, {"model.prediction_head=none"}));
  EXPECT_THAT(message_of<UserError>([&] { mutations(headless, "MKV", "K2R\n"); }), HasSubstr("prediction_head"));
}

TEST_F(ScoreTest, TsvHasAHeaderAndALineForEachSequenceOrPosition) {
  Model model = sequence_model(Vocabulary::bytes(false), {"model.attention.mechanism=softmax"});
  const std::string input = file("text.txt", "ab\tc\nde\n");
  const auto tsv = [&](const ScoreOptions& options) {
    return text_of(false, options, [&](ScoreFile& file) { score(model, {.paths = {input}}, file, options); });
  };
  const std::string sequences = tsv({}), positions = tsv({.positions = true});
  EXPECT_THAT(sequences, ::testing::StartsWith("id\ttokens\tlog_likelihood\tperplexity\n1\t3\t-"));
  EXPECT_EQ(std::count(sequences.begin(), sequences.end(), '\n'), 3);
  const double exact = scores(model, input)[0]["log_likelihood"];
  std::istringstream first(sequences.substr(sequences.find('\n') + 1));
  std::string id, tokens, printed;
  first >> id >> tokens >> printed;
  EXPECT_EQ(printed, fmt::format("{:.9g}", exact)) << "as many digits as float32 needs";
  EXPECT_NE(printed, fmt::format("{}", exact)) << "fewer than JSON has";
  EXPECT_THAT(positions, ::testing::StartsWith("id\tposition\ttoken\tlog_probability\n1\t2\t0x62\t-"));
  EXPECT_EQ(std::count(positions.begin(), positions.end(), '\n'), 5);
  EXPECT_THAT(positions, HasSubstr("\n1\t3\t0x09\t-"));
  EXPECT_THAT(message_of<UserError>([&] { scores(model, file("one.txt", "ab\nc\n")); }),
              HasSubstr("sequence 2: its only token"));
}

}  // namespace
}  // namespace furlong
