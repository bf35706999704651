// Labels that are numbers, sets or labels of tokens: prepare, the dataset, and batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>

#include "datasets/prepare/labeled_readers.h"
#include "datasets/prepare/prepare.h"
#include "datasets/samplers/labeled_source.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using Kind = LabeledFormat::Kind;
using Strings = std::vector<std::string>;

class LabelKindsTest : public testing::WithTemporaryFolder {
 protected:
  struct Request {
    Kind kind;
    LabelKind labels;
    Strings fields = {}, names = {}, unlabeled = {};
    std::string text_field = {}, alphabet = "protein", separator = {};
    SplitShares shares = {{1, 0, 0}};
    DatasetWriterOptions::SplitBy split_by = DatasetWriterOptions::SplitBy::document;
  };
  TokenizedDataset stored(const std::string& content, const Request& request) const {
    PrepareOptions options;
    options.format = PrepareOptions::Format::labeled;
    options.inputs = {file("input", content)};
    options.output = path("store.h5");
    options.force = true;
    options.alphabet = request.alphabet;
    options.labeled.kind = request.kind;
    options.labeled.label_kind = request.labels;
    options.labeled.text_field = request.text_field;
    options.labeled.label_fields = request.fields;
    options.labeled.labels = request.names;
    options.labeled.unlabeled = request.unlabeled;
    options.labeled.label_separator = request.separator;
    options.store.split_by = request.split_by;
    options.store.shares = request.shares;
    prepare(options);
    return TokenizedDataset::open(options.output);
  }
  /// The error of prepare, which must leave no file.
  std::string refusal(const std::string& content, const Request& request) const {
    const std::string message = message_of<UserError>([&] { stored(content, request); });
    EXPECT_FALSE(std::filesystem::exists(path("store.h5"))) << message;
    return message;
  }
  static LabeledOptions in_order(LabelKind kind, std::int64_t sequence_length) {
    LabeledOptions options;
    options.kind = kind;
    options.sequence_length = sequence_length;
    options.shuffled = false;
    return options;
  }
  static std::vector<float> values_of(const Batch& batch) {
    std::vector<float> values;
    for (const std::int32_t bits : batch.values) values.push_back(std::bit_cast<float>(bits));
    return values;
  }
};

/// Records the names and labels of documents.
class RecordingSink : public DocumentSink {
 public:
  void append(std::span<const std::uint16_t>) override {}
  void append(std::span<const std::int32_t>) override {}
  void end_document() override {}
  void name_document(std::string_view name, const std::string& place) override {
    names.push_back(std::string(name) + " at " + place);
  }
  void label(const DocumentLabel& label) override {
    numbers.insert(numbers.end(), label.numbers.begin(), label.numbers.end());
  }
  Strings names;
  std::vector<float> numbers;
};

TEST(LabeledReader, RecordsHaveAnIdAndSeveralLabels) {
  for (const auto& [kind, text] : {std::pair(Kind::csv, "tm,key,seq,activity\n60,a,MKV,1\n50, b ,GG,2\n"),
                                   std::pair(Kind::jsonl,
                                             "\n{\"tm\": 60, \"key\": \"a\", \"seq\": \"MKV\", \"activity\": 1}\n"
                                             "{\"activity\": 2, \"key\": \" b\", \"tm\": 50, \"seq\": \"GG\"}\n")}) {
    LabeledFormat format;
    format.kind = kind;
    format.text_field = "seq";
    format.id_field = "key";
    format.label_kind = LabelKind::numbers;
    format.label_fields = {"tm", "activity"};
    RecordingSink sink;
    const auto reader = make_labeled_reader(format, Vocabulary::protein(), false, sink);
    reader->begin_input("input");
    reader->feed(text);
    reader->end_input();
    EXPECT_THAT(sink.names, ElementsAre("a at input:2", "b at input:3"));
    EXPECT_THAT(sink.numbers, ElementsAre(60, 1, 50, 2));
    EXPECT_THAT(reader->label_names(), ElementsAre("tm", "activity"));
  }
}

