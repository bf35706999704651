#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "datasets/prepare/prepare.h"
#include "datasets/samplers/labeled_source.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using Kind = LabeledFormat::Kind;

class LabeledTest : public testing::WithTemporaryFolder {
 protected:
  PrepareOptions options(const std::string& input, Kind kind) const {
    PrepareOptions made;
    made.format = PrepareOptions::Format::labeled;
    made.inputs = {input};
    made.output = path("store.h5");
    made.force = true;
    made.labeled.kind = kind;
    made.store.split_by = DatasetWriterOptions::SplitBy::document;
    made.store.shares = {{1, 0, 0}};
    return made;
  }
  TokenizedDataset stored(const std::string& content, Kind kind,
                          const std::function<void(PrepareOptions&)>& change = {}) const {
    PrepareOptions made = options(file("input", content), kind);
    if (change) change(made);
    prepare(made);
    return TokenizedDataset::open(made.output);
  }
  std::string refusal(const std::string& content, Kind kind,
                      const std::function<void(PrepareOptions&)>& change = {}) const {
    return message_of<UserError>([&] { stored(content, kind, change); });
  }

  /// Returns documents as text with the names of their labels: "abc=yes".
  static std::vector<std::string> contents(const TokenizedDataset& dataset) {
    std::vector<std::string> found;
    const auto labels = dataset.labels();
    const auto offsets = dataset.document_offsets();
    const auto tokens = dataset.read(Split::train, 0, dataset.n_tokens());
    const std::uint64_t each = dataset.documents_per_label();
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      const std::span<const std::int32_t> document(tokens.data() + offsets[i], offsets[i + 1] - offsets[i]);
      EXPECT_EQ(document.back(), *dataset.vocabulary().document_id());
      found.push_back(dataset.vocabulary().decode(document.first(document.size() - 1)) + "=" +
                      dataset.vocabulary().labels()[static_cast<std::size_t>(labels[i / each])]);
    }
    return found;
  }
};

TEST_F(LabeledTest, TablesAndJsonLinesGiveTheSameDataset) {
  const std::vector<std::string> expected{"good film=yes", "bad, \"very\" bad=no", "so so=yes"};
  EXPECT_EQ(contents(stored("good film\tyes\nbad, \"very\" bad\tno\r\n\nso so\t yes", Kind::tsv)), expected);
  EXPECT_EQ(contents(stored("good film,yes\n\"bad, \"\"very\"\" bad\",no\n\"so so\", yes \n", Kind::csv)), expected);
  EXPECT_EQ(
      contents(stored("\xef\xbb\xbflabel,id,review\nyes,1,good film\nno,2,\"bad, \"\"very\"\" bad\"\nyes,3,so so\n",
                      Kind::csv,
                      [](PrepareOptions& o) {
                        o.labeled.text_field = "review";
                        o.labeled.label_fields = {"label"};
                      })),
      expected);
  EXPECT_EQ(contents(stored(R"({"text": "good film", "label": "yes"}
{"label": "no", "text": "bad, \"very\" bad", "more": [1]}
{"text": [115, 111, 32, 115, 111], "label": "yes"})",
                            Kind::jsonl)),
            expected);
}

TEST_F(LabeledTest, KeepsLineBreaksInsideQuotes) {
  EXPECT_EQ(contents(stored("\"one\ntwo\"\"\n\",a\nthree,b\n", Kind::csv)),
            (std::vector<std::string>{"one\ntwo\"\n=a", "three=b"}));
}

TEST_F(LabeledTest, WarnsOfAHeaderThatIsReadAsARecord) {
  const auto warnings = [&](const std::string& table) {
    const LogCapture captured;
    stored(table, Kind::tsv);
    return captured.text();
  };
  EXPECT_THAT(warnings("text\tlabel\na\tx\nb\ty\nc\tx\nd\ty\n"), HasSubstr("the label 'label' of the first record"));
  EXPECT_THAT(warnings("a\tx\nb\ty\nc\tx\nd\ty\n"), ::testing::Not(HasSubstr("header")));
}

