// Vocabularies with a tokenizer, and datasets of their tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "datasets/prepare/document_encoder.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/text_stream.h"
#include "datasets/samplers/labeled_source.h"
#include "datasets/samplers/masking.h"
#include "datasets/tokenized_dataset.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/io/hdf5.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using Ids = std::vector<std::int32_t>;

class TokenizerVocabularyTest : public testing::WithTemporaryFolder {
 protected:
  Vocabulary letters() const {
    return Vocabulary::of_tokenizer(load_tokenizer(testing::letters_tokenizer(path("letters"))));
  }
  Vocabulary bpe() const { return Vocabulary::of_tokenizer(load_tokenizer(testing::bpe_tokenizer(path("bpe")))); }
  Vocabulary words(int n) const {
    return Vocabulary::of_tokenizer(load_tokenizer(testing::word_tokenizer(path("words"), n)));
  }

  PrepareOptions options(PrepareOptions::Format format, const std::string& content,
                         const std::string& tokenizer) const {
    PrepareOptions made;
    made.format = format;
    made.inputs = {file("input", content)};
    made.output = path("store.h5");
    made.force = true;
    made.tokenizer = tokenizer;
    made.store.shares = parse_split_shares("1");
    return made;
  }
  static std::vector<Ids> documents(const TokenizedDataset& dataset) {
    std::vector<Ids> found;
    for (std::uint64_t i = 0; i < dataset.n_documents(); ++i) {
      const auto range = dataset.document(i);
      found.push_back(dataset.read(Split::train, range.begin, range.end - range.begin));
    }
    return found;
  }
};

// --- The vocabulary

TEST_F(TokenizerVocabularyTest, WarnsOfPromptsThatEndWithASpace) {
  const Vocabulary vocabulary = bpe();
  EXPECT_THAT(vocabulary.prompt_warning("in the "), HasSubstr("ends with a space"));
  EXPECT_THAT(vocabulary.prompt_warning(std::string(10000, 'a') + "  "), HasSubstr("remove it"));
  for (const char* prompt : {"in the", "in the\n", "", " "}) EXPECT_EQ(vocabulary.prompt_warning(prompt), "") << prompt;
  EXPECT_EQ(words(3).prompt_warning("w0 w1 "), "") << "WordPiece ignores spaces";
  EXPECT_EQ(Vocabulary::bytes(true).prompt_warning("in the "), "") << "a space is a token of its own in training, too";
}

TEST_F(TokenizerVocabularyTest, HasTokenizerIdsAndSpecialTokens) {
  const Vocabulary vocabulary = letters();
  EXPECT_EQ(vocabulary.kind(), Vocabulary::Kind::tokenizer);
  EXPECT_EQ(vocabulary.size(), 25);
  EXPECT_EQ(vocabulary.document_id(), 3);
  EXPECT_EQ(vocabulary.mask_id(), 4);
  EXPECT_EQ(vocabulary.class_id(), 2);
  EXPECT_EQ(vocabulary.unknown_id(), 1);
  EXPECT_THAT(vocabulary.frame_front(), ElementsAre(2));
  EXPECT_THAT(vocabulary.frame_back(), ElementsAre(3));
  EXPECT_THAT(vocabulary.encode("LAC"), ElementsAre(5, 6, 24));
  EXPECT_THAT(vocabulary.encode_prompt("LAC"), ElementsAre(2, 5, 6, 24));
  EXPECT_THAT(vocabulary.encode_prompt("L[MASK]C", SpecialTokenMode::as_token), ElementsAre(2, 5, 4, 24));
  EXPECT_THAT(vocabulary.encode_prompt("[CLS]LA", SpecialTokenMode::as_token), ElementsAre(2, 5, 6))
      << "the frame's front is added once";
  EXPECT_THAT(vocabulary.encode_prompt("", SpecialTokenMode::as_token), ElementsAre(2));
  EXPECT_THAT(vocabulary.encode_prompt("L[MASK]C"), ::testing::Not(::testing::Contains(4)))
      << "special tokens in untrusted text are plain text";
  EXPECT_THAT(message_of<UserError>([] { Vocabulary::dna().encode_prompt("ACGT", SpecialTokenMode::as_token); }),
              HasSubstr("the dna vocabulary has no special tokens"));
  EXPECT_EQ(vocabulary.prompt_warning("LAC "), "");
  EXPECT_EQ(vocabulary.id_of("L"), 5);
  EXPECT_EQ(vocabulary.id_of("[SEP]"), 3);
  EXPECT_EQ(vocabulary.symbol(24), "C");
  EXPECT_THAT(message_of<UserError>([&] { vocabulary.id_of("lac"); }),
              HasSubstr("'lac' is not a token of the letters tokenizer of 25 tokens"));
  // Data symbols are those that text consists of, so that they may be masked or sampled; special tokens around a
  // document are not.
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) EXPECT_EQ(vocabulary.is_data_symbol(id), id >= 5) << id;
  EXPECT_EQ(vocabulary.n_data_symbols(), 20);
  EXPECT_TRUE(vocabulary.with_encoder_tokens() == vocabulary);
}

