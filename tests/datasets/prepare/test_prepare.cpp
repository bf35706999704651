#include "datasets/prepare/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "datasets/tokenized_dataset.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"
#include "tests/datasets/prepare/compress.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using testing::gzip;
using ::testing::HasSubstr;
using testing::message_of;
using testing::xz;
using SplitBy = DatasetWriterOptions::SplitBy;

class PrepareTest : public testing::WithTemporaryFolder {
 protected:
  PrepareOptions text_options(std::vector<std::string> inputs,
                              DocumentSeparator separator = DocumentSeparator::file) const {
    PrepareOptions options;
    options.inputs = std::move(inputs);
    options.output = path("store.h5");
    options.separator = separator;
    options.store.shares = parse_split_shares("1");
    options.force = true;
    return options;
  }
  PrepareOptions fasta_options(std::vector<std::string> inputs, const std::string& alphabet) const {
    PrepareOptions options = text_options(std::move(inputs));
    options.format = PrepareOptions::Format::fasta;
    options.alphabet = alphabet;
    return options;
  }
  /// Runs prepare() and returns the documents as text.
  std::vector<std::string> documents(const PrepareOptions& options) const {
    prepare(options);
    const TokenizedDataset dataset = TokenizedDataset::open(options.output);
    std::vector<std::string> found;
    for (std::uint64_t i = 0; i < dataset.n_documents(); ++i) {
      const auto range = dataset.document(i);
      found.push_back(dataset.vocabulary().decode(dataset.read(Split::train, range.begin, range.end - range.begin)));
    }
    return found;
  }
};

using Strings = std::vector<std::string>;

TEST_F(PrepareTest, SingleTextIsOneDocumentOfBytes) {
  std::string all = "text\r\n\n";
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto options = text_options({file("a", all)});
  EXPECT_EQ(documents(options), Strings{all});
  EXPECT_EQ(TokenizedDataset::open(options.output).vocabulary().size(), 256);
}

TEST_F(PrepareTest, SplitsTextAtSeparators) {
  const auto with_end = [](Strings texts) {
    for (std::string& text : texts) text += "<document>";
    return texts;
  };
  const std::string a = file("a", "one\ntwo\r\n\nthree\rx\n\n\nfour"), b = file("b", "\n\nfive\n");
  EXPECT_EQ(documents(text_options({a, b})), with_end({"one\ntwo\r\n\nthree\rx\n\n\nfour", "\n\nfive\n"}));
  EXPECT_EQ(documents(text_options({a, b}, DocumentSeparator::line)),
            with_end({"one", "two", "three\rx", "four", "five"}));
  EXPECT_EQ(documents(text_options({a, b}, DocumentSeparator::blank_line)),
            with_end({"one\ntwo", "three\rx", "four", "five"}));
  EXPECT_EQ(TokenizedDataset::open(path("store.h5")).vocabulary().size(), 257);
  const std::string spaced = file("spaced", " \n\n = Title = \n \n  x\n  y \n \t\r\n\nz\n ");
  EXPECT_EQ(documents(text_options({spaced}, DocumentSeparator::blank_line)),
            with_end({" = Title = ", "  x\n  y ", "z"}));
  const std::string marked = file("marked", "\xef\xbb\xbfone\n\xef\xbb\xbftwo"), part = file("part", "\xef\xbb");
  EXPECT_EQ(documents(text_options({marked, part}, DocumentSeparator::line)),
            with_end({"one", "\xef\xbb\xbftwo", "\xef\xbb"}));
  EXPECT_EQ(documents(text_options({marked, part}, DocumentSeparator::file)),
            with_end({"one\n\xef\xbb\xbftwo", "\xef\xbb"}));
  const auto report = prepare(text_options({a, file("empty", "")}));
  EXPECT_EQ(report.store.n_documents, 1u);
  EXPECT_EQ(report.store.n_empty_documents, 1u);
}

TEST_F(PrepareTest, CompressedInputsGiveTheSameDataset) {
  std::string text;
  for (int line = 0; line < 200'000; ++line) text += std::to_string(line * 7919 % 100'003) + "\n";
  const std::string first = text.substr(0, 700'001), second = text.substr(700'001);
  for (const std::string& input :
       {file("plain", text), file("t.gz", gzip(first) + gzip(second)), file("t.xz", xz(first) + xz(second))}) {
    const auto found = documents(text_options({input}));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_TRUE(found[0] == text) << input;
  }
}