TEST_F(LabelKindsTest, NumbersOfTablesAndJsonLines) {
  const Request csv{.kind = Kind::csv, .labels = LabelKind::numbers, .fields = {"tm", "activity"}, .text_field = "seq"};
  const TokenizedDataset data = stored("seq,tm,activity\nMKV,60,-1e-3\nGG,+50.5, 0\nWDE,70,2.5e2\n", csv);
  EXPECT_EQ(data.label_kind(), LabelKind::numbers);
  EXPECT_THAT(data.vocabulary().labels(), ElementsAre("tm", "activity"));
  EXPECT_THAT(data.label_numbers(), ElementsAre(60.F, -1e-3F, 50.5F, 0.F, 70.F, 250.F));
  const auto& scales = data.vocabulary().label_scales();
  EXPECT_NEAR(scales[0].mean, (60 + 50.5 + 70) / 3, 1e-12);
  EXPECT_NEAR(scales[0].scale, std::sqrt((60 * 60 + 50.5 * 50.5 + 70 * 70) / 3 - std::pow(180.5 / 3, 2)), 1e-10);
  const TokenizedDataset json =
      stored("{\"text\": \"MKV\", \"label\": [60, -0.001]}\n{\"text\": \"G\", \"label\": [1, 2]}",
             {.kind = Kind::jsonl, .labels = LabelKind::numbers});
  EXPECT_THAT(json.vocabulary().labels(), ElementsAre("label[0]", "label[1]"));
  EXPECT_THAT(json.label_numbers(), ElementsAre(60.F, -0.001F, 1.F, 2.F));
  const TokenizedDataset one = stored("MKV\t3\nGG\t3\n", {.kind = Kind::tsv, .labels = LabelKind::numbers});
  EXPECT_EQ(one.vocabulary().label_scales()[0].scale, 1) << "numbers that are all equal are not divided by zero";
}

TEST_F(LabelKindsTest, ScalesComeFromTheTrainingSplit) {
  std::string table;
  for (int i = 0; i < 200; ++i) table += fmt::format("MKV\t{}\n", i);
  const TokenizedDataset data =
      stored(table, {.kind = Kind::tsv, .labels = LabelKind::numbers, .shares = {{0.5, 0.5, 0}}});
  const LabeledSource train(data, Split::train, in_order(LabelKind::numbers, 8));
  const std::vector<float> values = values_of(train.batch(0, static_cast<std::int64_t>(train.n_samples())));
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(sum, 0, 1e-4);
  EXPECT_NEAR(squares / static_cast<double>(values.size()), 1, 1e-5);
  // A model keeps its own scales on other data.
  LabeledOptions options = in_order(LabelKind::numbers, 8);
  options.scales = {{100, 10}};
  const LabeledSource validation(data, Split::validation, options);
  const Batch first = validation.single_pass_batch(0, 1);
  const float number = std::round(100 + 10 * values_of(first)[0]);
  EXPECT_GE(number, 0);
  EXPECT_NEAR(values_of(first)[0], (number - 100) / 10, 1e-5);
}