// Whatever their names.
TEST_F(TokenizerVocabularyTest, TokensAroundATextAreNoData) {
  const std::string folder = testing::bpe_tokenizer(path("bpe"));
  nlohmann::json tokenizer = nlohmann::json::parse(content(folder + "/tokenizer.json"));
  const auto special = [](const char* token) {
    return nlohmann::json{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  };
  for (const auto& [token, id] : {std::pair{"[OPEN]", 262}, std::pair{"[SHUT]", 263}}) {
    nlohmann::json added = tokenizer["added_tokens"][0];
    added["id"] = id;
    added["content"] = token;
    tokenizer["added_tokens"].push_back(added);
  }
  const nlohmann::json text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto listed = [](const char* token, int id) {
    return nlohmann::json{{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  };
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {special("[OPEN]"), text, special("[SHUT]")}},
      {"pair", nlohmann::json::array({text})},
      {"special_tokens", {{"[OPEN]", listed("[OPEN]", 262)}, {"[SHUT]", listed("[SHUT]", 263)}}}};
  file("bpe/tokenizer.json", tokenizer.dump());
  const Vocabulary vocabulary = Vocabulary::of_tokenizer(load_tokenizer(folder));
  EXPECT_THAT(vocabulary.frame_front(), ElementsAre(262));
  EXPECT_THAT(vocabulary.frame_back(), ElementsAre(263));
  for (const std::int32_t id : {261, 262, 263}) EXPECT_FALSE(vocabulary.is_data_symbol(id)) << id;
  EXPECT_TRUE(vocabulary.is_data_symbol(260));
}

TEST_F(TokenizerVocabularyTest, EncodersGetMissingSpecialTokens) {
  const Vocabulary plain = bpe(), vocabulary = plain.with_encoder_tokens();
  EXPECT_EQ(plain.size(), 262);
  EXPECT_EQ(plain.document_id(), 261);
  EXPECT_FALSE(plain.mask_id() || plain.class_id());
  EXPECT_EQ(vocabulary.size(), 264);
  EXPECT_EQ(vocabulary.mask_id(), 262);
  EXPECT_EQ(vocabulary.class_id(), 263);
  EXPECT_EQ(vocabulary.document_id(), 261);
  EXPECT_EQ(vocabulary.id_of("<mask>"), 262);
  EXPECT_FALSE(vocabulary.is_data_symbol(262) || vocabulary.is_data_symbol(261));
  EXPECT_EQ(vocabulary.n_data_symbols(), 261);
  EXPECT_FALSE(plain.unknown_id());  // every byte has a token
  EXPECT_EQ(vocabulary.decode(Ids{259, 262, 'a', 263}), " the<mask>a<class>");
  EXPECT_EQ(vocabulary.decode(vocabulary.encode("in the \xf0\x9f\x90\x8c house\n")), "in the \xf0\x9f\x90\x8c house\n");
  EXPECT_TRUE(vocabulary.with_encoder_tokens() == vocabulary);
}

TEST_F(TokenizerVocabularyTest, RoundTripsThroughJson) {
  for (const Vocabulary& plain : {letters(), bpe()}) {
    for (const Vocabulary& vocabulary : {plain, plain.with_encoder_tokens(), plain.with_labels({"no", "yes"})}) {
      const Vocabulary again = Vocabulary::from_json(vocabulary.to_json(), "x.h5");
      EXPECT_TRUE(again == vocabulary);
      EXPECT_EQ(again.size(), vocabulary.size());
      EXPECT_EQ(again.labels(), vocabulary.labels());
      EXPECT_EQ(again.to_json(), vocabulary.to_json());
      EXPECT_EQ(again.encode("LATHE"), vocabulary.encode("LATHE"));
    }
  }
  EXPECT_FALSE(letters() == bpe());
  EXPECT_FALSE(letters() == letters().with_labels({"a"}));
  // The same tokens with other ids are another tokenizer.
  std::string reversed = testing::amino_acids;
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_FALSE(letters() ==
               Vocabulary::of_tokenizer(load_tokenizer(testing::letters_tokenizer(path("reversed"), reversed))));
  for (const std::string& damaged : {std::string(R"({"kind":"tokenizer","symbols":[]})"),
                                     std::string(R"({"kind":"tokenizer","symbols":[],"tokenizer":3})")}) {
    EXPECT_THAT(message_of<UserError>([&] { Vocabulary::from_json(damaged, "x.h5"); }),
                HasSubstr("x.h5: the vocabulary is damaged"));
  }
  std::string added = letters().to_json();
  added.replace(added.find("\"symbols\":[]"), 12, "\"symbols\":[\"<mask>\"]");
  EXPECT_THAT(message_of<UserError>([&] { Vocabulary::from_json(added, "x.h5"); }),
              HasSubstr("not those of an encoder with this tokenizer"));
}

TEST_F(TokenizerVocabularyTest, StreamedTextEqualsDecodedText) {
  const Vocabulary of_words = words(10), of_bytes = bpe();
  const Ids prompt = of_words.encode("w1 w2"), more = of_words.encode("w3 w4 w5");
  EXPECT_EQ(continuation_text(of_words, prompt, more), " w3 w4 w5");
  EXPECT_EQ(continuation_text(of_words, {}, more), "w3 w4 w5");
  const std::string snail = "the \xf0\x9f\x90\x8c";
  EXPECT_EQ(continuation_text(of_bytes, {}, of_bytes.encode(snail)), snail);
  const Vocabulary of_llama = Vocabulary::of_tokenizer(load_tokenizer(testing::llama_tokenizer(path("llama"))));
  const Ids ids = of_llama.encode(snail + " in  the");
  EXPECT_EQ(continuation_text(of_llama, {}, ids), snail + " in  the");
  EXPECT_EQ(continuation_text(of_llama, std::span(ids).first(1), std::span(ids).subspan(1)),
            snail.substr(3) + " in  the");
  TextStream stream(of_bytes, {});
  EXPECT_EQ(stream.next(0xf0), "\xf0");  // bytes are returned at once; the caller waits for the rest of a character
  EXPECT_EQ(continuation_text(Vocabulary::dna(), {}, Ids{0, 1, 15}), "AC<document>");
}

// --- Datasets

TEST_F(TokenizerVocabularyTest, FramesEachDocument) {
  PrepareOptions chosen =
      options(PrepareOptions::Format::text, "in the house\n\nthe\n", testing::bpe_tokenizer(path("bpe")));
  chosen.separator = DocumentSeparator::line;
  const PrepareReport report = prepare(chosen);
  const TokenizedDataset dataset = TokenizedDataset::open(chosen.output);
  EXPECT_TRUE(dataset.vocabulary() == bpe());
  EXPECT_THAT(documents(dataset), ElementsAre(Ids{260, 259, ' ', 'h', 'o', 'u', 's', 'e', 261}, Ids{257, 261}));
  EXPECT_EQ(report.tokenizer, "bpe");
  EXPECT_EQ(report.store.n_empty_documents, 1u);
  EXPECT_EQ(report.n_cut_documents, 0u);
  EXPECT_THAT(to_text(report), HasSubstr("tokens per byte: 0.6111"));  // 11 of 18
  EXPECT_THAT(to_json(report), HasSubstr("\"unknown_tokens\": 0"));
  const PrepareReport fasta =
      prepare(options(PrepareOptions::Format::fasta, ">header\nthe\n", testing::bpe_tokenizer(path("bpe"))));
  for (const char* words : {"per byte", "per_byte"})
    EXPECT_EQ((to_text(fasta) + to_json(fasta)).find(words), std::string::npos) << "headers are no text";

  // Words are framed on both sides. The document token that ends the frame is not added twice. Special tokens in the
  // text are plain text.
  chosen = options(PrepareOptions::Format::text, "w1 w9 w3\nw2 [SEP]\n", testing::word_tokenizer(path("words"), 5));
  chosen.separator = DocumentSeparator::line;
  const PrepareReport unknown = prepare(chosen);
  const std::vector<Ids> found = documents(TokenizedDataset::open(chosen.output));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], (Ids{2, 6, 1, 8, 3}));
  EXPECT_EQ(found[1].front(), 2);
  EXPECT_EQ(std::count(found[1].begin(), found[1].end(), 3), 1);
  EXPECT_EQ(unknown.n_unknown, static_cast<std::uint64_t>(1 + std::count(found[1].begin(), found[1].end(), 1)));
}

