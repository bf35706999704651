#include "evaluation/embed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <cmath>
#include <cstring>
#include <sstream>

#include "datasets/tokenizers/sentencepiece_proto.h"
#include "evaluation/sequences/hidden_states.h"
#include "framework/core/log.h"
#include "framework/io/hdf5.h"
#include "tests/evaluation/sequence_testing.h"
#include "tests/framework/engine_testing.h"

namespace furlong {
namespace {

using testing::defined_run;
using ::testing::HasSubstr;
using testing::message_of;
using testing::residues;
using testing::sequence_model;
using testing::with;
using Pooling = EmbedOptions::Pooling;
using Rows = std::vector<double>;

constexpr std::size_t width = 16;  // of small_settings
// The file has float32 of values around 1.
constexpr double tolerance = 1e-6;

EmbedReport embed(Model& model, const SequenceInput& input, const std::string& output, const EmbedOptions& options) {
  return furlong::embed(model, input, std::make_unique<AtomicFile>(output), options);
}

class EmbedTest : public testing::WithTemporaryFolder {
 protected:
  /// `embeddings` of the file that `embed` writes.
  std::vector<float> vectors(Model& model, const std::string& input, const EmbedOptions& options = {}) const {
    report_ = embed(model, {.paths = {input}}, path("vectors.h5"), options);
    return values<float>("embeddings");
  }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const hdf5::File file = hdf5::File::open(path("vectors.h5"));
    const hdf5::Dataset dataset = file.dataset(name);
    std::vector<T> found(dataset.bytes() / sizeof(T));
    dataset.read(found.data(), dataset.bytes());
    return found;
  }
  std::vector<std::string> ids() const {
    const hid_t file = H5Fopen(path("vectors.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT),
                dataset = H5Dopen2(file, "ids", H5P_DEFAULT), type = H5Dget_type(dataset),
                space = H5Dget_space(dataset);
    EXPECT_GT(H5Tis_variable_str(type), 0);
    EXPECT_EQ(H5Tget_cset(type), H5T_CSET_UTF8);
    std::vector<char*> texts(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
    EXPECT_GE(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, texts.data()), 0);
    std::vector<std::string> found(texts.begin(), texts.end());
    H5Dvlen_reclaim(type, space, H5P_DEFAULT, texts.data());
    H5Tclose(type);
    H5Sclose(space);
    H5Dclose(dataset);
    H5Fclose(file);
    return found;
  }
  std::string fasta(const std::vector<std::string>& sequences) const {
    std::string text;
    for (std::size_t i = 0; i < sequences.size(); ++i) text += fmt::format(">s{} of a test\n{}\n", i, sequences[i]);
    return file("input.fasta", text);
  }
  mutable EmbedReport report_;
};

/// Tokens of a protein as an encoder with a vocabulary of letters sees it.
std::vector<std::int32_t> framed(const Model& model, const std::string& letters) {
  std::vector<std::int32_t> tokens = model.vocabulary.encode(letters);
  const SequenceFrame frame = frame_of(model);
  tokens.insert(tokens.begin(), frame.front.begin(), frame.front.end());
  tokens.insert(tokens.end(), frame.back.begin(), frame.back.end());
  return tokens;
}

/// By the definition: one sequence at a time, no batches, no padding.
Rows pooled(const Rows& states, Pooling pooling, bool normalize, std::size_t leave_out_back = 0) {
  const std::size_t n = states.size() / width - leave_out_back;
  Rows vector(width);
  for (std::size_t i = 0; i < width; ++i) {
    for (std::size_t t = 0; t < n; ++t) vector[i] += states[t * width + i] / static_cast<double>(n);
    if (pooling == Pooling::last) vector[i] = states[(n - 1) * width + i];
    if (pooling == Pooling::class_token) vector[i] = states[i];
  }
  double squares = 0;
  for (const double value : vector) squares += value * value;
  if (normalize)
    for (double& value : vector) value /= std::sqrt(squares);
  return vector;
}

void expect_near(std::span<const float> found, const Rows& expected, double within, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected[i]));
  EXPECT_LE(worst, within) << what;
}

TEST_F(EmbedTest, PoolingMatchesItsDefinitionInFloat64WhateverTheBatch) {
  std::vector<std::string> sequences;
  for (const std::size_t length : {9, 1, 30, 17, 2, 25, 11}) sequences.push_back(residues(length, length));
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  for (const std::int64_t batch_tokens : {1, 40, 8192}) {
    for (const Pooling pooling : {Pooling::mean, Pooling::last}) {
      for (const bool skips : {false, true}) {
        const EmbedOptions options{
            .pooling = pooling, .normalize = !skips, .skip_special = skips, .batch_tokens = batch_tokens};
        const std::vector<float> found = vectors(model, fasta(sequences), options);
        ASSERT_EQ(found.size(), sequences.size() * width);
        for (std::size_t i = 0; i < sequences.size(); ++i) {
          const Rows states = defined_run(model, framed(model, sequences[i])).hidden;
          // <document> stands after each sequence.
          expect_near(std::span(found).subspan(i * width, width), pooled(states, pooling, !skips, skips ? 1 : 0),
                      4 * tolerance, sequences[i]);
        }
      }
    }
  }
  EXPECT_EQ(report_.read.sequences, sequences.size());
}

TEST_F(EmbedTest, ClassTokenStandsInFrontWhereLabelsWereLearnedFromIt) {
  Model model = sequence_model(Vocabulary::protein().with_labels({"no", "yes"}),
                               {"model.architecture=encoder", "objective.name=classification",
                                "objective.pooling=class_token", "model.attention.mechanism=softmax"});
  const std::vector<float> found = vectors(model, fasta({residues(12)}), {.pooling = Pooling::class_token});
  const auto tokens = framed(model, residues(12));
  EXPECT_EQ(tokens.front(), *model.vocabulary.class_id());
  layers::ModelConfig trunk = model.encoder->config();
  EXPECT_EQ(trunk.prediction_head, layers::PredictionHead::none);
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  const Tensor hidden = model.encoder->hidden(context, Tensor::from(tokens, {1, std::ssize(tokens)})).value();
  expect_near(found, pooled(hidden.to_vector<double>(), Pooling::class_token, false), 4 * tolerance, "class");
  Model without = sequence_model(Vocabulary::protein(), testing::encoder);
  EXPECT_THAT(message_of<UserError>([&] { vectors(without, fasta({"ACD"}), {.pooling = Pooling::class_token}); }),
              HasSubstr("--pooling class"));
}

/// A tokenizer that puts <s> in front and has no class token, as furlong prepare tokenizer makes them.
std::string pieces_model() {
  SentencePieceProto proto;
  proto.bpe = true;
  proto.pieces = {{"<unk>", 0, SentencePieceProto::Type::unknown},
                  {"<s>", 0, SentencePieceProto::Type::control},
                  {"</s>", 0, SentencePieceProto::Type::control}};
  for (const char letter : std::string("ACDEFG")) proto.pieces.push_back({std::string(1, letter), -1});
  proto.beginning = 1;
  proto.end = 2;
  proto.add_dummy_prefix = proto.remove_extra_whitespaces = false;
  return proto.serialized();
}

TEST_F(EmbedTest, FrameOfATokenizerIsCompletedAsInTraining) {
  using Ids = std::vector<std::int32_t>;
  const Vocabulary vocabulary = Vocabulary::of_tokenizer(load_tokenizer(file("a.model", pieces_model())));
  const auto expect_frame = [](const Model& model, const Ids& front, const Ids& back) {
    EXPECT_EQ(frame_of(model).front, front);
    EXPECT_EQ(frame_of(model).back, back);
  };
  const std::vector<std::string> classifies{"model.architecture=encoder", "objective.name=classification",
                                            "objective.pooling=class_token", "model.attention.mechanism=softmax"};
  Model labeled = sequence_model(vocabulary.with_labels({"no", "yes"}), classifies);
  Model masked = sequence_model(vocabulary, testing::encoder);
  expect_frame(labeled, {10, 1}, {2});
  expect_frame(masked, {1}, {2});
  expect_frame(sequence_model(vocabulary, {}), {1}, {});
  // Another program's model that has not been trained since.
  Model imported = sequence_model(vocabulary, testing::encoder);
  imported.settings.data.dataset.clear();
  imported.settings.model.vocabulary_size = imported.vocabulary.size();
  expect_frame(imported, {1}, {});
  // The frame stands once around a text, whoever reads it.
  const Ids tokens{10, 1, 3, 4, 5, 2};
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  const Tensor hidden = labeled.encoder->hidden(context, Tensor::from(tokens, {1, std::ssize(tokens)})).value();
  for (const std::string& input : {file("a.txt", "ACD\n"), file("a.tsv", "ACD\n"), fasta({"ACD"})}) {
    for (const Pooling pooling : {Pooling::class_token, Pooling::mean})
      expect_near(vectors(labeled, input, {.pooling = pooling}), pooled(hidden.to_vector<double>(), pooling, false),
                  4 * tolerance, input);
  }
  EXPECT_EQ(report_.read.tokens, tokens.size());
  EXPECT_THAT(message_of<UserError>([&] { vectors(masked, fasta({"ACD"}), {.pooling = Pooling::class_token}); }),
              HasSubstr("--pooling class"))
      << "<s> is no class token";
}

// With norms after the additions the input of a layer's attention is what the layers below made.
TEST_F(EmbedTest, StatesOfEachLayerAreThoseOfTheDefinition) {
  const std::string sequence = residues(14);
  for (const std::string placement : {"after", "before"}) {
    Model model = sequence_model(Vocabulary::protein(), with(testing::encoder, {"model.norm_placement=" + placement}));
    const auto run = defined_run(model, framed(model, sequence));
    for (const std::int64_t layer : {0, 1}) {
      const std::vector<float> found = vectors(model, fasta({sequence}), {.pooling = Pooling::none, .layer = layer});
      Rows states(found.begin(), found.end());
      EXPECT_EQ(report_.layer, layer);
      if (placement == "before") {  // the attention's norm, whose gain is 1 and bias 0
        for (std::size_t row = 0; row < states.size(); row += width) {
          double mean = 0, variance = 0;
          for (std::size_t i = 0; i < width; ++i) mean += states[row + i] / width;
          for (std::size_t i = 0; i < width; ++i) variance += std::pow(states[row + i] - mean, 2) / width;
          for (std::size_t i = 0; i < width; ++i)
            states[row + i] = (states[row + i] - mean) / std::sqrt(variance + model.settings.model.norm_epsilon);
        }
      }
      expect_near(std::vector<float>(states.begin(), states.end()),
                  run.attention_inputs[static_cast<std::size_t>(layer)], 1e-5, placement);
    }
    for (const std::int64_t last : {2, -1})
      expect_near(vectors(model, fasta({sequence}), {.pooling = Pooling::none, .layer = last}), run.hidden,
                  4 * tolerance, placement);
    EXPECT_EQ(values<std::uint64_t>("offsets"), (std::vector<std::uint64_t>{0, 15}));
    EXPECT_THAT(message_of<UserError>([&] { vectors(model, fasta({sequence}), {.layer = 3}); }),
                HasSubstr("--layer: 3"));
  }
}

TEST_F(EmbedTest, PiecesOfALongSequenceGiveTheVectorsOfOnePass) {
  const std::string text = testing::synthetic_text(700);
  for (const std::string mechanism : {"linear", "softmax", "windowed"}) {
    std::vector<std::string> overrides{"model.attention.mechanism=" + mechanism, "model.short_convolution=4"};
    if (mechanism == "windowed") overrides.emplace_back("model.attention.softmax_window=16");
    Model model = sequence_model(Vocabulary::bytes(false), overrides);
    const std::string input = file("text.txt", text + "\nshort\n" + text.substr(0, 300) + "\n");
    for (const Pooling pooling : {Pooling::mean, Pooling::last, Pooling::none}) {
      const std::vector<float> whole = vectors(model, input, {.pooling = pooling, .batch_tokens = 4096}),
                               pieces = vectors(model, input, {.pooling = pooling, .batch_tokens = 64});
      EXPECT_EQ(whole.size(), (pooling == Pooling::none ? 1005 : 3) * width);
      // In float64 the state carries all; float32 of the file rounds once.
      expect_near(pieces, Rows(whole.begin(), whole.end()), 4 * tolerance, mechanism);
    }
  }
}

TEST_F(EmbedTest, CopyOnAGpuGivesTheVectorsOfTheCpu) {
  const Device gpu{DeviceType::simulated, 0};
  if (const std::string reason = testing::engine_missing(gpu); !reason.empty()) GTEST_SKIP() << reason;
  const std::string input = fasta({residues(20), residues(7), "M"});
  for (const auto& overrides : {testing::encoder, std::vector<std::string>{"model.attention.mechanism=linear"}}) {
    Model model = sequence_model(Vocabulary::protein(), overrides);
    Model copy = copy_of(model, gpu, DType::float32);
    const std::vector<float> expected = vectors(model, input);
    expect_near(vectors(copy, input), Rows(expected.begin(), expected.end()), 1e-4, overrides[0]);
  }
}

TEST_F(EmbedTest, IdsAndOrderAreThoseOfTheInput) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  vectors(model,
          file("input.fasta",
               ">first one\nACDEF\n;comment\n>second\nAC\n\nDD\n>\nACDEFGHIKLMNP\n> last"
               "\ttab\nM\n"),
          {.batch_tokens = 16});
  EXPECT_EQ(ids(), (std::vector<std::string>{"first", "second", "3", "last"}));
  const auto all = values<float>("embeddings");
  const auto last = vectors(model, file("one.fasta", ">last\nM\n"));
  expect_near(std::span(all).subspan(3 * width), Rows(last.begin(), last.end()), 4 * tolerance, "last");
}