TEST_F(LabelKindsTest, SetsOfTablesAndJsonLines) {
  for (const auto& [content, kind] :
       {std::pair{std::string("MKV\tmembrane; kinase\nGG\t\nWDE\tkinase;kinase\n"), Kind::tsv},
        std::pair{
            std::string("{\"text\": \"MKV\", \"label\": [\"membrane \", \" kinase\"]}\n{\"text\": \"GG\", \"label\": "
                        "[]}\n{\"text\": \"WDE\", \"label\": \"kinase\"}\n"),
            Kind::jsonl}}) {
    const TokenizedDataset data = stored(content, {.kind = kind, .labels = LabelKind::sets});
    EXPECT_THAT(data.vocabulary().labels(), ElementsAre("membrane", "kinase"));
    EXPECT_THAT(data.labels(), ElementsAre(0, 1, 1));
    EXPECT_THAT(data.label_ends(), ElementsAre(2, 2, 3));
    const LabeledSource source(data, Split::train, in_order(LabelKind::sets, 8));
    const Batch batch = source.single_pass_batch(0, 4);
    EXPECT_THAT(values_of(batch), ElementsAre(1, 1, 0, 0, 0, 1, 0, 0));
    EXPECT_THAT(batch.labels, ElementsAre(0, 0, 0, ignored_target)) << "an empty set counts, a missing sample does not";
    EXPECT_EQ(batch.n_targets, 3);
  }
  const TokenizedDataset bars = stored("MKV\ta|b\n", {.kind = Kind::tsv, .labels = LabelKind::sets, .separator = "|"});
  EXPECT_THAT(bars.vocabulary().labels(), ElementsAre("a", "b"));
}

TEST_F(LabelKindsTest, LabelsOfTokensMayBeAnyCharacter) {
  const TokenizedDataset data = stored("MKV\tαβα\nGG\tββ\n", {.kind = Kind::tsv, .labels = LabelKind::tokens});
  EXPECT_THAT(data.vocabulary().labels(), ElementsAre("α", "β"));
  EXPECT_THAT(data.labels(), ElementsAre(0, 1, 0, -1, 1, 1, -1));
  // Long records are read in parts of 64 KiB, one of which would end inside a character.
  constexpr int pairs = 40'000;
  std::string letters = "M", labels = "a";
  for (int i = 0; i < pairs; ++i) {
    letters += "MM";
    labels += "αβ";
  }
  const TokenizedDataset long_record =
      stored(letters + "\t" + labels + "\n", {.kind = Kind::tsv, .labels = LabelKind::tokens});
  EXPECT_THAT(long_record.vocabulary().labels(), ElementsAre("a", "α", "β"));
  const auto found = long_record.labels();
  ASSERT_EQ(found.size(), 2 * pairs + 2);
  EXPECT_EQ(std::count(found.begin(), found.end(), 1), pairs);
  EXPECT_EQ(std::count(found.begin(), found.end(), 2), pairs);
}

TEST_F(LabelKindsTest, LabelsOfTokens) {
  for (const auto& [content, kind] :
       {std::pair{std::string("MK V\tHE-\nGG\tCC\n"), Kind::tsv},
        std::pair{std::string("{\"text\": \"MKV\", \"label\": [\"H\", \"E\", null]}\n{\"text\": \"GG\", \"label\": "
                              "\"CC\"}\n"),
                  Kind::jsonl},
        std::pair{std::string("{\"text\": \"MKV\", \"label\": [\"H\", \"E\", -100]}\n{\"text\": \"GG\", \"label\": "
                              "\"CC\"}\n"),
                  Kind::jsonl}}) {
    const TokenizedDataset data = stored(content, {.kind = kind, .labels = LabelKind::tokens, .unlabeled = {"-"}});
    EXPECT_THAT(data.vocabulary().labels(), ElementsAre("H", "E", "C"));
    EXPECT_THAT(data.labels(), ElementsAre(0, 1, -1, -1, 2, 2, -1)) << "<document> has no label";
    const LabeledSource source(data, Split::train, in_order(LabelKind::tokens, 3));
    const Batch batch = source.single_pass_batch(0, 3);
    EXPECT_EQ(batch.n, 3);
    EXPECT_THAT(batch.targets, ElementsAre(0, 1, -1, 2, 2, -1, -1, -1, -1));
    EXPECT_TRUE(batch.labels.empty() && batch.values.empty());
    EXPECT_EQ(batch.n_targets, 4);
    EXPECT_EQ(batch.n_tokens, 6);
  }
  // The labels belong to the tokens, also in later splits and in shuffled order.
  std::string table;
  for (int i = 0; i < 60; ++i) {
    const std::string letters = std::string(static_cast<std::size_t>(1 + i % 5), 'M') + "KV";
    std::string labels;
    for (const char letter : letters) labels += static_cast<char>(letter + 1);
    table += letters + "\t" + labels + "\n";
  }
  const TokenizedDataset data =
      stored(table, {.kind = Kind::tsv, .labels = LabelKind::tokens, .shares = {{0.5, 0.5, 0}}});
  for (const Split split : {Split::train, Split::validation}) {
    LabeledOptions options = in_order(LabelKind::tokens, 6);
    options.shuffled = true;
    const Batch batch = LabeledSource(data, split, options).batch(3, 20);
    std::int64_t labeled = 0;
    for (std::size_t i = 0; i < batch.targets.size(); ++i) {
      if (batch.targets[i] == ignored_target) continue;
      ++labeled;
      const std::string name = data.vocabulary().labels()[static_cast<std::size_t>(batch.targets[i])];
      EXPECT_EQ(name[0], data.vocabulary().symbol(batch.inputs[i])[0] + 1);
    }
    EXPECT_EQ(labeled, batch.n_targets);
    EXPECT_GT(labeled, 40);
  }
}

