// Folders as inputs, labels from folders, and splits with inputs of their own.
#include "datasets/prepare/input_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/provenance.h"
#include "datasets/tokenized_dataset.h"
#include "framework/core/error.h"
#include "tests/datasets/prepare/compress.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::message_of;
using Ids = std::vector<std::int32_t>;
using Strings = std::vector<std::string>;

class InputFilesTest : public testing::WithTemporaryFolder {
 protected:
  /// Writes a file and its folder.
  std::string put(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    return file(name, content);
  }
  PrepareOptions options(const Strings& inputs) const {
    PrepareOptions made;
    made.format = PrepareOptions::Format::labeled;
    made.labeled.kind = LabeledFormat::Kind::files;
    made.inputs = inputs;
    made.output = path("out.h5");
    made.force = true;
    made.store.documents_per_label = 1;
    made.store.split_by = DatasetWriterOptions::SplitBy::document;
    made.store.shares = parse_split_shares("1,0,0");
    return made;
  }
  std::string refusal(const PrepareOptions& options) const {
    const std::string message = message_of<UserError>([&] { prepare(options); });
    EXPECT_FALSE(fs::exists(options.output));
    return message;
  }
  static std::string text(const TokenizedDataset& data, Split split) {
    return data.vocabulary().decode(data.read(split, 0, data.n_tokens()));
  }
};

// An attribute has a limit, and every rank reads it.
TEST_F(InputFilesTest, ProvenanceOfManyFilesStaysSmall) {
  const auto sources = [&](std::size_t most_bytes, const Strings& contents) {
    Provenance provenance(most_bytes);
    for (std::size_t i = 0; i < contents.size(); ++i) {
      ByteSource source(put("many/" + std::to_string(i), contents[i]));
      char bytes[64];
      while (source.read(bytes, sizeof bytes) > 0) continue;
      provenance.add(source);
    }
    return nlohmann::json::parse(provenance.text({}))["sources"];
  };
  const auto whole = sources(1 << 20, {"one", "two", "three"});
  ASSERT_EQ(whole.size(), 3u);
  const std::size_t of_one = whole[0].dump().size();
  const auto found = sources(2 * of_one - 1, {"one", "two", "three"});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], whole[0]);
  EXPECT_EQ(found[1]["further_files"], 2);
  EXPECT_EQ(found[1]["bytes"], 8);
  for (const Strings& other : {Strings{"one", "tw0", "three"}, Strings{"one", "two", "thre3"}})
    EXPECT_NE(sources(2 * of_one - 1, other)[1]["xxh3_64"], found[1]["xxh3_64"]);
}

TEST_F(InputFilesTest, FoldersAreTheirFilesInOrder) {
  const std::string b = put("man/man2/b", "2"), a = put("man/man2/a", "1"), deep = put("man/man1/x/c", "3");
  put("man/.git/hidden", "4");
  put("man/man2/.hidden", "5");
  const std::string other = put("other", "6");
  fs::create_symlink("b", path("man/man2/aa"));           // the same file, once
  fs::create_symlink("../../other", path("man/man1/o"));  // a file of another folder
  fs::create_symlink("nowhere", path("man/man1/broken"));
  fs::create_directory_symlink(path("man"), path("man/loop"));
  fs::create_directory_symlink("man2", path("man/aaa"));  // the same folder, once
  EXPECT_EQ(files_of({other, path("man"), "-"}), (Strings{other, path("man/man1/o"), deep, a, b, "-"}));
  put("far/sub/d", "7");
  fs::create_directory_symlink(path("far"), path("man/zzz"));  // a folder elsewhere
  EXPECT_EQ(files_of({path("man")}), (Strings{path("man/man1/o"), deep, a, b, path("man/zzz/sub/d")}));
  fs::create_directories(path("empty/folder"));
  EXPECT_THAT(message_of<UserError>([&] { files_of({path("empty")}); }), HasSubstr("empty: the folder has no files"));
}

TEST_F(InputFilesTest, LabelIsTheNameOfTheFolder) {
  EXPECT_EQ(folder_of("a/b/c.txt"), "b");
  EXPECT_EQ(folder_of("a/b/../c.txt"), "a");
  EXPECT_EQ(folder_of("x"), fs::current_path().filename());
  EXPECT_THAT(message_of<UserError>([] { folder_of("/x"); }), HasSubstr("/x: the file is in no folder"));
  EXPECT_THAT(message_of<UserError>([] { folder_of("a\xff/x"); }), HasSubstr("not valid UTF-8"));
}

