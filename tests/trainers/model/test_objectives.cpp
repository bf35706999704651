// What encoders learn: masked tokens, labels of documents, labels of pairs.
#include "trainers/model/objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "evaluation/generate.h"
#include "framework/core/arena.h"
#include "framework/core/parallel.h"
#include "tests/trainers/training.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/run/step_forecast.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

using testing::expect_equal_tensors;
using ::testing::HasSubstr;
using testing::message_of;
using testing::small_settings;

class ObjectivesTest : public testing::WithTemporaryFolder {
 protected:
  /// Random letters a to h; the label says in which half of the alphabet the first one lies.
  std::string labeled_store(int n_documents = 300) const {
    return write("labeled.h5", 1, n_documents, [](const RandomKey& key, std::uint64_t document, DatasetWriter& writer) {
      const std::vector<std::uint16_t> letters = random_letters(key, document, 4 + document % 9);
      writer.append(letters);
      writer.end_document();
      writer.label(letters[0] < 'e' ? 0 : 1);
    });
  }
  /// Pairs of sequences of six letters, every other pair two equal ones.
  std::string pairs_store(int n_pairs = 800) const {
    return write("pairs.h5", 2, n_pairs, [](const RandomKey& key, std::uint64_t pair, DatasetWriter& writer) {
      const bool equal = pair % 2 == 0;
      for (const std::uint64_t which : {2 * pair, equal ? 2 * pair : 2 * pair + 1}) {
        writer.append(random_letters(key, which, 6));
        writer.end_document();
      }
      writer.label(equal ? 1 : 0);
    });
  }
  /// a b c d e f g h over and over: a hidden letter follows from any neighbor.
  std::string periodic_store() const {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i % 8);
    return testing::write_store(path("periodic.h5"), text);
  }

  template <class Fill>
  std::string write(const std::string& name, std::uint64_t documents_per_label, int n, const Fill& fill) const {
    DatasetWriterOptions options;
    options.split_by = DatasetWriterOptions::SplitBy::document;
    options.shares = {{0.7, 0.2, 0.1}};
    options.documents_per_label = documents_per_label;
    DatasetWriter writer(path(name), Vocabulary::bytes(true), options);
    const RandomKey key{7, 0, random_stream(name)};
    for (int i = 0; i < n; ++i) fill(key, static_cast<std::uint64_t>(i), writer);
    writer.finish("{}", {"no", "yes"});
    return path(name);
  }
  static std::vector<std::uint16_t> random_letters(const RandomKey& key, std::uint64_t which, std::uint64_t n) {
    std::vector<std::uint16_t> letters;
    for (std::uint64_t i = 0; i < n; ++i)
      letters.push_back(static_cast<std::uint16_t>('a' + random_word(key, which * 64 + i) % 8));
    return letters;
  }

  static LoadedSettings settings(const std::string& store, const std::string& objective,
                                 const std::vector<std::string>& overrides = {}) {
    std::vector<std::string> all{"model.architecture=encoder", "objective.name=" + objective, "model.position=learned",
                                 "data.batch_size=8", "model.initializer_range=0.1"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return small_settings(store, all);
  }

  /// Trains for `steps` and evaluates the validation split.
  static Evaluation learned(const std::string& store, const LoadedSettings& loaded, std::int64_t steps) {
    const TokenizedDataset data = TokenizedDataset::open(store);
    check_against_data(loaded, data);
    Trainer trainer(loaded.settings, data, Device{});
    while (trainer.steps() < steps) EXPECT_TRUE(std::isfinite(trainer.step().loss));
    return evaluate(trainer.model(), data, Split::validation, loaded.settings.data.sequence_length, 8);
  }
};

// --- Samples

// Also a last window of one token.
TEST_F(ObjectivesTest, EvaluationMasksEveryTokenOfTheSplit) {
  const std::string store = periodic_store();
  const TokenizedDataset data = TokenizedDataset::open(store);
  const auto size = static_cast<std::int64_t>(data.size(Split::validation));
  ASSERT_EQ(size, 400);
  const LoadedSettings loaded = settings(store, "masked_tokens", {"objective.mask_probability=0.999999999"});
  const Vocabulary vocabulary = model_vocabulary(loaded.settings, data.vocabulary());
  for (const std::int64_t n : {7, 16, 399, 400, 500}) {
    const auto source = evaluation_source(loaded.settings, vocabulary, data, Split::validation, n, 4);
    std::int64_t tokens = 0, targets = 0;
    for (std::uint64_t first = 0; first < source->n_samples(); first += 4) {
      const Batch batch = source->single_pass_batch(first, 4);
      tokens += batch.n_tokens;
      targets += batch.n_targets;
    }
    EXPECT_EQ(tokens, size) << n;
    EXPECT_EQ(targets, size) << n;
  }
}