TEST_F(TokenizerVocabularyTest, CountsDocumentsThatAreNotUtf8) {
  const std::string latin = "th\xe9\nthe\n\xe9in\n";
  PrepareOptions chosen = options(PrepareOptions::Format::text, latin, testing::word_tokenizer(path("words"), 5));
  chosen.separator = DocumentSeparator::line;
  const LogCapture log;
  EXPECT_EQ(prepare(chosen).ignored.not_utf8, 2u);
  EXPECT_THAT(log.text(), HasSubstr("2 documents contain bytes that are not UTF-8"));
  chosen.tokenizer = testing::bpe_tokenizer(path("bpe"));
  EXPECT_EQ(prepare(chosen).ignored.not_utf8, 0u) << "it keeps bytes";
  chosen =
      options(PrepareOptions::Format::labeled, "th\xe9\tpos\nthe\tneg\n", testing::word_tokenizer(path("words"), 5));
  chosen.labeled.kind = LabeledFormat::Kind::tsv;
  EXPECT_EQ(prepare(chosen).ignored.not_utf8, 1u);
}

/// A file of any length needs constant memory, and the tokens at cuts are those of the uncut text.
TEST_F(TokenizerVocabularyTest, LongDocumentsAreEncodedInPieces) {
  const Vocabulary vocabulary = bpe();
  const auto encoded = [&](const std::string& text, std::size_t piece_bytes, std::uint64_t& n_cut) {
    DatasetWriterOptions all;
    all.shares = parse_split_shares("1");
    DatasetWriter writer(path("pieces.h5"), vocabulary, all);
    DocumentEncoder encoder(vocabulary, writer, 0, piece_bytes);
    for (const char byte : text) encoder.put(byte);
    encoder.end_document();
    n_cut = encoder.n_cut_documents();
    writer.finish("{}");
    return documents(TokenizedDataset::open(path("pieces.h5")))[0];
  };
  std::mt19937 random(5);
  std::string lines, one_line;
  for (int i = 0; i < 3000; ++i) {
    const std::vector<std::string> parts{"the", " the", " in", "\n", "\n\n", "  ", " \n", "\n ", "thin", "\xc3\xa4"};
    lines += parts[random() % parts.size()];
    one_line += parts[random() % 3] + (i % 7 == 0 ? "\xf0\x9f\x90\x8c" : "");
  }
  std::uint64_t n_cut = 0;
  Ids whole = vocabulary.encode(lines);
  whole.push_back(261);
  for (const std::size_t piece_bytes : {100, 333, 5000}) {
    EXPECT_EQ(encoded(lines, piece_bytes, n_cut), whole) << piece_bytes;
    EXPECT_EQ(n_cut, 1u);
  }
  EXPECT_EQ(encoded(lines, lines.size() + 1, n_cut), whole);
  EXPECT_EQ(n_cut, 0u);
  // A piece is not the beginning of a text, which this tokenizer marks.
  const Vocabulary marked = Vocabulary::of_tokenizer(load_tokenizer(testing::llama_tokenizer(path("llama"))));
  DatasetWriterOptions all;
  all.shares = parse_split_shares("1");
  std::string words;
  for (int i = 0; i < 300; ++i) words += "the thin\nin the\n";
  DatasetWriter writer(path("marked.h5"), marked, all);
  DocumentEncoder encoder(marked, writer, 0, 333);
  for (const char byte : words) encoder.put(byte);
  encoder.end_document();
  writer.finish("{}");
  EXPECT_EQ(encoder.n_cut_documents(), 1u);
  Ids uncut = marked.encode(words);
  if (const auto end = marked.document_id()) uncut.push_back(*end);
  EXPECT_EQ(documents(TokenizedDataset::open(path("marked.h5")))[0], uncut);
  // Without line ends the text is cut between characters: the tokens may differ, the text does not.
  const Ids cut = encoded(one_line, 64, n_cut);
  EXPECT_EQ(vocabulary.decode(std::span(cut).first(cut.size() - 1)), one_line);
  EXPECT_EQ(n_cut, 1u);
}