TEST_F(InputFilesTest, WholeFilesBecomeDocumentsLabeledByTheirFolder) {
  put("man/man2/open.2", ".TH OPEN\n\"a\tb\"\r\n");
  put("man/man1/ls.1.gz", testing::gzip("\xef\xbb\xbf.TH LS"));
  put("man/man1/none.1", "");
  prepare(options({path("man")}));
  const TokenizedDataset data = TokenizedDataset::open(path("out.h5"));
  // In random order, so that a part of a split has all labels; labels are in the order of the paths.
  EXPECT_EQ(text(data, Split::train), ".TH OPEN\n\"a\tb\"\r\n<document>.TH LS<document>");
  EXPECT_EQ(data.labels(), (Ids{1, 0}));
  EXPECT_EQ(data.vocabulary().labels(), (Strings{"man1", "man2"}));
  const auto provenance = nlohmann::json::parse(data.provenance());
  EXPECT_EQ(provenance["options"]["format"], "files");
  EXPECT_FALSE(provenance["options"].contains("text_field"));
  EXPECT_EQ(provenance["sources"].size(), 3u);
  // Names in an order of the user, and letters as tokens.
  PrepareOptions dna = options({put("dna/y/1", "ac\ngt"), put("dna/x/1", "tt")});
  dna.labeled.labels = {"x", "y"};
  dna.alphabet = "dna";
  prepare(dna);
  const TokenizedDataset letters = TokenizedDataset::open(path("out.h5"));
  EXPECT_EQ(text(letters, Split::train), "TT<document>ACGT<document>");
  EXPECT_EQ(letters.labels(), (Ids{0, 1}));
}

TEST_F(InputFilesTest, SplitsHaveInputsOfTheirOwn) {
  for (int i = 0; i < 20; ++i) put(fmt::format("train/{}/{:02}", i % 2 == 0 ? "neg" : "pos", i), fmt::format("{}", i));
  put("test/neg/1", "bad");
  put("test/pos/1", "good");
  PrepareOptions wanted = options({path("train")});
  wanted.test_inputs = {path("test")};
  wanted.store.shares = parse_split_shares("0.5,0.5,0");
  const PrepareReport report = prepare(wanted);
  EXPECT_EQ(report.store.split_documents[0] + report.store.split_documents[1], 20u);
  EXPECT_EQ(report.store.split_documents[2], 2u);
  const TokenizedDataset data = TokenizedDataset::open(path("out.h5"));
  const std::uint64_t begin = data.document(20).begin;
  EXPECT_EQ(data.vocabulary().decode(data.read(Split::test, 0, data.n_tokens() - begin)),
            "good<document>bad<document>");
  const Ids labels = data.labels();
  EXPECT_EQ(std::accumulate(labels.begin(), labels.begin() + 20, 0), 10);
  for (int half = 0; half < 2; ++half) {  // both labels occur often in each
    const auto middle = labels.begin() + 10;
    const int ones = half == 0 ? std::accumulate(labels.begin(), middle, 0) : std::accumulate(middle, middle + 10, 0);
    EXPECT_TRUE(ones > 2 && ones < 8) << ones;
  }
  EXPECT_EQ(Ids(labels.begin() + 20, labels.end()), (Ids{1, 0}));
  EXPECT_EQ(nlohmann::json::parse(data.provenance())["options"]["test_inputs"][0], path("test"));
  // The documents of the other splits do not depend on the test files.
  wanted.validation_inputs = {path("test/pos")};
  wanted.test_inputs = {path("test/neg")};
  wanted.store.shares = parse_split_shares("1,0,0");
  EXPECT_EQ(prepare(wanted).store.split_documents, (std::array<std::uint64_t, 3>{20, 1, 1}));
}

TEST_F(InputFilesTest, RejectsInputsOfTwoSplitsAndRepeatedInputs) {
  put("train/neg/1", "bad");
  put("train/pos/1", "good");
  std::filesystem::create_directories(path("links/neg"));
  std::filesystem::create_symlink(path("train/pos/1"), path("links/neg/2"));
  for (const char* test : {"train", "train/pos", "train/pos/1", "links"}) {
    PrepareOptions wanted = options({path("train")});
    wanted.test_inputs = {path(test)};
    wanted.store.shares = parse_split_shares("1,0,0");
    EXPECT_THAT(message_of<UserError>([&] { prepare(wanted); }), ::testing::HasSubstr("is an input of two splits"))
        << test;
  }
  for (const char* again : {"train", "train/pos", "train/pos/1", "links"}) {
    PrepareOptions wanted = options({path("train"), path(again)});
    wanted.store.shares = parse_split_shares("0.5,0,0.5");
    EXPECT_THAT(message_of<UserError>([&] { prepare(wanted); }),
                ::testing::HasSubstr("is the same file as " + path("train/")))
        << again;
  }
  PrepareOptions repeated = options({path("train"), path("train/pos/1")});
  repeated.output = path("repeated.h5");
  repeated.store.shares = parse_split_shares("1,0,0");
  EXPECT_EQ(prepare(repeated).store.n_documents, 3u) << "there is one split";
  EXPECT_FALSE(std::filesystem::exists(path("out.h5")));
}