// Of every kind of samples, in training alone.
TEST_F(ObjectivesTest, ReverseComplementIsForTraining) {
  DatasetWriterOptions options;
  options.split_by = DatasetWriterOptions::SplitBy::document;
  options.shares = {{0.7, 0.3, 0}};
  options.documents_per_label = 1;
  DatasetWriter writer(path("dna.h5"), Vocabulary::dna(), options);
  const RandomKey key{3, 0, random_stream("bases")};
  for (std::uint64_t document = 0; document < 60; ++document) {
    std::vector<std::uint16_t> bases;
    for (std::uint64_t i = 0; i < 20; ++i)
      bases.push_back(static_cast<std::uint16_t>(random_word(key, document * 20 + i) % 4));
    writer.append(bases);
    writer.end_document();
    writer.label(static_cast<int>(document % 2));
  }
  writer.finish("{}", {"no", "yes"});
  const TokenizedDataset data = TokenizedDataset::open(path("dna.h5"));
  const std::vector<std::string> windows{"data.sampler=random"}, documents{"data.sampler=documents"};
  for (const std::string objective : {"next_token", "masked_tokens", "classification"}) {
    for (const std::vector<std::string>& sampler : {windows, documents}) {
      if (objective == "classification" && sampler != windows) continue;  // always documents
      SCOPED_TRACE(objective + ", " + sampler[0]);
      std::vector<std::string> overrides = sampler;
      if (objective == "next_token") overrides.push_back("model.architecture=decoder");
      const Settings plain = settings(path("dna.h5"), objective, overrides).settings;
      overrides.push_back("data.reverse_complement=true");
      const Settings both = settings(path("dna.h5"), objective, overrides).settings;
      const Vocabulary vocabulary = model_vocabulary(plain, data.vocabulary());
      EXPECT_NE(training_source(both, vocabulary, data)->batch(0, 16).inputs,
                training_source(plain, vocabulary, data)->batch(0, 16).inputs);
      const auto of_evaluation = [&](const Settings& one) {
        return evaluation_source(one, vocabulary, data, Split::validation, 16, 16)->single_pass_batch(0, 16).inputs;
      };
      EXPECT_EQ(of_evaluation(both), of_evaluation(plain));
    }
  }
}

// --- Learning

TEST_F(ObjectivesTest, LearnsMaskedTokensOfPeriodicText) {
  const std::string store = periodic_store();
  for (const char* mechanism : {"softmax", "linear"}) {
    const std::string attention = std::string("model.attention.mechanism=") + mechanism;
    const LoadedSettings loaded = settings(
        store, "masked_tokens",
        {"model.d_model=32", "model.position=rotary", "data.batch_size=16", "trainer.max_steps=200", attention});
    const Evaluation found = learned(store, loaded, 200);
    EXPECT_GT(found.accuracy, 0.85) << mechanism;  // by chance 1/8
    EXPECT_GT(found.targets, 30);
    EXPECT_EQ(found.tokens, 400);
  }
}

TEST_F(ObjectivesTest, LearnsLabelsFromFirstLetter) {
  const std::string store = labeled_store();
  for (const char* pooling : {"mean", "class_token"}) {
    const Evaluation found = learned(
        store,
        settings(store, "classification", {std::string("objective.pooling=") + pooling, "trainer.max_steps=150"}), 150);
    EXPECT_GT(found.accuracy, 0.95) << pooling;
    EXPECT_GT(found.targets, 40);
  }
}

TEST_F(ObjectivesTest, LearnsToMatchEqualSequences) {
  const std::string store = pairs_store();
  const Evaluation found = learned(
      store, settings(store, "matching", {"trainer.max_steps=250", "data.batch_size=16", "model.d_model=32"}), 250);
  EXPECT_GT(found.accuracy, 0.9);
  EXPECT_GT(found.targets, 50);
}

// --- Resuming