TEST_F(TokenizerVocabularyTest, TokensDoNotDependOnThreadsOrTheQueue) {
  const Vocabulary vocabulary = bpe();
  const int threads = thread_count();
  // Documents of every kind: empty, short, in several pieces.
  std::mt19937 random(9);
  std::vector<std::string> texts;
  for (int i = 0; i < 60; ++i) {
    texts.emplace_back();
    const std::size_t length = i % 10 == 3 ? 0 : i % 10 == 7 ? 3000 : 1 + random() % 100;
    const std::vector<std::string> parts{"the", " the", " in", "\n", "\n\n", "thin"};
    while (texts.back().size() < length) texts.back() += parts[random() % parts.size()];
  }
  std::vector<std::vector<Ids>> found;
  std::vector<std::uint64_t> n_cut;
  for (const int now : {1, 2, 5}) {
    set_thread_count(now);
    for (const std::size_t queue_bytes : {0, 2000, 1 << 20}) {
      DatasetWriterOptions all;
      all.shares = parse_split_shares("1");
      DatasetWriter writer(path("queued.h5"), vocabulary, all);
      DocumentEncoder encoder(vocabulary, writer, queue_bytes, 256);
      for (const std::string& text : texts) {
        for (const char byte : text) encoder.put(byte);
        encoder.end_document();
      }
      encoder.flush();
      n_cut.push_back(encoder.n_cut_documents());
      writer.finish("{}");
      found.push_back(documents(TokenizedDataset::open(path("queued.h5"))));
    }
  }
  set_thread_count(threads);
  ASSERT_EQ(found.front().size(), 54u) << "documents with tokens";
  EXPECT_EQ(n_cut.front(), 6u);
  EXPECT_THAT(found, ::testing::Each(found.front()));
  EXPECT_THAT(n_cut, ::testing::Each(n_cut.front()));
}