TEST_F(EmbedTest, TextTablesAndJsonLinesGiveTheSameVectors) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  const std::vector<float> expected = vectors(model, fasta({"ACDEF", "MKV"}));
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"a.txt", "ACDEF\nmkv\n"},
           {"a.csv", "id,sequence\n1,ACDEF\n2,\"MKV\"\n"},
           {"a.tsv", "id\tsequence\n1\tACDEF\n2\tMKV\n"},
           {"a.jsonl", "{\"sequence\": \"ACDEF\"}\n{\"sequence\": \"MKV\", \"id\": 2}\n"}}) {
    SequenceInput input{.paths = {file(name, text)}};
    if (name != "a.txt") input.text_field = "sequence";
    embed(model, input, path("vectors.h5"), {});
    EXPECT_EQ(values<float>("embeddings"), expected) << name;
  }
}

TEST_F(EmbedTest, IdFieldOfRecordsNamesRows) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"a.csv", "key,sequence\n\"x,1\",ACDEF\nq,\n7,MKV\n"},
           {"a.tsv", "sequence\tkey\nACDEF\tx,1\n\tq\nMKV\t7\n"},
           {"a.jsonl",
            "{\"sequence\": \"ACDEF\", \"key\": \"x,1\"}\n{\"sequence\": \"\", \"key\": \"q\"}\n"
            "{\"key\": 7, \"sequence\": \"MKV\"}\n"}}) {
    const SequenceInput input{.paths = {file(name, text)}, .text_field = "sequence", .id_field = "key"};
    embed(model, input, path("vectors.h5"), {});
    EXPECT_EQ(ids(), (std::vector<std::string>{"x,1", "7"})) << name;
  }
  const SequenceInput escapes{
      .paths = {file("b.jsonl",
                     "{\"text\": \"AC\", \"key\": \"a\\tb\"}\n{\"text\": \"AC\", \"key\": \"a\\\\x09b\"}\n")},
      .text_field = "text",
      .id_field = "key"};
  embed(model, escapes, path("vectors.h5"), {});
  EXPECT_EQ(ids(), (std::vector<std::string>{"a\tb", "a\\x09b"})) << "as in the input";
  embed(model, escapes, path("vectors.tsv"), {});
  EXPECT_THAT(content(path("vectors.tsv")), HasSubstr("\na\\x09b\t")) << "no tab in a field";
  const auto refused = [&](const SequenceInput& input) {
    return message_of<UserError>([&] { embed(model, input, path("vectors.h5"), {}); });
  };
  EXPECT_THAT(refused({.paths = {file("b.csv", "id,sequence\n,ACD\n")}, .text_field = "sequence", .id_field = "id"}),
              HasSubstr("b.csv:2: the id is empty"));
  for (const std::string& other : {fasta({"ACD"}), file("a.txt", "ACD\n")}) {
    EXPECT_THAT(refused({.paths = {other}, .id_field = "id"}), HasSubstr("--id-field id: " + other));
    EXPECT_THAT(refused({.paths = {other}, .text_field = "2"}), HasSubstr("--text-field 2: " + other));
  }
}

