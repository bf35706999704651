// data.sampler: documents, the baseline of token frequencies, and models with a tokenizer's vocabulary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "datasets/prepare/prepare.h"
#include "datasets/samplers/sampler.h"
#include "evaluation/generate.h"
#include "evaluation/unigram_baseline.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/trainers/summed_loss.h"
#include "tests/trainers/training.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/trainer.h"
#include "trainers/train/validation.h"

namespace furlong {
namespace {

using testing::expect_equal_tensors;
using ::testing::HasSubstr;
using testing::LossAndGradient;
using testing::message_of;
using testing::small_settings;
using testing::summed_loss;
using testing::synthetic_text;
using testing::with;
using Strings = std::vector<std::string>;

const Strings by_documents{"data.sampler=documents", "model.initializer_range=0.2"};
const Strings masked{"model.architecture=encoder", "objective.name=masked_tokens", "objective.mask_probability=0.3"};

class DocumentRows : public testing::WithTemporaryFolder {
 protected:
  std::string store_of(const Strings& documents, const std::string& shares = "1") const {
    return testing::write_texts(path("documents.h5"), documents, shares);
  }
  std::string varied_store(const std::string& shares = "0.7,0.3,0") const {
    Strings documents;
    for (std::size_t i = 0; i < 30; ++i) documents.push_back(synthetic_text(2 + i * 37 % 50, i + 1));
    return store_of(documents, shares);
  }
};

/// Loss and gradients of a document are independent of the other documents and of the padding in its batch.
TEST_F(DocumentRows, GradientsEqualSeparateDocuments) {
  const std::string store = store_of({"hello", "xy", "the cat sat on the mat", "ab", "long before", "on"});
  const TokenizedDataset data = TokenizedDataset::open(store);
  for (const bool encoder : {false, true}) {
    for (const char* mechanism : {"softmax", "linear", "windowed", "linformer"}) {
      if ((std::string_view(mechanism) == "windowed" && encoder) ||
          (std::string_view(mechanism) == "linformer" && !encoder))
        continue;
      Strings overrides =
          with(by_documents, {std::string("model.attention.mechanism=") + mechanism, "model.short_convolution=3"});
      if (std::string_view(mechanism) == "windowed") overrides.emplace_back("model.attention.softmax_window=4");
      if (encoder) overrides = with(overrides, masked);
      Model model = make_model(small_settings(store, overrides).settings, data.vocabulary(), Device{}, DType::float64);
      const auto source = evaluation_source(model.settings, model.vocabulary, data, Split::train, 32, 6);
      ASSERT_EQ(source->n_samples(), 6u);
      const Batch all = source->single_pass_batch(0, 6);
      ASSERT_FALSE(all.mask.empty());
      const LossAndGradient together = summed_loss(model, all);
      LossAndGradient alone;
      alone.gradient.resize(together.gradient.size());
      for (std::uint64_t row = 0; row < 6; ++row) {
        // Without any padding.
        Batch one = source->single_pass_batch(row, 1);
        const auto n =
            static_cast<std::size_t>(one.mask.empty() ? one.n : std::count(one.mask.begin(), one.mask.end(), 1));
        one.n = static_cast<std::int64_t>(n);
        one.inputs.resize(n);
        one.targets.resize(n);
        one.mask.clear();
        if (one.n_targets == 0) continue;
        const LossAndGradient found = summed_loss(model, one);
        alone.loss += found.loss;
        alone.targets += found.targets;
        for (std::size_t i = 0; i < alone.gradient.size(); ++i) alone.gradient[i] += found.gradient[i];
      }
      EXPECT_EQ(together.targets, alone.targets);
      // Sums in float64 in another order.
      EXPECT_NEAR(together.loss / alone.loss, 1, 1e-12) << mechanism;
      double worst = 0, largest = 0;
      for (std::size_t i = 0; i < alone.gradient.size(); ++i) {
        worst = std::max(worst, std::abs(alone.gradient[i] - together.gradient[i]));
        largest = std::max(largest, std::abs(alone.gradient[i]));
      }
      EXPECT_LE(worst, 1e-11 * largest) << mechanism;
    }
  }
}

TEST_F(DocumentRows, EvaluationCountsEachTargetOnce) {
  const std::string store = varied_store();
  const TokenizedDataset data = TokenizedDataset::open(store);
  for (const Strings& objective : {Strings{}, masked}) {
    Model model = make_model(small_settings(store, with(by_documents, objective)).settings, data.vocabulary(), Device{},
                             DType::float64);
    const Evaluation one = evaluate(model, data, Split::validation, 32, 1),
                     five = evaluate(model, data, Split::validation, 32, 5);
    EXPECT_EQ(one.targets, five.targets);
    EXPECT_NEAR(one.loss / five.loss, 1, 1e-12);
    EXPECT_EQ(one.accuracy, five.accuracy);
    const std::vector<std::uint64_t> starts = document_starts(data, Split::validation);
    const auto tokens = static_cast<std::int64_t>(data.size(Split::validation));
    if (objective.empty()) {
      EXPECT_EQ(one.targets, tokens - static_cast<std::int64_t>(starts.size()));
    } else {
      EXPECT_EQ(five.tokens, tokens);  // a batch without targets is passed over
      EXPECT_NEAR(static_cast<double>(one.targets) / static_cast<double>(tokens), 0.3,
                  5 * std::sqrt(0.21 / static_cast<double>(tokens)));
    }
  }
}

TEST_F(DocumentRows, ResumesBitwise) {
  const std::string store = varied_store();
  const TokenizedDataset data = TokenizedDataset::open(store);
  for (const Strings& more :
       {Strings{"data.batch_size=5"},
        Strings{"trainer.gradient_accumulation=2", "data.padding=sequence_length", "model.dropout=0.1"},
        with(masked, {"model.attention.mechanism=linear", "data.batch_size=7"})}) {
    const LoadedSettings loaded = small_settings(store, with(by_documents, more));
    check_against_data(loaded, data);
    Trainer whole(loaded.settings, data, Device{}), resumed(loaded.settings, data, Device{});
    for (int step = 0; step < 12; ++step) {  // three epochs
      if (step == 5) whole.save(path("stop.h5"));
      whole.step();
      if (step == 2) whole.validate();
    }
    whole.save(path("whole.h5"));
    resumed.load(CheckpointReader::open(path("stop.h5")));
    while (resumed.steps() < 12) resumed.step();
    resumed.save(path("resumed.h5"));
    expect_equal_tensors(path("whole.h5"), path("resumed.h5"));
  }
}

TEST(DocumentSettings, RejectUnsupportedSettings) {
  const auto refusal = [](const Strings& overrides) {
    return message_of<UserError>([&] { small_settings("x.h5", overrides); });
  };
  EXPECT_THAT(refusal({"data.sampler=documents", "data.packing=documents"}),
              HasSubstr("data.packing has no effect with data.sampler: documents"));
  EXPECT_THAT(refusal({"data.sampler=documents", "data.stateful=true"}), HasSubstr("requires data.sampler: stream"));
  EXPECT_THAT(refusal({"data.sampler=documents", "model.architecture=encoder", "objective.name=classification"}),
              HasSubstr("whose rows are always documents"));
  EXPECT_THAT(
      refusal({"data.padding=sequence_length"}),
      HasSubstr("it requires data.sampler: documents, or objective.name: classification or pair_classification"));
  // A config written out and read again is the same, padding or not.
  for (const Strings& overrides :
       {Strings{}, Strings{"data.sampler=documents", "data.padding=sequence_length"},
        Strings{"model.architecture=encoder", "objective.name=pair_classification", "data.padding=sequence_length"}}) {
    const Settings settings = small_settings("x.h5", overrides).settings;
    EXPECT_TRUE(from_yaml_text(to_yaml(settings), "again").settings == settings);
  }
}

TEST(DocumentSettings, CheckpointConfigMayOmitDataset) {
  Settings settings = small_settings("x.h5").settings;
  settings.data.dataset.clear();
  EXPECT_TRUE(from_checkpoint_text(to_yaml(settings), "x.h5 (config)").settings == settings);
  EXPECT_THAT(message_of<UserError>([&] { from_yaml_text(to_yaml(settings), "x.yaml"); }),
              HasSubstr("data.dataset is empty"));
  EXPECT_THAT(message_of<UserError>([&] { open_data(settings.data); }),
              HasSubstr("data.dataset is empty, as in the config of an imported model"));
}

// --- Baseline

using BaselineTest = DocumentRows;

TEST_F(BaselineTest, BaselineUsesTokenFrequencies) {
  // Training: 6 a, 3 b and a c, ten times. Validation: b a a b a c d; its first token is not a target.
  std::string text;
  for (int i = 0; i < 10; ++i) text += "aaabaabbca";
  const std::string train = text, validation = "baabacd";
  DatasetWriterOptions options;
  options.shares = parse_split_shares(fmt::format("{},{},0", 100.0 / 107, 7.0 / 107));
  DatasetWriter writer(path("s.h5"), Vocabulary::bytes(false), options);
  const std::string both = train + validation;
  writer.append(std::vector<std::uint16_t>(both.begin(), both.end()));
  writer.end_document();
  writer.finish("{}");
  const TokenizedDataset data = TokenizedDataset::open(path("s.h5"));
  ASSERT_EQ(data.size(Split::validation), 7u);
  const auto count = [&](char letter) { return static_cast<double>(std::count(train.begin(), train.end(), letter)); };
  const auto surprise = [&](char letter, double classes) { return -std::log((count(letter) + 1) / (100 + classes)); };

  const Settings plain = small_settings(path("s.h5")).settings;
  const UnigramBaseline found = chance(plain, data.vocabulary(), data, Split::validation, 32, 2);
  EXPECT_EQ(found.targets, 6);
  EXPECT_EQ(found.bytes, 6);
  EXPECT_DOUBLE_EQ(found.accuracy, 3.0 / 6);
  EXPECT_NEAR(found.loss, (3 * surprise('a', 256) + surprise('b', 256) + surprise('c', 256) + surprise('d', 256)) / 6,
              1e-12);
  // Windows of another length have the same targets; fewer batches fewer.
  EXPECT_DOUBLE_EQ(chance(plain, data.vocabulary(), data, Split::validation, 2, 2).loss, found.loss);
  EXPECT_EQ(chance(plain, data.vocabulary(), data, Split::validation, 2, 1, 2).targets, 4);

  // Tokens excluded from the loss are excluded from the frequencies.
  const Settings ignoring = small_settings(path("s.h5"), {"data.ignore_tokens=[a]"}).settings;
  const UnigramBaseline without = chance(ignoring, data.vocabulary(), data, Split::validation, 32, 2);
  EXPECT_EQ(without.targets, 3);
  EXPECT_DOUBLE_EQ(without.accuracy, 1.0 / 3);
  // The guess is the most frequent token of training, not of the evaluated split.
  const Settings guessing_b = small_settings(path("s.h5"), {"data.ignore_tokens=[a, b]"}).settings;
  const UnigramBaseline rare = chance(guessing_b, data.vocabulary(), data, Split::validation, 32, 2);
  EXPECT_EQ(rare.targets, 2);
  EXPECT_DOUBLE_EQ(rare.accuracy, 0.5);  // c, though d is as frequent here
  EXPECT_NEAR(without.loss,
              -(std::log((count('b') + 1) / (100 - count('a') + 255)) +
                std::log((count('c') + 1) / (100 - count('a') + 255)) + std::log(1 / (100 - count('a') + 255))) /
                  3,
              1e-12);

  const Settings copy =
      from_yaml_text("data:\n  task: copy\n  task_symbols: 7\n  sequence_length: 24\n", "copy").settings;
  EXPECT_NEAR(chance(copy, Vocabulary::copy(7), *open_data(copy.data), Split::validation, 24, 64).loss, std::log(7),
              1e-6);
}

/// A model that has learned only frequencies equals the baseline: the targets of both are the same.
TEST_F(BaselineTest, BaselineTargetsEqualEvaluationTargets) {
  const std::string store = varied_store();
  const TokenizedDataset data = TokenizedDataset::open(store);
  for (const Strings& more : {Strings{}, Strings{"data.sampler=stream"}, Strings{"data.sampler=documents"}, masked,
                              with(masked, {"data.sampler=documents"})}) {
    Model model = make_model(small_settings(store, more).settings, data.vocabulary(), Device{});
    for (const std::int64_t batches : {0, 2}) {
      const UnigramBaseline by_chance =
          chance(model.settings, model.vocabulary, data, Split::validation, 32, 3, batches);
      EXPECT_EQ(by_chance.targets, evaluate(model, data, Split::validation, 32, 3, batches).targets);
      EXPECT_GT(by_chance.accuracy, 1.0 / 8);
      EXPECT_LT(by_chance.accuracy, 0.5);
    }
  }
}

// --- Tokenizers

class TokenizerModel : public testing::WithTemporaryFolder {
 protected:
  /// Sequences in which each letter follows from the one before, or labeled ones of two kinds.
  std::string prepared(PrepareOptions::Format format, const std::string& tokenizer) const {
    const std::string letters = testing::amino_acids;
    std::string content;
    for (std::size_t i = 0; i < 240; ++i) {
      std::string sequence;
      for (std::size_t k = 0; k < 6 + i % 9; ++k) sequence += letters[(i + k) % (i % 2 == 0 ? 20 : 4)];
      content += format == PrepareOptions::Format::labeled ? fmt::format("{}\t{}\n", sequence, i % 2)
                                                           : ">x\n" + sequence + "\n";
    }
    PrepareOptions options;
    options.format = format;
    options.inputs = {file("input", content)};
    options.output = path("store.h5");
    options.tokenizer = tokenizer;
    options.map_unknown = true;
    options.store.split_by = DatasetWriterOptions::SplitBy::document;
    options.store.shares = parse_split_shares("0.7,0.3,0");
    prepare(options);
    return options.output;
  }
};

TEST_F(TokenizerModel, LearnsMaskedTokensAndSurvivesCheckpoint) {
  const std::string store = prepared(PrepareOptions::Format::fasta, testing::letters_tokenizer(path("letters")));
  const TokenizedDataset data = TokenizedDataset::open(store);
  const LoadedSettings loaded =
      small_settings(store, with(masked, {"data.sampler=documents", "data.batch_size=16", "model.d_model=32",
                                          "trainer.max_steps=200", "model.initializer_range=0.1"}));
  check_against_data(loaded, data);
  Trainer trainer(loaded.settings, data, Device{});
  EXPECT_EQ(trainer.model().vocabulary.size(), 25);  // it has its own [MASK] and [CLS]
  while (trainer.steps() < 200) trainer.step();
  trainer.save(path("model.h5"));
  Model model = load_model(CheckpointReader::open(path("model.h5")), Device{}, Weights::raw);
  EXPECT_TRUE(model.vocabulary == data.vocabulary());
  const Evaluation found = evaluate(model, data, Split::validation, 32, 8);
  const UnigramBaseline by_chance = chance(model.settings, model.vocabulary, data, Split::validation, 32, 8);
  EXPECT_GT(found.accuracy, 0.8);
  EXPECT_LT(by_chance.accuracy, 0.3);
  EXPECT_LT(found.loss, by_chance.loss / 2);
  EXPECT_EQ(found.targets, by_chance.targets);
}

TEST_F(TokenizerModel, ClassifiesWithTokenizerClassToken) {
  const std::string store = prepared(PrepareOptions::Format::labeled, testing::letters_tokenizer(path("letters")));
  const TokenizedDataset data = TokenizedDataset::open(store);
  const LoadedSettings loaded = small_settings(
      store, {"model.architecture=encoder", "objective.name=classification", "objective.pooling=class_token",
              "data.batch_size=8", "trainer.max_steps=60", "model.initializer_range=0.1"});
  check_against_data(loaded, data);
  Trainer trainer(loaded.settings, data, Device{});
  const Batch first = trainer.source().batch(0, 4);
  for (std::size_t row = 0; row < 4; ++row) {
    EXPECT_EQ(first.inputs[row * static_cast<std::size_t>(first.n)], 2);
    EXPECT_NE(first.inputs[row * static_cast<std::size_t>(first.n) + 1], 2);
  }
  while (trainer.steps() < 60) trainer.step();
  EXPECT_GT(evaluate(trainer.model(), data, Split::validation, 32, 8).accuracy, 0.9);
  EXPECT_NEAR(chance(loaded.settings, trainer.model().vocabulary, data, Split::validation, 32, 8).loss,
              std::numbers::ln2, 0.05);
}

TEST_F(TokenizerModel, GeneratesDecodedText) {
  const std::string store = prepared(PrepareOptions::Format::fasta, testing::bpe_tokenizer(path("bpe")));
  const TokenizedDataset data = TokenizedDataset::open(store);
  const Settings settings =
      small_settings(store, {"data.sampler=documents", "data.batch_size=16", "trainer.max_steps=120"}).settings;
  Trainer trainer(settings, data, Device{});
  while (trainer.steps() < 120) trainer.step();
  GenerateOptions options;
  options.temperature = 0;
  options.max_tokens = 4;
  const std::vector<std::int32_t> prompt = trainer.model().vocabulary.encode_prompt("SERTID");
  EXPECT_EQ(trainer.model().vocabulary.decode(generate(trainer.model(), prompt, options).samples[0]), "PKQN");
  const UnigramBaseline by_chance = chance(settings, trainer.model().vocabulary, data, Split::validation, 32, 8);
  // Each document's last target is <|endoftext|>, which is no text; its first letter is no target.
  const auto documents = static_cast<std::int64_t>(document_starts(data, Split::validation).size());
  EXPECT_EQ(by_chance.bytes, by_chance.targets - documents);
}

TEST_F(TokenizerModel, TextWithUnknownTokensHasNoNumberOfBytes) {
  for (const char missing : {'-', 'W'}) {
    SCOPED_TRACE(missing);
    std::string pieces = R"(["<unk>", 0], ["\n", -1], ["\u2581", -1], ["a", -9], ["b", -9])";  // keeps all text
    for (const char letter : std::string(testing::amino_acids))
      if (letter != missing) pieces += fmt::format(R"(, ["{}", -1])", letter);
    const std::string store = prepared(PrepareOptions::Format::fasta, file("tokenizer.json",
                                                                           R"({"added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"},
            "decoder": {"type": "Metaspace", "prepend_scheme": "never"},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": [)" + pieces + "]}}"));
    const TokenizedDataset data = TokenizedDataset::open(store);
    const Settings settings = small_settings(store, {"data.sampler=documents"}).settings;
    const std::int64_t bytes = chance(settings, data.vocabulary(), data, Split::validation, 32, 8).bytes;
    EXPECT_EQ(bytes > 0, missing == '-') << bytes;
    std::filesystem::remove(store);
  }
}

}  // namespace
}  // namespace furlong