TEST_F(TokenizerVocabularyTest, EncodesFastaRecordsLetterByLetter) {
  const std::string tokenizer = testing::letters_tokenizer(path("letters"));
  PrepareOptions chosen = options(PrepareOptions::Format::fasta, ">a\nLAg\nC\n>b\nM X\n", tokenizer);
  EXPECT_THAT(message_of<UserError>([&] { prepare(chosen); }),
              HasSubstr("input:5:3: 'X' has no token in the letters tokenizer"));
  chosen.map_unknown = true;
  const PrepareReport report = prepare(chosen);
  EXPECT_THAT(documents(TokenizedDataset::open(chosen.output)), ElementsAre(Ids{2, 5, 6, 7, 24, 3}, Ids{2, 21, 1, 3}));
  EXPECT_EQ(report.n_unknown, 1u);
  // Without an unknown token, such letters would disappear and their neighbors merge.
  const std::string bases = file("bases.json", R"({"model": {"type": "BPE", "merges": [["A", "C"]],
      "vocab": {"A": 0, "C": 1, "G": 2, "T": 3, "AC": 4}}})");
  chosen = options(PrepareOptions::Format::fasta, ">a\nACGTNGR\n", bases);
  EXPECT_THAT(message_of<UserError>([&] { prepare(chosen); }),
              AllOf(HasSubstr("input:2:5: 'N' has no token in the"), Not(HasSubstr("--unknown"))));
  chosen.map_unknown = true;
  EXPECT_THAT(message_of<UserError>([&] { prepare(chosen); }), HasSubstr("has no unknown token; omit this option"));
  chosen = options(PrepareOptions::Format::text, "ACN\u00e9T", bases);
  EXPECT_EQ(prepare(chosen).ignored.characters, 2u);
  // Byte-level tokenizers encode a record as one text, regardless of its lines.
  prepare(options(PrepareOptions::Format::fasta, ">a\nL\nA\n", testing::bpe_tokenizer(path("bpe"))));
  EXPECT_THAT(documents(TokenizedDataset::open(path("store.h5"))), ElementsAre(Ids{'L', 'A', 261}));
}