TEST_F(LabelKindsTest, LabelsOfFastaRecordsInAnotherFile) {
  const auto prepared = [&](const std::string& label_file, const std::string& labels, LabelKind kind) {
    PrepareOptions options;
    options.format = PrepareOptions::Format::labeled;
    options.inputs = {file("proteins.fasta", ">P1 first\nMK\nV\n>P2\nGGWW\n")};
    options.output = path("store.h5");
    options.label_file = file(label_file, labels);
    options.labeled.label_kind = kind;
    options.labeled.kind = label_file.ends_with("csv") ? Kind::csv : Kind::tsv;
    options.store.split_by = DatasetWriterOptions::SplitBy::document;
    options.store.shares = {{1, 0, 0}};
    options.force = true;
    prepare(options);
    return TokenizedDataset::open(options.output);
  };
  const auto refused = [&](const std::string& label_file, const std::string& labels, LabelKind kind) {
    std::filesystem::remove(path("store.h5"));
    const std::string message = message_of<UserError>([&] { prepared(label_file, labels, kind); });
    EXPECT_FALSE(std::filesystem::exists(path("store.h5"))) << message;
    return message;
  };
  const TokenizedDataset numbers = prepared("tm.csv", "P2,60\nP3,1\nP1,50\n", LabelKind::numbers);
  EXPECT_EQ(numbers.vocabulary().kind(), Vocabulary::Kind::protein);
  EXPECT_THAT(numbers.label_numbers(), ElementsAre(50.F, 60.F));
  EXPECT_THAT(numbers.provenance(), HasSubstr("tm.csv"));
  for (const auto& [name, labels] :
       {std::pair{"states.fasta", ">P2\nEE\nEE\n>P1\nHHE\n"}, std::pair{"states.tsv", "P2\tEEEE\nP1\tHHE\n"}}) {
    const TokenizedDataset tokens = prepared(name, labels, LabelKind::tokens);
    EXPECT_THAT(tokens.vocabulary().labels(), ElementsAre("E", "H"));
    EXPECT_THAT(tokens.labels(), ElementsAre(1, 1, 0, -1, 0, 0, 0, 0, -1));
  }
  EXPECT_THAT(refused("tm.csv", "P1,50\n", LabelKind::numbers), HasSubstr("proteins.fasta:4: 'P2' has no label in"));
  EXPECT_THAT(refused("tm.csv", "P1,50\nP1,60\n", LabelKind::numbers), HasSubstr("tm.csv:2: 'P1' has a label already"));
  EXPECT_THAT(refused("tm.csv", "P1,cold\n", LabelKind::numbers), HasSubstr("tm.csv:1: 'cold'"));
  EXPECT_THAT(refused("states.fasta", ">P1\nHH\n>P2\nEEEE\n", LabelKind::tokens),
              AllOf(HasSubstr("proteins.fasta:1: the sequence has 3 tokens, but there are 2 labels at"),
                    HasSubstr("states.fasta:1")));
  EXPECT_THAT(refused("tm.fasta", ">P1\n50\n", LabelKind::numbers), HasSubstr("use --label-type token, or a table"));
}