TEST_F(ObjectivesTest, ResumesBitwise) {
  struct Case {
    std::string store, objective;
    std::vector<std::string> overrides;
  };
  const std::string periodic = periodic_store(), labeled = labeled_store(60), pairs = pairs_store(60);
  for (const Case& c :
       {Case{periodic, "masked_tokens", {"model.dropout=0.1"}},
        Case{periodic,
             "masked_tokens",
             {"data.sampler=sequential", "model.attention.mechanism=linear", "model.attention.redraw_every=3"}},
        Case{labeled,
             "classification",
             {"objective.pooling=class_token", "model.dropout=0.1", "trainer.activation_checkpointing=blocks"}},
        Case{pairs, "matching", {"data.padding=sequence_length", "trainer.gradient_accumulation=2"}}}) {
    const LoadedSettings loaded = settings(c.store, c.objective, c.overrides);
    const TokenizedDataset data = TokenizedDataset::open(c.store);
    Trainer whole(loaded.settings, data, Device{}), before(loaded.settings, data, Device{}),
        after(loaded.settings, data, Device{});
    const auto run = [](Trainer& trainer, std::int64_t last) {
      double loss = 0;
      while (trainer.steps() < last) loss = trainer.step().loss;
      return loss;
    };
    const double expected = run(whole, 7);
    run(before, 3);
    before.save(path("stop.h5"));
    after.load(CheckpointReader::open(path("stop.h5")));
    EXPECT_EQ(run(after, 7), expected) << c.objective;
    whole.save(path("whole.h5"));
    after.save(path("resumed.h5"));
    expect_equal_tensors(path("whole.h5"), path("resumed.h5"));
    EXPECT_EQ(content(path("whole.h5")), content(path("resumed.h5"))) << c.objective;
    // The checkpoint alone gives the same model.
    Model loaded_model = load_model(CheckpointReader::open(path("whole.h5")), Device{}, Weights::raw);
    EXPECT_EQ(evaluate(loaded_model, data, Split::validation, 32, 4).loss,
              evaluate(whole.model(), data, Split::validation, 32, 4).loss);
    EXPECT_EQ(loaded_model.vocabulary.labels().size(), c.objective == "masked_tokens" ? 0u : 2u);
  }
}

TEST_F(ObjectivesTest, AccumulatedBatchesEqualOneLargeBatch) {
  const std::string store = labeled_store(60);
  const TokenizedDataset data = TokenizedDataset::open(store);
  const auto gradients = [&](const std::vector<std::string>& overrides) {
    Trainer trainer(settings(store, "classification", overrides).settings, data, Device{}, DType::float64);
    trainer.step();
    return trainer.model().store->gradients().to_vector<double>();
  };
  const auto whole = gradients({"data.batch_size=6", "model.dropout=0.1"}),
             parts = gradients({"data.batch_size=2", "trainer.gradient_accumulation=3", "model.dropout=0.1"});
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    difference = std::max(difference, std::abs(whole[i] - parts[i]));
    largest = std::max(largest, std::abs(whole[i]));
  }
  EXPECT_LE(difference, 1e-13 * largest);
}

// --- Evaluating

TEST_F(ObjectivesTest, EvaluationIsRepeatableAndIndependentOfBatchSize) {
  const std::string labeled = labeled_store(60), periodic = periodic_store();
  for (const auto& [store, objective] : {std::pair{labeled, "classification"}, std::pair{periodic, "masked_tokens"}}) {
    const TokenizedDataset data = TokenizedDataset::open(store);
    Model model = make_model(settings(store, objective).settings, data.vocabulary(), Device{}, DType::float64);
    const Evaluation one = evaluate(model, data, Split::validation, 32, 1);
    for (const std::int64_t batch : {1, 3, 8}) {
      const Evaluation found = evaluate(model, data, Split::validation, 32, batch);
      EXPECT_NEAR(found.loss, one.loss, 1e-12) << objective;
      EXPECT_EQ(found.targets, one.targets);
      EXPECT_EQ(found.tokens, one.tokens);
      EXPECT_EQ(found.accuracy, one.accuracy);
    }
  }
}

TEST_F(ObjectivesTest, ResultIsIndependentOfThreads) {
  const std::string store = pairs_store(40);
  const TokenizedDataset data = TokenizedDataset::open(store);
  std::vector<double> losses;
  for (const int threads : {1, 3}) {
    set_thread_count(threads);
    Trainer trainer(settings(store, "matching", {"model.dropout=0.1"}).settings, data, Device{});
    for (int i = 0; i < 3; ++i) losses.push_back(trainer.step().loss);
  }
  set_thread_count(0);
  // Not to the bit: with AVX2, oneDNN's float32 products depend on the number of threads (docs/internals/numerics.md).
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[i + 3], losses[i], 1e-5) << "step " << i;
}