TEST_F(LabeledTest, QuotesOpenAtTheStartOfAFieldOnly) {
  EXPECT_EQ(contents(stored("5\" pipe,good\n6\" pipe,bad\nplain,good\n", Kind::csv)),
            (std::vector<std::string>{"5\" pipe=good", "6\" pipe=bad", "plain=good"}));
  EXPECT_EQ(contents(stored("\xef\xbb\xbf\"a,\nb\",x\r\n\"c\"\"d\",y\r\ne, \"y\r\n\"f\",\"x\"\r\n", Kind::csv)),
            (std::vector<std::string>{"a,\nb=x", "c\"d=y", "e=\"y", "f=x"}));
}

// A quotation mark that opens by mistake would join records.
TEST_F(LabeledTest, RefusesTextAfterAClosingQuote) {
  for (const char* record : {"\"bad,x\nc,y\n\"d\",x\n", "\"Great\" film,x\n", "\"c\" ,y\n", "\"c\"\rd,y\n"})
    EXPECT_THAT(refusal(std::string("a,x\n") + record, Kind::csv),
                HasSubstr("input:2: text follows the closing quotation mark of a column in this record"));
}

TEST_F(LabeledTest, ReadsRecordsAcrossBlocks) {
  const std::string longer(std::size_t{3} << 20, 'x');
  const auto found = contents(stored("a\tfirst\n" + longer + "\tsecond\nb\tfirst\n", Kind::tsv));
  EXPECT_THAT(found, ElementsAre("a=first", longer + "=second", "b=first"));
}

TEST_F(LabeledTest, LimitsColumns) {
  const std::size_t most = std::size_t{1} << 20;
  EXPECT_EQ(contents(stored("a\tb" + std::string(most - 2, '\t'), Kind::tsv)), std::vector<std::string>{"a=b"});
  EXPECT_THAT(refusal("a\tb" + std::string(most - 1, '\t'), Kind::tsv),
              HasSubstr("input:1: the record has more than 1048576 columns"));
  EXPECT_THAT(refusal("a,b" + std::string(most - 1, ','), Kind::csv),
              HasSubstr("input:1: the record has more than 1048576 columns"));
}

TEST_F(LabeledTest, AssignsLabelNumbers) {
  const TokenizedDataset as_they_come =
      stored("{\"text\": \"a\", \"label\": 7}\n{\"text\": \"b\", \"label\": true}\n{\"text\": \"c\", \"label\": 7}",
             Kind::jsonl);
  EXPECT_THAT(as_they_come.vocabulary().labels(), ElementsAre("7", "true"));
  EXPECT_THAT(as_they_come.labels(), ElementsAre(0, 1, 0));
  const auto fixed = [](PrepareOptions& o) { o.labeled.labels = {"no", "yes", "maybe"}; };
  const TokenizedDataset given = stored("a\tyes\nb\tno\n", Kind::tsv, fixed);
  EXPECT_THAT(given.vocabulary().labels(), ElementsAre("no", "yes", "maybe"));
  EXPECT_THAT(given.labels(), ElementsAre(1, 0));
  EXPECT_THAT(refusal("a\tyes\nb\tnever\n", Kind::tsv, fixed),
              HasSubstr("input:2: the label 'never' is not in --labels: no, yes, maybe"));
}

TEST_F(LabeledTest, PairsStayTogether) {
  std::string table;
  for (int i = 0; i < 200; ++i) table += fmt::format("u{}\tv{}\t{}\n", i, i, i % 2);
  const TokenizedDataset dataset = stored(table, Kind::tsv, [](PrepareOptions& o) {
    o.labeled.text_field = "1";
    o.labeled.second_text_field = "2";
    o.store.shares = {{0.5, 0.3, 0.2}};
  });
  EXPECT_EQ(dataset.documents_per_label(), 2u);
  EXPECT_EQ(dataset.n_documents(), 400u);
  std::multiset<std::string> seen;
  for (const Split split : all_splits) {
    LabeledOptions options;
    options.sequence_length = 8;
    options.pairs = true;
    options.shuffled = false;
    const LabeledSource source(dataset, split, options);
    const Batch all = source.batch(0, static_cast<std::int64_t>(source.n_samples()));
    ASSERT_EQ(all.batch, static_cast<std::int64_t>(2 * source.n_samples()));
    for (std::size_t row = 0; row < static_cast<std::size_t>(all.batch); row += 2) {
      const auto text = [&](std::size_t which) {
        std::string found;
        for (std::size_t i = 1; all.inputs[which * 8 + i] != *dataset.vocabulary().document_id(); ++i)
          found += static_cast<char>(all.inputs[which * 8 + i]);
        return found;
      };
      EXPECT_EQ(all.inputs[row * 8], 'u');
      EXPECT_EQ(all.inputs[row * 8 + 8], 'v');
      EXPECT_EQ(text(row), text(row + 1));
      EXPECT_EQ(all.labels[row / 2], std::stoi(text(row)) % 2);
      seen.insert(text(row));
    }
  }
  EXPECT_EQ(seen.size(), 200u);
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 200u);
}