TEST_F(TokenizerVocabularyTest, LabeledDocumentsAreFramedWithOneClassToken) {
  PrepareOptions chosen =
      options(PrepareOptions::Format::labeled, "LAGVSE\tx\nMC\ty\n\tz\n", testing::letters_tokenizer(path("letters")));
  prepare(chosen);
  const TokenizedDataset dataset = TokenizedDataset::open(chosen.output);
  EXPECT_EQ(dataset.vocabulary().labels(), (std::vector<std::string>{"x", "y"}))
      << "the document with label z is empty";
  EXPECT_TRUE(dataset.vocabulary().with_labels({}) == letters());
  EXPECT_THAT(documents(dataset), ElementsAre(Ids{2, 5, 6, 7, 8, 9, 10, 3}, Ids{2, 21, 24, 3}));
  LabeledOptions rows;
  rows.sequence_length = 6;
  rows.shuffled = false;
  rows.first_token = dataset.vocabulary().class_id();
  const LabeledSource source(dataset, Split::train, rows);
  EXPECT_THAT(source.batch(0, 2).inputs, ElementsAre(2, 5, 6, 7, 8, 9, 2, 21, 24, 3, 0, 0));
  EXPECT_THAT(source.note(), ::testing::StartsWith("1 of the 2 documents of the train split "));
  rows.first_token = 4;  // the documents do not start with it
  EXPECT_THAT(LabeledSource(dataset, Split::train, rows).batch(1, 1).inputs, ElementsAre(4, 2, 21, 24, 3, 0));
}