TEST_F(ObjectivesTest, PredictsPeakMemory) {
  const std::string store = pairs_store(40);
  const TokenizedDataset data = TokenizedDataset::open(store);
  const Settings given =
      settings(store, "matching", {"data.padding=sequence_length", "model.d_model=64", "data.sequence_length=96"})
          .settings;
  const std::int64_t predicted = predicted_peak_bytes(given, data.vocabulary());
  Arena& cpu = arena(Device{});
  const std::int64_t before = cpu.counters().bytes_in_use;
  Trainer trainer(given, data, Device{});
  trainer.step();
  cpu.reset_peak();
  trainer.step();
  const auto measured = static_cast<double>(cpu.counters().peak_bytes - before);
  EXPECT_NEAR(static_cast<double>(predicted), measured, 0.05 * measured);
}

// --- Refusals

TEST_F(ObjectivesTest, EncoderRejectsGeneration) {
  const std::string store = periodic_store();
  const TokenizedDataset data = TokenizedDataset::open(store);
  Model model = make_model(settings(store, "masked_tokens").settings, data.vocabulary(), Device{});
  EXPECT_THAT(message_of<UserError>([&] { generate(model, {97}, {}); }),
              HasSubstr("this model is an encoder (objective masked_tokens)"));
}

TEST_F(ObjectivesTest, RejectsDataWithoutLabels) {
  const std::string store = periodic_store();
  const TokenizedDataset data = TokenizedDataset::open(store);
  const LoadedSettings loaded = settings(store, "classification");
  EXPECT_THAT(message_of<UserError>([&] { check_against_data(loaded, data); }), HasSubstr("objective.name"));
  EXPECT_THAT(message_of<UserError>([&] { make_model(loaded.settings, data.vocabulary(), Device{}); }),
              HasSubstr("has none; make one with furlong prepare labeled"));
  const std::string labeled = labeled_store(60);
  const TokenizedDataset single = TokenizedDataset::open(labeled);
  EXPECT_THAT(message_of<UserError>([&] { check_against_data(settings(labeled, "matching"), single); }),
              HasSubstr("labels of single documents, expected labels of pairs"));
}

TEST_F(ObjectivesTest, EvaluationMasksDoNotDependOnTheSeed) {
  const std::string store = periodic_store();
  const TokenizedDataset data = TokenizedDataset::open(store);
  const auto inputs = [&](const char* seed, bool training) {
    const Settings given = settings(store, "masked_tokens", {seed}).settings;
    const Vocabulary vocabulary = model_vocabulary(given, data.vocabulary());
    const auto source = training ? training_source(given, vocabulary, data)
                                 : evaluation_source(given, vocabulary, data, Split::validation, 32, 4);
    return source->batch(0, 4).inputs;
  };
  EXPECT_EQ(inputs("seed=1", false), inputs("seed=7", false));
  EXPECT_NE(inputs("seed=1", true), inputs("seed=7", true));
}

TEST_F(ObjectivesTest, RejectsMaskingWithoutTargets) {
  const std::string store = periodic_store();
  const TokenizedDataset data = TokenizedDataset::open(store);
  const LoadedSettings loaded = settings(store, "masked_tokens", {"objective.mask_probability=1e-9"});
  const std::string expected =
      "no targets in the first 3 batches of the validation split, so there is no loss; objective.mask_probability: "
      "1e-09";
  EXPECT_THAT(message_of<UserError>([&] { check_against_data(loaded, data); }), HasSubstr(expected));
  Trainer trainer(loaded.settings, data, Device{});
  EXPECT_THAT(message_of<UserError>([&] { trainer.validate(); }), HasSubstr(expected));
}

TEST_F(ObjectivesTest, RejectsResumeWithAnotherObjective) {
  const std::string store = labeled_store(60);
  const TokenizedDataset data = TokenizedDataset::open(store);
  Trainer(settings(store, "classification").settings, data, Device{}).save(path("c.h5"));
  const auto load = [&](const std::string& objective, const std::vector<std::string>& overrides) {
    return message_of<UserError>([&] {
      Trainer(settings(store, objective, overrides).settings, data, Device{})
          .load(CheckpointReader::open(path("c.h5")));
    });
  };
  EXPECT_THAT(load("masked_tokens", {}),
              HasSubstr("the objective was classification (pooling mean) in the checkpoint and is masked_tokens"));
  EXPECT_THAT(load("classification", {"objective.pooling=class_token"}), HasSubstr("(pooling class_token) now"));
}

TEST_F(ObjectivesTest, LabeledDatasetServesOtherObjectives) {
  const std::string store = labeled_store(60);
  EXPECT_TRUE(std::isfinite(learned(store, settings(store, "masked_tokens"), 2).loss));
  const LoadedSettings decoder = small_settings(store);
  EXPECT_TRUE(std::isfinite(learned(store, decoder, 2).loss));
}

}  // namespace
}  // namespace furlong