TEST_F(LabeledTest, SkipsEmptyTextsAndTheirLabels) {
  const TokenizedDataset single = stored("a\tx\n\ty\nb\tz\n", Kind::tsv);
  EXPECT_EQ(contents(single), (std::vector<std::string>{"a=x", "b=z"}));
  const auto pairs = [](PrepareOptions& o) { o.labeled.second_text_field = "2"; };
  EXPECT_EQ(contents(stored("a\tb\tx\nc\t\ty\nd\te\tz\n", Kind::tsv, pairs)),
            (std::vector<std::string>{"a=x", "b=x", "d=z", "e=z"}));
}

TEST_F(LabeledTest, EncodesLettersOfAlphabet) {
  const auto dna = [](PrepareOptions& o) { o.alphabet = "dna"; };
  EXPECT_EQ(contents(stored("ac gt\tx\nNN\ty\n", Kind::tsv, dna)), (std::vector<std::string>{"ACGT=x", "NN=y"}));
  EXPECT_THAT(refusal("acgt\tx\nacE\ty\n", Kind::tsv, dna),
              HasSubstr("input:2: 'E' is not a letter of the dna alphabet"));
  EXPECT_EQ(contents(stored("aEc\tx\n", Kind::tsv,
                            [](PrepareOptions& o) {
                              o.alphabet = "dna";
                              o.map_unknown = true;
                            })),
            (std::vector<std::string>{"ANC=x"}));
}

// Their fields would be read from the wrong columns.
TEST_F(LabeledTest, RejectsRecordsWiderThanTheFirstLine) {
  const auto named = [](PrepareOptions& o) {
    o.labeled.text_field = "text";
    o.labeled.label_fields = {"label"};
  };
  EXPECT_THAT(refusal("text,label\ngood,pos\nso, so,neg\n", Kind::csv, named),
              AllOf(HasSubstr("input:3: the record has 3 columns, and the header 2"), HasSubstr("double quotes")));
  EXPECT_THAT(refusal("text\tlabel\n1\tgood\tpos\n", Kind::tsv, named),
              HasSubstr("input:2: the record has 3 columns, and the header 2; a text cannot contain tabs"));
  EXPECT_THAT(refusal("good,pos\nso, so,neg\n", Kind::csv),
              HasSubstr("input:2: the record has 3 columns, and the first record 2"));
  EXPECT_THAT(refusal("text,label,note\ngood,pos,\nso, so,neg,\n", Kind::csv, named), HasSubstr("input:3: "));
  EXPECT_EQ(contents(stored("text,label\ngood,pos,\nbad,neg,\n", Kind::csv, named)),
            (std::vector<std::string>{"good=pos", "bad=neg"}));
}