TEST_F(PrepareTest, Fasta) {
  const std::string input = file("a.fa", ">first record ACGT\nACgt\r\nNN rY\n;a comment\nA\n>empty\n>second\n\nTTTT");
  EXPECT_EQ(documents(fasta_options({input}, "dna")), (Strings{"ACGTNNRYA<document>", "TTTT<document>"}));
  const std::string marked = file("marked.fa", "\xef\xbb\xbf>first\nACGT\n");
  EXPECT_EQ(documents(fasta_options({marked}, "dna")), Strings{"ACGT<document>"});
  EXPECT_EQ(guess_alphabet("\xef\xbb\xbf>Xerox\nACGT\n", "marked.fa"), "dna");
  const auto report = prepare(fasta_options({input}, "dna"));
  EXPECT_EQ(report.vocabulary, "dna");
  EXPECT_EQ(report.vocabulary_size, 16);
  EXPECT_EQ(report.store.n_tokens, 15u);
  EXPECT_EQ(report.store.n_documents, 2u);
  EXPECT_EQ(report.store.n_empty_documents, 1u);
  EXPECT_EQ(report.ambiguous, (std::vector<std::pair<std::string, std::uint64_t>>{{"R", 1}, {"Y", 1}, {"N", 2}}));
  EXPECT_EQ(report.n_mapped, 0u);
}

TEST_F(PrepareTest, UnknownLettersAreReportedOrMapped) {
  const std::string input = file("a.fa", ">x\nACGT\nACEG-\xff\n");
  EXPECT_THAT(message_of<UserError>([&] { prepare(fasta_options({input}, "dna")); }),
              HasSubstr(input + ":3:3: 'E' is not a letter of the dna alphabet"));
  EXPECT_FALSE(std::filesystem::exists(path("store.h5")));
  EXPECT_TRUE(partial_files(path("store.h5")).empty());
  auto options = fasta_options({input}, "dna");
  options.map_unknown = true;
  EXPECT_EQ(documents(options), Strings{"ACGTACNGNN<document>"});
  EXPECT_EQ(prepare(options).n_mapped, 3u);
  EXPECT_THAT(message_of<UserError>([&] { prepare(fasta_options({file("b.fa", ">x\nAC\xfe\n")}, "dna")); }),
              HasSubstr(":2:3: byte 0xfe"));
  EXPECT_THAT(message_of<UserError>([&] { prepare(fasta_options({file("c.fa", "\n  hello\n")}, "dna")); }),
              HasSubstr(":2:3: found 'h' before the first record"));
}

TEST_F(PrepareTest, GuessesAlphabet) {
  EXPECT_EQ(prepare(fasta_options({file("p.fa.gz", gzip(">x\nMTMDKSELVQ\n"))}, "auto")).vocabulary, "protein");
  EXPECT_EQ(guess_alphabet(">MMM\nACGTNNNacgt\n", "x"), "dna");
  EXPECT_EQ(guess_alphabet(">x\nACGUUUG\n", "x"), "rna");
  EXPECT_EQ(guess_alphabet(">aligned\nACG-TA.CG--\n", "x"), "dna");
  EXPECT_EQ(guess_alphabet(">x\nMTMDKSELVQ\n", "x"), "protein");
  // All letters are nucleotide codes, but too few are A, C, G, T. A short peptide can be such a sequence.
  EXPECT_EQ(guess_alphabet(">x\nRYRYRYRYACGT\n", "x"), "protein");
  std::string ambiguous = ">x\n";
  for (int i = 0; i < 25; ++i) ambiguous += "ACRY";
  EXPECT_EQ(message_of<UserError>([&] { guess_alphabet(ambiguous, "a.fa"); }),
            "a.fa: all 100 letters are nucleotide codes, but only 50 are A, C, G, T, U or N; pass --alphabet dna, rna "
            "or protein");
  EXPECT_THAT(message_of<UserError>([] { guess_alphabet(">x\n>y\n", "a.fa"); }), HasSubstr("a.fa: found no sequence"));
}

TEST_F(PrepareTest, FewLettersDoNotDecideTheAlphabet) {
  std::string genome;
  for (int i = 0; i < 100; ++i) genome += fmt::format(">{}\nACGTACGT\n", i);
  const auto refusal = [&](const std::string& more) {
    return message_of<UserError>([&] { prepare(fasta_options({file("a.fa", genome + more)}, "auto")); });
  };
  EXPECT_THAT(refusal(">x\nACGT\nACXT\n"),
              HasSubstr("a.fa:203:3: 'X' is no nucleotide, but 807 of 808 letters are A, C, G, T, U or N; pass "
                        "--alphabet dna, rna or protein"));
  EXPECT_THAT(refusal(">x\nacgte\n"), HasSubstr("a.fa:202:5: 'e' is no nucleotide"));
  EXPECT_THAT(refusal(">x\nACGT1\n"), HasSubstr("a.fa:202:5: '1' is no nucleotide"));
  EXPECT_THAT(refusal(">x\nACG-T\n"),
              HasSubstr("a.fa:202:4: '-' is not a letter of the dna alphabet, which was detected, not given; pass "
                        "--alphabet"));
  auto given = fasta_options({file("a.fa", genome + ">x\nACGTX\n")}, "dna");
  given.map_unknown = true;
  EXPECT_EQ(prepare(given).n_mapped, 1u);
}