TEST_F(InputFilesTest, PairsAndTextHaveSplitsOfTheirOwn) {
  PrepareOptions pairs = options({file("a.tsv", "1\ta b\tc\n0\td\te\n")});
  pairs.labeled.kind = LabeledFormat::Kind::tsv;
  pairs.labeled.text_field = "2";
  pairs.labeled.second_text_field = "3";
  pairs.labeled.label_fields = {"1"};
  pairs.test_inputs = {file("b.tsv", "0\tf\tg\n")};
  prepare(pairs);
  const TokenizedDataset data = TokenizedDataset::open(path("out.h5"));
  EXPECT_EQ(data.vocabulary().decode(data.read(Split::test, 0, 4)), "f<document>g<document>");
  EXPECT_EQ(data.labels(), (Ids{0, 1, 1}));
  PrepareOptions lines;
  lines.inputs = {file("a", "x\ny\n")};
  lines.test_inputs = {file("b", "z\n")};
  lines.output = path("out.h5");
  lines.force = true;
  lines.separator = DocumentSeparator::line;
  lines.store = options({}).store;
  lines.store.documents_per_label = 0;
  prepare(lines);
  const TokenizedDataset split = TokenizedDataset::open(path("out.h5"));
  EXPECT_EQ(split.vocabulary().decode(split.read(Split::test, 0, 2)), "z<document>");
}

// Columns of the ACL Anthology Network pairs of Long Range Arena: label, two ids, two texts, no header, no quoting.
TEST_F(InputFilesTest, TablesOfRetrievalAreTextPairs) {
  const std::string table =
      "0.0\tP93-1001\tW04-0912\t\"Quoted\" text, with a comma\tit's \"open\n"
      "1.0\tJ90-2002\tP93-1001\t\"\tb c\\n\n";
  PrepareOptions pairs = options({file("new_aan_pairs.train.tsv", table)});
  pairs.labeled.kind = LabeledFormat::Kind::tsv;
  pairs.labeled.text_field = "4";
  pairs.labeled.second_text_field = "5";
  pairs.labeled.label_fields = {"1"};
  pairs.labeled.labels = {"0.0", "1.0"};
  prepare(pairs);
  const TokenizedDataset data = TokenizedDataset::open(path("out.h5"));
  EXPECT_EQ(text(data, Split::train),
            "\"Quoted\" text, with a comma<document>it's \"open<document>\"<document>b c\\n<document>");
  EXPECT_EQ(data.documents_per_label(), 2u);
  EXPECT_EQ(data.labels(), (Ids{0, 1}));
  EXPECT_EQ(data.vocabulary().labels(), (Strings{"0.0", "1.0"}));
  fs::remove(path("out.h5"));
  pairs.inputs = {file("cut.tsv", "0.0\tP93-1001\tW04-0912\tonly one\n")};
  EXPECT_THAT(refusal(pairs), HasSubstr("cut.tsv:1: the record has 4 columns, expected text in column 5"));
}

TEST_F(InputFilesTest, RejectsInputsThatDoNotFit) {
  const std::string text = put("neg/1", "x");
  PrepareOptions wanted = options({text});
  wanted.labeled.labels = {"pos"};
  EXPECT_THAT(refusal(wanted), HasSubstr("neg/1: the label 'neg' is not in --labels: pos"));
  wanted = options({"-"});
  EXPECT_THAT(refusal(wanted), HasSubstr("standard input or a pipe is in no folder"));
  wanted = options({text});
  wanted.test_inputs = {put("pos/1", "y")};
  wanted.store.shares = parse_split_shares("0.9,0,0.1");
  EXPECT_THAT(refusal(wanted), HasSubstr("--split: the test split has the fraction 0.1 and --test-inputs"));
  wanted.store.shares = parse_split_shares("1,0,0");
  wanted.store.split_by = DatasetWriterOptions::SplitBy::span;
  EXPECT_THAT(refusal(wanted), HasSubstr("--test-inputs needs --split-by document"));
  wanted = options({text});
  wanted.validation_inputs = {put("pos/2", "")};
  EXPECT_THAT(refusal(wanted), HasSubstr("--validation-inputs: no tokens to write"));
  EXPECT_THAT(refusal(options({put("neg/cut.gz", testing::gzip("text").substr(0, 12))})), HasSubstr("truncated"));
}

}  // namespace
}  // namespace furlong