TEST_F(LabeledTest, ErrorsNameTheLine) {
  EXPECT_THAT(refusal("a\tb\nonly text\n", Kind::tsv),
              HasSubstr("input:2: the record has 1 column, expected the label in column 2"));
  EXPECT_THAT(refusal("a\tb\nc\t \n", Kind::tsv), HasSubstr("input:2: the label is empty"));
  EXPECT_THAT(refusal("x,y\n1,2\n", Kind::csv, [](PrepareOptions& o) { o.labeled.label_fields = {"label"}; }),
              HasSubstr("input:1: column 'label' is missing; the header has x, y"));
  EXPECT_THAT(
      refusal("x,label,label\n1,2,3\n", Kind::csv, [](PrepareOptions& o) { o.labeled.label_fields = {"label"}; }),
      HasSubstr("input:1: the header has 'label' more than once; give the number of the column"));
  EXPECT_THAT(refusal("label,x\n1,2\n", Kind::csv,
                      [](PrepareOptions& o) { o.labeled.label_fields = {o.labeled.text_field = "label"}; }),
              HasSubstr("--label-field: 'label' is the text, which would be its own label"));
  EXPECT_THAT(refusal("{\"text\": \"a\"}\n", Kind::jsonl, [](PrepareOptions& o) { o.labeled.label_fields = {"text"}; }),
              HasSubstr("--label-field: 'text' is the text"));
  EXPECT_THAT(refusal("1\t2\n", Kind::tsv, [](PrepareOptions& o) { o.labeled.label_fields = {"01"}; }),
              HasSubstr("--label-field: '01' is the text"));
  EXPECT_THAT(refusal("\"a,b\nc,d\n", Kind::csv), HasSubstr("input:1: unclosed quotation mark"));
  EXPECT_THAT(refusal("{\"text\": \"a\", \"label\": 1}\n[1]\n", Kind::jsonl),
              HasSubstr("input:2: expected a JSON object"));
  for (const char* broken : {"{\"text\": \"a\", \"label\": NaN}\n", "{\"text\": \"\xe9\", \"label\": 1}\n"})
    EXPECT_THAT(refusal(broken, Kind::jsonl), HasSubstr("input:1: is not valid JSON ("));
  EXPECT_THAT(refusal("{\"text\": \"a\"}\n", Kind::jsonl), HasSubstr("input:1: the object has no key 'label'"));
  EXPECT_THAT(refusal("{\"text\": 5, \"label\": 1}\n", Kind::jsonl),
              HasSubstr("'text' must be a string or a list of integers from 0 to 255"));
  EXPECT_THAT(refusal("{\"text\": \"a\", \"label\": 1.5}\n", Kind::jsonl),
              HasSubstr("'label' must be a string, an integer"));
  EXPECT_EQ(labeled_format_of("a/b.csv.gz"), Kind::csv);
  EXPECT_EQ(labeled_format_of("b.jsonl"), Kind::jsonl);
  EXPECT_THAT(message_of<UserError>([] { labeled_format_of("b.dat"); }), HasSubstr("pass --format"));
}

// --- Batches

class LabeledSourceTest : public LabeledTest {
 protected:
  /// Document i is i + 1 letters long.
  TokenizedDataset letters(int n) const {
    std::string table;
    for (int i = 0; i < n; ++i)
      table += std::string(static_cast<std::size_t>(i + 1), static_cast<char>('a' + i)) + fmt::format("\t{}\n", i % 3);
    return stored(table, Kind::tsv);
  }
};