TEST_F(PrepareTest, WarnsOfRepeatedNames) {
  const LogCapture captured;
  prepare(fasta_options(
      {file("a.fa", ">x one\nAC\n>\nG\n>y\nGT\n>\nC\n"), file("b.fa", ">x\nA\n>z\nA\n>x\nA\n>z\nA\n")}, "dna"));
  EXPECT_THAT(captured.text(),
              HasSubstr("2 records have the name of an earlier record of the same file, the first of them 'x' at " +
                        path("b.fa") + ":5; check for duplicates"));
}

TEST_F(PrepareTest, WarnsOfLabelsThatASplitLacks) {
  PrepareOptions options = text_options({file("a.tsv", "a\tx\nb\ty\nc\tx\nd\ty\ne\trare\n")});
  options.format = PrepareOptions::Format::labeled;
  options.store.split_by = SplitBy::document;
  options.test_inputs = {file("test.tsv", "f\tx\ng\tX\n")};
  const LogCapture captured;
  const PrepareReport report = prepare(options);
  EXPECT_THAT(captured.text(), HasSubstr("the test split lacks 2 labels of the train split: 'y', 'rare'; its metrics"));
  EXPECT_THAT(captured.text(), HasSubstr("the train split lacks 1 label of the test split: 'X'; no model can learn"));
  EXPECT_THAT(captured.text(), ::testing::Not(HasSubstr("validation")));
  EXPECT_THAT(to_text(report), HasSubstr("              2            0            1  x\n"
                                         "              2            0            0  y\n"
                                         "              1            0            0  rare\n"
                                         "              0            0            1  X\n"));
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["splits"]["test"]["labels"], (nlohmann::json{{"x", 1}, {"y", 0}, {"rare", 0}, {"X", 1}}));
  EXPECT_EQ(json["labels"]["x"], 3);
}