TEST_F(LabelKindsTest, LabelsOfNoRecordAreNoClasses) {
  PrepareOptions options;
  options.format = PrepareOptions::Format::labeled;
  options.inputs = {file("proteins.fasta", ">P1\nMK\n>P2\nGG\n>P3\nLL\n>P4\nWW\n>\nMM\n")};
  options.output = path("store.h5");
  options.label_file = file("labels.csv", "id,class\nother,unused\nanother,unused\nP1,b\nP4,a\nP2,a\nP3,b\n");
  options.labeled.kind = Kind::csv;
  options.store.split_by = DatasetWriterOptions::SplitBy::document;
  options.store.shares = {{1, 0, 0}};
  options.force = true;
  EXPECT_THAT(message_of<UserError>([&] { prepare(options); }),
              AllOf(HasSubstr("proteins.fasta:9: the header has no name"), HasSubstr("labels.csv")));
  options.inputs = {file("proteins.fasta", ">P1\nMK\n>P2\nGG\n>P3\nLL\n>P4\nWW\n")};
  const LogCapture captured;
  const PrepareReport report = prepare(options);
  EXPECT_THAT(captured.text(), HasSubstr("labels.csv: the label 'class' of the first record occurs nowhere else"));
  EXPECT_THAT(captured.text(), HasSubstr("labels.csv:1: no input has a record 'id', nor 2 others of this file"));
  const TokenizedDataset data = TokenizedDataset::open(options.output);
  EXPECT_THAT(data.vocabulary().labels(), ElementsAre("b", "a"));  // in the order of the file
  EXPECT_THAT(data.labels(), ElementsAre(0, 1, 0, 1));
  ASSERT_EQ(report.store.labels.size(), 2u);
  EXPECT_EQ(report.store.labels[1].name, "a");
  EXPECT_EQ(report.store.labels[1].split_counts, (std::array<std::uint64_t, 3>{2, 0, 0}));
  options.label_file = file("labels.csv", "P1,b\nP4,a\nP2,a\nP3,b\n");
  options.labeled.labels = {"a", "unused", "b"};
  prepare(options);
  EXPECT_THAT(TokenizedDataset::open(options.output).vocabulary().labels(), ElementsAre("a", "unused", "b"));
}

TEST_F(LabelKindsTest, WarnsOfManyNumbersAsClasses) {
  const auto warnings = [&](int count, const std::string& form, bool given, int rows = 100) {
    std::string table;
    for (int i = 0; i < rows; ++i) table += "MKV," + fmt::format(fmt::runtime(form), i % count) + "\n";
    PrepareOptions options;
    options.format = PrepareOptions::Format::labeled;
    options.inputs = {file("input", table)};
    options.output = path("store.h5");
    options.labeled.kind = Kind::csv;
    options.labeled.label_kind_is_given = given;
    options.store.split_by = DatasetWriterOptions::SplitBy::document;
    options.store.shares = {{1, 0, 0}};
    options.force = true;
    const LogCapture captured;
    prepare(options);
    return captured.text();
  };
  EXPECT_THAT(warnings(50, "{}.5", false), HasSubstr("the labels are 50 different numbers, which become classes; pass "
                                                     "--label-type number"));
  EXPECT_THAT(warnings(50, "{}", false), HasSubstr("--label-type number"));
  EXPECT_EQ(warnings(50, "{}.5", true), "");
  EXPECT_EQ(warnings(50, "c{}", false), "");
  EXPECT_EQ(warnings(10, "{}", false), "");
  EXPECT_EQ(warnings(30, "{}", false, 400), "") << "numbers of classes";
}