TEST_F(LabeledSourceTest, PadsAndTruncatesWithMask) {
  const TokenizedDataset dataset = letters(6);
  LabeledOptions options;
  options.sequence_length = 5;
  options.shuffled = false;
  options.first_token = 258;
  const LabeledSource source(dataset, Split::train, options);
  EXPECT_EQ(source.n_samples(), 6u);
  EXPECT_THAT(source.note(),  // d, e, f and their <document>
              HasSubstr("3 of the 6 documents of the train split are longer than 5 tokens with the class token"));
  const Batch batch = source.batch(1, 3);
  EXPECT_EQ(batch.n, 5);
  EXPECT_THAT(batch.inputs, ElementsAre(258, 'b', 'b', 256, 0, 258, 'c', 'c', 'c', 256, 258, 'd', 'd', 'd', 'd'));
  EXPECT_THAT(batch.mask, ElementsAre(1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(batch.labels, ElementsAre(1, 2, 0));
  EXPECT_EQ(batch.n_targets, 3);
  EXPECT_EQ(batch.n_tokens, 14);
  const Batch end = source.single_pass_batch(5, 2);
  EXPECT_THAT(end.labels, ElementsAre(2, ignored_target));
  EXPECT_EQ(end.n_targets, 1);
  EXPECT_EQ(std::accumulate(end.mask.begin() + 5, end.mask.end(), 0), 0);
}

TEST_F(LabeledSourceTest, PadsRowsToTheLongest) {
  const TokenizedDataset dataset = stored(std::string(70, 'a') + "\tx\nb\ty\n", Kind::tsv);
  LabeledOptions options;
  options.shuffled = false;
  options.sequence_length = 1000;
  EXPECT_EQ(LabeledSource(dataset, Split::train, options).batch(0, 2).n, 128);
  EXPECT_EQ(LabeledSource(dataset, Split::train, options).batch(1, 1).n, 64);
  options.pad_to_longest = false;
  EXPECT_EQ(LabeledSource(dataset, Split::train, options).batch(1, 1).n, 1000);
  options.pad_to_longest = true;
  options.sequence_length = 50;
  EXPECT_EQ(LabeledSource(dataset, Split::train, options).batch(0, 2).n, 50);
}

TEST_F(LabeledSourceTest, EachEpochPermutesAllSamples) {
  const TokenizedDataset dataset = letters(20);
  LabeledOptions options;
  options.sequence_length = 32;
  options.seed = 4;
  const LabeledSource source(dataset, Split::train, options);
  std::set<std::vector<std::int32_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
    const Batch batch = source.batch(epoch * 20, 20);
    std::vector<std::int32_t> order;
    for (std::size_t row = 0; row < 20; ++row) {
      order.push_back(batch.inputs[row * static_cast<std::size_t>(batch.n)]);
      EXPECT_EQ(batch.labels[row], (order.back() - 'a') % 3);
    }
    orders.insert(order);
    EXPECT_EQ(std::set<std::int32_t>(order.begin(), order.end()).size(), 20u);
    // A batch that crosses the end of an epoch continues with the next epoch.
    const Batch across = source.batch(epoch * 20 + 15, 10);
    for (std::size_t row = 0; row < 5; ++row)
      EXPECT_EQ(across.inputs[row * static_cast<std::size_t>(across.n)], order[15 + row]);
  }
  EXPECT_EQ(orders.size(), 5u);
}

TEST(Permuted, IsPermutationForEverySize) {
  for (std::uint64_t size = 1; size < 70; ++size) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < size; ++i) seen.insert(permuted_index(i, size, 9, size));
    EXPECT_EQ(seen.size(), size);
    EXPECT_EQ(*seen.rbegin(), size - 1);
  }
  // First elements of many permutations of 8: each of the 8 values 512 times in 4096, within five standard deviations.
  std::array<int, 8> counts{};
  for (std::uint64_t epoch = 0; epoch < 4096; ++epoch) ++counts[permuted_index(0, 8, 1, epoch)];
  for (const int count : counts) EXPECT_NEAR(count, 512, 5 * std::sqrt(512 * 7 / 8.0));
}

TEST_F(LabeledSourceTest, RejectsUnsuitableDatasets) {
  const TokenizedDataset single = letters(3);
  LabeledOptions options;
  options.sequence_length = 8;
  options.pairs = true;
  EXPECT_THAT(message_of<UserError>([&] { LabeledSource(single, Split::train, options); }),
              HasSubstr("labels of single documents, expected labels of pairs"));
  options.pairs = false;
  EXPECT_THAT(message_of<UserError>([&] { LabeledSource(single, Split::test, options); }),
              HasSubstr("the test split has no complete labeled document"));
  PrepareOptions plain;
  plain.inputs = {file("plain.txt", "text without labels")};
  plain.output = path("plain.h5");
  prepare(plain);
  const TokenizedDataset without = TokenizedDataset::open(plain.output);
  EXPECT_EQ(without.documents_per_label(), 0u);
  EXPECT_THAT(message_of<UserError>([&] { LabeledSource(without, Split::train, options); }),
              HasSubstr("plain.h5: the dataset has no labels"));
}

TEST_F(LabeledSourceTest, SkipsDocumentsCutBySpans) {
  const TokenizedDataset dataset = stored("aaaa\tx\nbbbb\ty\ncccc\tx\ndddd\ty\n", Kind::tsv, [](PrepareOptions& o) {
    o.store.split_by = DatasetWriterOptions::SplitBy::span;
    o.store.shares = {{0.6, 0.4, 0}};  // 12 of 20 tokens: the boundary is inside c
  });
  LabeledOptions options;
  options.sequence_length = 4;
  options.shuffled = false;
  EXPECT_EQ(LabeledSource(dataset, Split::train, options).n_samples(), 2u);
  const LabeledSource validation(dataset, Split::validation, options);
  EXPECT_EQ(validation.n_samples(), 1u);
  EXPECT_THAT(validation.batch(0, 1).inputs, ElementsAre('d', 'd', 'd', 'd'));
  EXPECT_THAT(validation.batch(0, 1).labels, ElementsAre(1));
}

}  // namespace
}  // namespace furlong