TEST_F(EmbedTest, WarnsOfAHeaderThatIsReadAsASequence) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  const auto warnings = [&](const std::string& table) {
    const LogCapture captured;
    embed(model, {.paths = {file("a.csv", table)}}, path("vectors.h5"), {});
    return captured.text();
  };
  EXPECT_THAT(
      warnings("sequence,tm\nACD,50.1\nMKV,61\n"),
      HasSubstr("a.csv: the text of the first record is 'sequence'; if that line is a header, give --text-field "
                "by name: sequence"));
  EXPECT_THAT(warnings("chain,tm\nACD,50.1\nMKV,61\n"), HasSubstr("the first record has 'tm' in a column of numbers"));
  EXPECT_THAT(warnings("ACD,50.1\nMKV,61\n"), ::testing::Not(HasSubstr("header")));
}

TEST_F(EmbedTest, NpyHasARowOfNanForAnEmptySequence) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  const std::vector<float> expected = vectors(model, fasta({"ACDEF", "MKV"}));
  const std::string input = file("a.txt", "\nACDEF\n\nMKV\n");
  for (const std::int64_t batch_tokens : {1, 8192}) {
    const EmbedReport report = embed(model, {.paths = {input}}, path("v.npy"), {.batch_tokens = batch_tokens});
    EXPECT_EQ(report.read.empty, 2u);
    const std::string npy = content(path("v.npy"));
    ASSERT_EQ(npy.size(), 128 + 4 * width * sizeof(float));
    std::vector<float> rows(4 * width);
    std::memcpy(rows.data(), npy.data() + 128, rows.size() * sizeof(float));
    for (std::size_t i = 0; i < width; ++i) {
      EXPECT_TRUE(std::isnan(rows[i]) && std::isnan(rows[2 * width + i]));
      EXPECT_NEAR(rows[width + i], expected[i], 4 * tolerance);
      EXPECT_NEAR(rows[3 * width + i], expected[width + i], 4 * tolerance);
    }
  }
  embed(model, {.paths = {input}}, path("vectors.h5"), {});
  EXPECT_EQ(ids(), (std::vector<std::string>{"2", "4"}));
}