TEST_F(PrepareTest, CutsSpansAtShares) {
  std::string text(100'003, 'a');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 26);
  auto options = text_options({file("a", text)});
  options.store.shares = parse_split_shares("0.85,0.05,0.1");
  const auto report = prepare(options);
  // round(0.85 n) = 85003, round(0.9 n) = 90003
  EXPECT_EQ(report.store.split_tokens, (std::array<std::uint64_t, 3>{85'003, 5'000, 10'000}));
  const TokenizedDataset dataset = TokenizedDataset::open(options.output);
  std::uint64_t begin = 0;
  for (const Split split : all_splits) {
    const auto& ranges = dataset.ranges(split);
    ASSERT_EQ(ranges.size(), 1u);
    EXPECT_EQ(ranges[0].begin, begin);
    begin = ranges[0].end;
    EXPECT_EQ(dataset.vocabulary().decode(dataset.read(split, 0, dataset.size(split))),
              text.substr(ranges[0].begin, dataset.size(split)));
  }
  EXPECT_EQ(begin, text.size());

  options.store.shares = parse_split_shares("train:0.75,test:0.25");
  EXPECT_EQ(prepare(options).store.split_tokens, (std::array<std::uint64_t, 3>{75'002, 0, 25'001}));
  options.store.shares = parse_split_shares("train:0.75,validation:0.25");
  EXPECT_EQ(prepare(options).store.split_tokens, (std::array<std::uint64_t, 3>{75'002, 25'001, 0}));
}

TEST_F(PrepareTest, AssignsWholeDocumentsToSplitsByHash) {
  std::string text;
  std::mt19937_64 random(3);
  for (int line = 0; line < 20'000; ++line)
    text += std::string(1 + random() % 20, static_cast<char>('a' + line % 26)) + "\n";
  auto options = text_options({file("a", text)}, DocumentSeparator::line);
  options.store.split_by = SplitBy::document;
  options.store.shares = parse_split_shares("0.8,0.05,0.15");
  const auto report = prepare(options);
  // The binomial standard deviations are 57, 31 and 50 documents; the tolerance is five of them.
  EXPECT_NEAR(static_cast<double>(report.store.split_documents[0]), 16'000, 283);
  EXPECT_NEAR(static_cast<double>(report.store.split_documents[1]), 1'000, 154);
  EXPECT_NEAR(static_cast<double>(report.store.split_documents[2]), 3'000, 252);
  const auto ranges_of = [&](Split split) {
    std::vector<std::uint64_t> all;
    const TokenizedDataset dataset = TokenizedDataset::open(options.output);
    for (const auto& range : dataset.ranges(split)) all.insert(all.end(), {range.begin, range.end});
    return all;
  };
  {
    const TokenizedDataset dataset = TokenizedDataset::open(options.output);
    std::uint64_t sum = 0;
    for (const Split split : all_splits) {
      sum += dataset.size(split);
      EXPECT_EQ(dataset.size(split), report.store.split_tokens[static_cast<std::size_t>(split)]);
      std::uint64_t ends = 0;
      for (const std::int32_t id : dataset.read(split, 0, dataset.size(split))) ends += id == 256;
      EXPECT_EQ(ends, report.store.split_documents[static_cast<std::size_t>(split)]);
      std::uint64_t end_of_range = 0;
      for (const auto& range : dataset.ranges(split)) {
        end_of_range += range.end - range.begin;
        EXPECT_EQ(dataset.read(split, end_of_range - 1, 1)[0], 256);  // a range ends where a document ends
      }
    }
    EXPECT_EQ(sum, dataset.n_tokens());
  }
  const auto test_ranges = ranges_of(Split::test);
  prepare(options);
  EXPECT_EQ(ranges_of(Split::test), test_ranges);  // the same seed, the same splits
  options.store.seed = 2;
  prepare(options);
  EXPECT_NE(ranges_of(Split::test), test_ranges);
}

TEST_F(PrepareTest, RejectsEmptySplits) {
  auto options = text_options({file("a", "some text"), file("b", "more")});
  options.store.shares = parse_split_shares("0.4,0.3,0.3");
  options.store.split_by = SplitBy::document;
  EXPECT_THAT(message_of<UserError>([&] { prepare(options); }), HasSubstr("gets none of 2 documents"));
  EXPECT_FALSE(std::filesystem::exists(options.output));
  EXPECT_THAT(message_of<UserError>([&] { prepare(text_options({file("c", "")})); }), HasSubstr("the input is empty"));
}

double entropy_of(const std::vector<std::int32_t>& tokens) {
  std::map<std::int32_t, double> counts;
  for (const std::int32_t id : tokens) ++counts[id];
  double bits = 0;
  for (const auto& [id, count] : counts)
    bits -= count / static_cast<double>(tokens.size()) * std::log2(count / static_cast<double>(tokens.size()));
  return bits;
}

TEST_F(PrepareTest, EntropyIsOfTheTrainingSplit) {
  // The distribution drifts, so the entropy of a part differs from that of the whole. 34 M tokens are 519 chunks: more
  // than the 512 stored positions, so that their spacing doubles.
  std::string text(34'000'000, ' ');
  std::mt19937_64 random(5);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(random() % (2 + i / 200'000));
  const std::string input = file("a", text);
  for (const char* shares : {"0.2,0.3,0.5", "0.001,0.5,0.499", "1"}) {
    auto options = text_options({input});
    options.store.shares = parse_split_shares(shares);
    const auto report = prepare(options);
    const TokenizedDataset dataset = TokenizedDataset::open(options.output);
    EXPECT_NEAR(report.store.train_entropy, entropy_of(dataset.read(Split::train, 0, dataset.size(Split::train))), 1e-9)
        << shares;
  }
  std::string lines;
  for (int line = 0; line < 5'000; ++line)
    lines += std::string(1 + random() % 30, static_cast<char>('a' + line / 200)) + "\n";
  auto options = text_options({file("b", lines)}, DocumentSeparator::line);
  options.store.split_by = SplitBy::document;
  options.store.shares = parse_split_shares("0.5,0.25,0.25");
  const auto report = prepare(options);
  const TokenizedDataset dataset = TokenizedDataset::open(options.output);
  EXPECT_NEAR(report.store.train_entropy, entropy_of(dataset.read(Split::train, 0, dataset.size(Split::train))), 1e-9);
}

TEST_F(PrepareTest, ProvenanceNamesTheSources) {
  const std::string compressed = gzip(">a\nACGT\n");
  const auto options = fasta_options({file("a.fa.gz", compressed)}, "dna");
  prepare(options);
  const auto provenance = nlohmann::json::parse(TokenizedDataset::open(options.output).provenance());
  ASSERT_EQ(provenance["sources"].size(), 1u);
  EXPECT_EQ(provenance["sources"][0]["path"], path("a.fa.gz"));
  EXPECT_EQ(provenance["sources"][0]["bytes"], compressed.size());
  EXPECT_EQ(provenance["sources"][0]["compression"], "gzip");
  EXPECT_EQ(provenance["sources"][0]["xxh3_64"].get<std::string>().size(), 16u);
  EXPECT_EQ(provenance["options"]["alphabet"], "dna");
  EXPECT_EQ(provenance["options"]["split"]["train"], 1.0);
  EXPECT_TRUE(provenance.contains("furlong"));
  EXPECT_THAT(provenance["created"].get<std::string>(), ::testing::MatchesRegex("....-..-..T..:..:..Z"));
}

TEST_F(PrepareTest, KeepsExistingOutput) {
  auto options = text_options({file("a", "hello")});
  options.force = false;
  file("store.h5", "precious");
  EXPECT_THAT(message_of<UserError>([&] { prepare(options); }), HasSubstr("--force"));
  EXPECT_EQ(content(path("store.h5")), "precious");
  options.force = true;
  options.inputs = {path("missing")};
  EXPECT_THROW(prepare(options), UserError);
  EXPECT_EQ(content(path("store.h5")), "precious");
  options.inputs = {path("store.h5")};
  EXPECT_THAT(message_of<UserError>([&] { prepare(options); }), HasSubstr("both input and output"));
  EXPECT_EQ(content(path("store.h5")), "precious");
  options.inputs = {path("a")};
  for (std::string* other : {&options.tokenizer, &options.label_file}) {
    *other = path("store.h5");
    EXPECT_THAT(message_of<UserError>([&] { prepare(options); }), HasSubstr("both input and output"));
    EXPECT_EQ(content(path("store.h5")), "precious");
    other->clear();
  }
  EXPECT_EQ(documents(options), Strings{"hello"});
  options.output = path("no/such/folder.h5");
  EXPECT_THROW(prepare(options), UserError);
}

TEST_F(PrepareTest, FullDiskLeavesNoFile) {
  auto options = text_options({file("a", std::string(3'000'000, 'x'))});
  file("store.h5", "precious");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t limit : {4'096u, 100'000u, 2'900'000u}) {
    const rlimit limited{limit, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
    const std::string message = message_of<MachineError>([&] { prepare(options); });
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_THAT(message, HasSubstr("File too large")) << limit;
    EXPECT_EQ(content(path("store.h5")), "precious");
    EXPECT_TRUE(partial_files(path("store.h5")).empty());
  }
  std::signal(SIGXFSZ, old_handler);
}

std::size_t peak_memory_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss);
}

TEST_F(PrepareTest, MemoryDoesNotGrowWithTheInput) {
#ifdef FURLONG_SANITIZED
  GTEST_SKIP() << "sanitizers delay the release of memory";
#endif
  // 200 MB in 10 million documents through a pipe; the document offsets alone would be 80 MB.
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::thread feeder([&] {
    std::ofstream pipe(path("pipe"), std::ios::binary);
    std::string block;
    for (int line = 0; line < 10'000; ++line) block += std::to_string(1'000'000'000'000'000'000 + line) + "\n";
    for (int repeat = 0; repeat < 1'000; ++repeat) pipe.write(block.data(), static_cast<std::streamsize>(block.size()));
  });
  auto options = text_options({path("pipe")}, DocumentSeparator::line);
  options.store.split_by = SplitBy::document;
  options.store.shares = parse_split_shares("0.5,0.25,0.25");
  const std::size_t before = peak_memory_kib();
  const auto report = prepare(options);
  feeder.join();
  EXPECT_EQ(report.store.n_documents, 10'000'000u);
  EXPECT_EQ(report.store.n_tokens, 200'000'000u);
  EXPECT_LT(peak_memory_kib() - before, 64u * 1024);
}

TEST_F(PrepareTest, ReportsAsTextAndJson) {
  const auto report = prepare(fasta_options({file("a.fa", ">x\nACGTN\n")}, "dna"));
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("6 tokens; vocabulary: dna (16 symbols); 1 document\n"));
  EXPECT_THAT(text, HasSubstr("ambiguous letters: N 1"));
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["tokens"], 6);
  EXPECT_EQ(json["splits"]["train"]["tokens"], 6);
  EXPECT_EQ(json["ambiguous"]["N"], 1);
  EXPECT_NEAR(json["train_entropy_bits_per_token"].get<double>(), std::log2(6.0), 1e-12);
}

}  // namespace
}  // namespace furlong