TEST_F(TokenizerVocabularyTest, LargeVocabulariesUseFourBytesPerToken) {
  constexpr int n_words = 70000;
  const std::string tokenizer = testing::word_tokenizer(path("words"), n_words);
  std::string text;
  std::mt19937 random(3);
  std::vector<Ids> expected;
  std::vector<std::uint64_t> counts(n_words + 6, 0);
  for (int line = 0; line < 4000; ++line) {
    Ids ids{2};
    for (unsigned i = 0; i < 40; ++i) {
      const auto word = static_cast<std::int32_t>(random() % n_words);
      text += fmt::format("w{} ", word);
      ids.push_back(5 + word);
    }
    text += "\n";
    ids.push_back(3);
    for (const std::int32_t id : ids) ++counts[static_cast<std::size_t>(id)];
    expected.push_back(ids);
  }
  for (const auto split_by : {DatasetWriterOptions::SplitBy::span, DatasetWriterOptions::SplitBy::document}) {
    PrepareOptions chosen = options(PrepareOptions::Format::text, text, tokenizer);
    chosen.separator = DocumentSeparator::line;
    chosen.store.split_by = split_by;
    const PrepareReport report = prepare(chosen);
    const hdf5::File file = hdf5::File::open(chosen.output);
    EXPECT_EQ(file.dataset("tokens").type(), hdf5::Type::u32);
    EXPECT_FALSE(file.has_attribute("vocabulary"));  // too large for one
    const TokenizedDataset dataset = TokenizedDataset::open(chosen.output);
    EXPECT_TRUE(documents(dataset) == expected);
    EXPECT_EQ(dataset.vocabulary().size(), n_words + 6);
    EXPECT_EQ(report.store.counts, counts);
    double entropy = 0;
    for (const std::uint64_t count : counts) {
      const double share = static_cast<double>(count) / static_cast<double>(report.store.n_tokens);
      if (count > 0) entropy -= share * std::log2(share);
    }
    EXPECT_NEAR(report.store.train_entropy, entropy, 1e-9);
  }
}

TEST_F(TokenizerVocabularyTest, SpecialTokensAreNeverMaskedOrSampled) {
  std::string fasta;
  std::mt19937 random(8);
  for (int record = 0; record < 300; ++record) {
    fasta += ">x\n";
    for (int i = 0; i < 40; ++i) fasta += testing::amino_acids[random() % 20];
    fasta += record % 3 == 0 ? "X\n" : "\n";
  }
  PrepareOptions chosen = options(PrepareOptions::Format::fasta, fasta, testing::letters_tokenizer(path("letters")));
  chosen.map_unknown = true;
  prepare(chosen);
  const TokenizedDataset dataset = TokenizedDataset::open(chosen.output);
  SamplerOptions windows;
  windows.order = SamplerOptions::Order::sequential;
  windows.sequence_length = 64;
  MaskingOptions masking;
  masking.probability = 0.5;
  masking.mask_token_fraction = 0.3;
  masking.random_token_fraction = 0.7;
  const auto rows = static_cast<std::int64_t>(Sampler(dataset, Split::train, windows).n_windows());
  const Batch plain = Sampler(dataset, Split::train, windows).batch(0, rows);
  const Batch masked =
      MaskedSource(Sampler(dataset, Split::train, windows), dataset.vocabulary(), masking).batch(0, rows);
  std::array<int, 25> drawn{};
  for (std::size_t i = 0; i < plain.inputs.size(); ++i) {
    if (masked.targets[i] == ignored_target) {
      EXPECT_EQ(masked.inputs[i], plain.inputs[i]);
      continue;
    }
    EXPECT_EQ(masked.targets[i], plain.inputs[i]);
    EXPECT_GE(masked.targets[i], 5);
    if (masked.inputs[i] != 4) ++drawn[static_cast<std::size_t>(masked.inputs[i])];
  }
  EXPECT_THAT(std::vector<int>(drawn.begin(), drawn.begin() + 5), ::testing::Each(0));
  EXPECT_GT(*std::min_element(drawn.begin() + 5, drawn.end()), 100);  // of 4200, uniform over 20
  EXPECT_GT(masked.n_targets, 5000);
}

TEST_F(TokenizerVocabularyTest, NamesMissingTokenizer) {
  const PrepareOptions chosen = options(PrepareOptions::Format::text, "text", path("nowhere"));
  EXPECT_THAT(message_of<UserError>([&] { prepare(chosen); }), HasSubstr("nowhere"));
  EXPECT_FALSE(std::filesystem::exists(chosen.output));
}

}  // namespace
}  // namespace furlong