TEST_F(EmbedTest, NpyAndTsvHoldTheSameNumbersAsHdf5) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  const std::string input = fasta({"ACDEF", "MKV", "WWWWWW"});
  const std::vector<float> expected = vectors(model, input);
  embed(model, {.paths = {input}}, path("v.npy"), {});
  const std::string npy = content(path("v.npy"));
  EXPECT_EQ(npy.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(npy.substr(10, 61), "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 16), } ");
  EXPECT_EQ(npy[127], '\n');
  ASSERT_EQ(npy.size(), 128 + expected.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(npy.data() + 128, expected.data(), expected.size() * sizeof(float)), 0);
  embed(model, {.paths = {input}}, path("v.tsv"), {});
  std::istringstream lines(content(path("v.tsv")));
  std::string line, name;
  std::getline(lines, line);
  EXPECT_THAT(line, ::testing::StartsWith("id\t0\t1\t"));
  for (std::size_t i = 0; i < 3; ++i) {
    lines >> name;
    EXPECT_EQ(name, fmt::format("s{}", i));
    for (std::size_t k = 0; k < width; ++k) {
      lines >> name;
      EXPECT_EQ(std::stof(name), expected[i * width + k]);
    }
  }
}

TEST_F(EmbedTest, InvalidInputIsOneErrorAndLeavesNoFile) {
  Model model = sequence_model(Vocabulary::protein(),
                               with(testing::encoder, {"model.position=learned", "model.max_sequence_length=32"}));
  const auto refused = [&](const std::string& input, const EmbedOptions& options = {}) {
    const std::string message = message_of<UserError>([&] { vectors(model, input, options); });
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "out") && !std::filesystem::exists(path("vectors.h5")));
    return message;
  };
  std::filesystem::create_directory(folder_ / "out");
  EXPECT_THAT(refused(file("empty.fasta", "")), HasSubstr("empty.fasta: there is no sequence"));
  EXPECT_THAT(refused(file("blank.txt", "\n\n")), HasSubstr("blank.txt: there is no sequence"));
  EXPECT_THAT(refused(fasta({"ACD", "AC1D"})), HasSubstr("input.fasta:4:3: '1'"));
  EXPECT_THAT(refused(file("a.txt", "ACD\nAC1D\n")), HasSubstr("a.txt: '1' at byte 3 of sequence 2"));
  EXPECT_THAT(refused(file("a.csv", "ACD\nAC1D\n")), HasSubstr("a.csv:2: '1'"));
  EXPECT_THAT(refused(fasta({"ACD", residues(40)})), HasSubstr("sequence 2 (s1) has more than the 32 tokens"));
  EXPECT_THAT(refused(path("missing.fasta")), HasSubstr("missing.fasta"));
  EXPECT_THAT(message_of<UserError>([&] { embed(model, {.paths = {fasta({"A"})}}, path("out/v.txt"), {}); }),
              HasSubstr("expected .h5, .hdf5, .npy or .tsv"));
  EXPECT_THAT(message_of<UserError>(
                  [&] { embed(model, {.paths = {fasta({"A"})}}, path("out/v.npy"), {.pooling = Pooling::none}); }),
              HasSubstr("expected .h5 or .tsv"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "out"));
  // The frame counts: 31 residues and <document>.
  EXPECT_THAT(refused(fasta({residues(32)})), HasSubstr("32 tokens"));
  EXPECT_EQ(vectors(model, fasta({residues(31)})).size(), width);
}

TEST_F(EmbedTest, UnknownLettersAndEmptySequencesAreCounted) {
  Model model = sequence_model(Vocabulary::protein(), testing::encoder);
  SequenceInput input{.paths = {file("a.txt", "ACD\n\nAC1D\n")}, .map_unknown = true};
  const EmbedReport report = embed(model, input, path("vectors.h5"), {});
  EXPECT_EQ(report.read.mapped, 1u);
  EXPECT_EQ(report.read.empty, 1u);
  EXPECT_EQ(report.read.sequences, 2u);
  EXPECT_EQ(ids(), (std::vector<std::string>{"1", "3"})) << "numbers count empty sequences";
  const auto mapped = values<float>("embeddings"), expected = vectors(model, file("b.txt", "ACD\nACXD\n"));
  EXPECT_EQ(mapped, expected);
}

}  // namespace
}  // namespace furlong