TEST_F(LabelKindsTest, RejectsInvalidLabelsWithFileAndLine) {
  const Request numbers{.kind = Kind::csv, .labels = LabelKind::numbers};
  EXPECT_THAT(refusal("MKV,1\nGG,high\n", numbers), HasSubstr("input:2: 'high' in 2 is not a finite number"));
  EXPECT_THAT(refusal("MKV,1\nGG,\n", numbers), HasSubstr("input:2: the value in 2 is missing; expected a number"));
  EXPECT_THAT(refusal("MKV,1\nGG,1e60\n", numbers), HasSubstr("input:2: '1e60' in 2 is too large for float32"));
  for (const char* bad : {"nan", "inf", "-inf", "1,5", "0x10", "3 4"})
    EXPECT_THAT(refusal(fmt::format("MKV,1\nGG,\"{}\"\n", bad), numbers), HasSubstr("input:2: '")) << bad;
  const Request json{.kind = Kind::jsonl, .labels = LabelKind::numbers};
  EXPECT_THAT(refusal("{\"text\": \"M\", \"label\": null}", json), HasSubstr("input:1: found null"));
  EXPECT_THAT(refusal("{\"text\": \"M\", \"label\": [1]}\n{\"text\": \"M\", \"label\": [1, 2]}", json),
              HasSubstr("input:2: the record has 2 numbers as its label, expected 1: label"));
  const Request sets{.kind = Kind::tsv, .labels = LabelKind::sets, .names = {"kinase", "membrane"}};
  EXPECT_THAT(refusal("MKV\tkinase\nGG\tkinase;nuclear\n", sets),
              HasSubstr("input:2: the label 'nuclear' is not in --labels: kinase, membrane"));
  const Request tokens{.kind = Kind::tsv, .labels = LabelKind::tokens};
  EXPECT_THAT(refusal("MKV\tHEC\nMKV\tHE\n", tokens),
              HasSubstr("input:2: the sequence has 3 tokens, but there are 2 labels"));
  EXPECT_THAT(refusal("MKV\tHE \n", {.kind = Kind::tsv, .labels = LabelKind::tokens, .names = {"H", "E"}}),
              HasSubstr("input:1: the label ' ' is not in --labels: H, E"));
}

TEST_F(LabelKindsTest, RejectsOptionsWithoutEffect) {
  EXPECT_THAT(refusal("M\ta\tb\n", {.kind = Kind::tsv, .labels = LabelKind::classes, .fields = {"2", "3"}}),
              HasSubstr("--label-field: found 2 fields; expected one, or --label-type number"));
  EXPECT_THAT(refusal("s,tm\nM,1\n", {.kind = Kind::csv, .labels = LabelKind::numbers, .fields = {"tm", "tm"}}),
              HasSubstr("--label-field: 'tm' occurs twice"));
  EXPECT_THAT(refusal("M\ta\n", {.kind = Kind::tsv, .labels = LabelKind::classes, .separator = "|"}),
              HasSubstr("--label-separator has no effect with --label-type class"));
  EXPECT_THAT(refusal("M\ta\n", {.kind = Kind::tsv, .labels = LabelKind::sets, .unlabeled = {"-"}}),
              HasSubstr("--unlabeled has no effect with --label-type set"));
  EXPECT_THAT(
      refusal("M\t1\n",
              {.kind = Kind::tsv, .labels = LabelKind::numbers, .split_by = DatasetWriterOptions::SplitBy::span}),
      HasSubstr("--label-type number needs --split-by document"));
}

TEST_F(LabelKindsTest, SourceRejectsAnotherKind) {
  const TokenizedDataset data = stored("MKV\t1\n", {.kind = Kind::tsv, .labels = LabelKind::numbers});
  EXPECT_THAT(message_of<UserError>([&] { LabeledSource(data, Split::train, in_order(LabelKind::sets, 8)); }),
              HasSubstr("store.h5: the dataset has labels of type number, expected set; prepare it with --label-type "
                        "set"));
}

}  // namespace
}  // namespace furlong
