// End-to-end tests: the copy task, packed documents, and stateful training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "evaluation/generate.h"
#include "tests/trainers/summed_loss.h"
#include "tests/trainers/training.h"
#include "trainers/train/train.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

using testing::expect_equal_tensors;
using ::testing::HasSubstr;
using testing::LossAndGradient;
using testing::message_of;
using testing::small_settings;
using testing::summed_loss;
using testing::with;

// --- The copy task

LoadedSettings copy_settings(const std::vector<std::string>& overrides) {
  std::vector<std::string> all{"data.task_symbols=4",
                               "data.sequence_length=24",
                               "data.batch_size=32",
                               "model.n_layers=2",
                               "model.d_model=32",
                               "model.n_heads=2",
                               "model.d_feedforward=32",
                               "model.initializer_range=0.1",
                               "model.short_convolution=2",
                               "schedule.warmup_steps=10",
                               "trainer.max_steps=200",
                               "trainer.validate_every=0",
                               "trainer.validation_batches=4",
                               "optimizer.learning_rate=0.01",
                               "optimizer.weight_decay=0.01",
                               "log.level=error",
                               "log.progress=none",
                               "device=cpu"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return from_yaml_text("data:\n  task: copy\n", "settings of the test", all);
}

class CopyRun : public testing::WithTemporaryFolder {
 protected:
  LoadedSettings in_folder(std::vector<std::string> overrides) const {
    overrides.push_back("run_directory=" + path("run"));
    return copy_settings(overrides);
  }
  double last_accuracy() const {
    std::istringstream lines(content(path("run/metrics.jsonl")));
    double accuracy = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record["split"] == "validation") accuracy = record["accuracy"];
    }
    return accuracy;
  }
};

/// Training, metrics, the checkpoint's vocabulary, evaluation and generation: a model that has learned to copy copies a
/// prompt.
TEST_F(CopyRun, LearnsAndCopiesPrompt) {
  const LoadedSettings loaded = in_folder({});
  const TrainResult result = train(loaded, {});
  EXPECT_GT(last_accuracy(), 0.99);
  Model model = load_model(CheckpointReader::open(result.checkpoint), Device{}, Weights::ema_if_present);
  EXPECT_TRUE(model.vocabulary == Vocabulary::copy(4));
  const auto data = open_data(model.settings.data);
  EXPECT_GT(evaluate(model, *data, Split::test, 24, 64).accuracy, 0.99);
  const std::string symbols = "20131130213";
  const Generated generated =
      generate(model, model.vocabulary.encode("<" + symbols + "="), {.max_tokens = 11, .temperature = 0}, {});
  EXPECT_EQ(model.vocabulary.decode(generated.samples[0]), symbols);
}

TEST_F(CopyRun, LearnsWithLinearAttention) {
  train(in_folder({"model.attention.mechanism=linear", "model.attention.feature_map=elu1", "model.position=learned"}),
        {});
  EXPECT_GT(last_accuracy(), 0.99);
}

/// Bidirectional models predict a masked second half.
TEST_F(CopyRun, EncoderFillsCopy) {
  train(in_folder({"model.architecture=encoder", "objective.name=masked_tokens", "model.short_convolution=0",
                   "model.position=learned"}),
        {});
  EXPECT_GT(last_accuracy(), 0.99);
}

TEST_F(CopyRun, LearnsAssociativeRecall) {
  train(in_folder({"data.task=associative_recall", "data.task_pairs=2", "data.sequence_length=16",
                   "data.task_symbols=8", "trainer.max_steps=200"}),
        {});
  EXPECT_GT(last_accuracy(), 0.9);  // 0.17 by guessing a value's symbol
}

TEST(CopySettings, RejectUnsupportedSettings) {
  const auto refusal = [](const std::vector<std::string>& overrides) {
    return message_of<UserError>([&] { copy_settings(overrides); });
  };
  EXPECT_THAT(refusal({"data.sequence_length=25"}), HasSubstr("expected an even number of at least 4"));
  EXPECT_THAT(refusal({"data.task_min_symbols=12"}), HasSubstr("exceeds the longest copy, 11 symbols"));
  EXPECT_THAT(refusal({"data.dataset=x.h5"}), HasSubstr("data.dataset has no effect with data.task: copy"));
  EXPECT_THAT(refusal({"data.task_symbols=63"}), HasSubstr("from 1 to 62"));
  EXPECT_THAT(refusal({"model.architecture=encoder", "objective.name=classification"}), HasSubstr("has no labels for"));
  EXPECT_THAT(refusal({"data.task=associative_recall", "data.task_pairs=3"}),
              HasSubstr("3 pairs need 6 symbols; the vocabulary has 4"));
  EXPECT_THAT(refusal({"data.task=associative_recall", "data.task_pairs=2", "data.sequence_length=17"}),
              HasSubstr("expected an even number of at least 16"));
  EXPECT_THAT(refusal({"data.task=associative_recall", "data.task_pairs=2", "model.architecture=encoder",
                       "objective.name=masked_tokens"}),
              HasSubstr("is a task for decoders"));
  EXPECT_THAT(refusal({"data.task_pairs=2"}), HasSubstr("data.task_pairs has no effect with data.task: copy"));
  EXPECT_THAT(message_of<UserError>([] { from_yaml_text("data:\n  task: none\n", "x.yaml"); }),
              HasSubstr("data.dataset is missing"));
  // A config written out and read again is the same, though it has no store.
  const Settings settings = copy_settings({}).settings;
  EXPECT_TRUE(from_yaml_text(to_yaml(settings), "again").settings == settings);
}

// --- Documents

class DocumentsRun : public testing::WithTemporaryFolder {
 protected:
  /// Documents of letters, all of them in the training split but for what `shares` says.
  std::string store_of(const std::vector<std::string>& documents, const std::string& shares = "1") const {
    return testing::write_texts(path("documents.h5"), documents, shares);
  }
};

using PackedDocuments = DocumentsRun;
using RecurrentStates = DocumentsRun;

/// Batches of one evaluation have other documents, and so other positions.
TEST_F(PackedDocuments, EvaluationDoesNotDependOnTheBatchSize) {
  std::vector<std::string> documents;
  for (std::size_t i = 0; i < 40; ++i) documents.push_back(testing::synthetic_text(3 + 7 * i % 13));
  const std::string store = store_of(documents);
  const TokenizedDataset data = TokenizedDataset::open(store);
  for (const char* position : {"rotary", "learned", "sinusoidal"}) {
    Model model = make_model(small_settings(store, {"data.packing=documents", "data.sampler=sequential",
                                                    "model.initializer_range=0.2",
                                                    std::string("model.position=") + position})
                                 .settings,
                             data.vocabulary(), Device{}, DType::float64);
    const double whole = evaluate(model, data, Split::train, 32, 16, 0).loss;
    for (const std::int64_t batch_size : {1, 2}) {
      EXPECT_NEAR(evaluate(model, data, Split::train, 32, batch_size, 0).loss, whole, 1e-12) << position;
    }
  }
}

/// For every mechanism and position embedding, loss and gradients of a packed window equal those of its documents.
TEST_F(PackedDocuments, GradientsEqualSeparateDocuments) {
  const std::vector<std::string> documents{"hello", "x", "the cat sat", "ab", "long before", "on"};
  const std::string store = store_of(documents);
  const TokenizedDataset data = TokenizedDataset::open(store);
  for (const char* mechanism : {"softmax", "linear", "windowed"}) {
    for (const char* position : {"rotary", "learned", "sinusoidal"}) {
      const std::string attention = std::string("model.attention.mechanism=") + mechanism;
      std::vector<std::string> overrides{"data.packing=documents",
                                         "data.sampler=sequential",
                                         "model.short_convolution=3",
                                         "model.initializer_range=0.2",
                                         attention,
                                         std::string("model.position=") + position};
      if (mechanism == std::string("windowed")) overrides.emplace_back("model.attention.softmax_window=4");
      Model model = make_model(small_settings(store, overrides).settings, data.vocabulary(), Device{}, DType::float64);
      const Batch packed = training_source(model.settings, model.vocabulary, data)->batch(0, 1);
      ASSERT_EQ(packed.documents.size(), 32u);
      const LossAndGradient together = summed_loss(model, packed);
      LossAndGradient alone;
      for (const std::string& text : documents) {
        Batch batch;
        batch.batch = 1;
        batch.n = static_cast<std::int64_t>(text.size());
        batch.inputs.assign(text.begin(), text.end());
        batch.targets.assign(text.begin() + 1, text.end());
        batch.targets.push_back(ignored_target);
        batch.n_targets = batch.n - 1;
        const LossAndGradient one = summed_loss(model, batch);
        alone.loss += one.loss;
        alone.targets += one.targets;
        alone.gradient.resize(one.gradient.size());
        for (std::size_t i = 0; i < one.gradient.size(); ++i) alone.gradient[i] += one.gradient[i];
      }
      EXPECT_EQ(together.targets, alone.targets);
      // Sums in float64 in another order.
      EXPECT_NEAR(together.loss / alone.loss, 1, 1e-12) << mechanism << " " << position;
      double worst = 0, largest = 0;
      for (std::size_t i = 0; i < alone.gradient.size(); ++i) {
        worst = std::max(worst, std::abs(alone.gradient[i] - together.gradient[i]));
        largest = std::max(largest, std::abs(alone.gradient[i]));
      }
      EXPECT_LE(worst, 1e-11 * largest) << mechanism << " " << position;

      Batch crossing = packed;  // what the numbers of the documents are good for
      crossing.documents.clear();
      EXPECT_GT(std::abs(summed_loss(model, crossing).loss / alone.loss - 1), 1e-6) << mechanism << " " << position;
    }
  }
}

// --- Stateful training

/// Documents of letters with learnable content; some are shorter than a segment.
std::vector<std::string> long_documents() {
  std::vector<std::string> documents;
  std::uint64_t seed = 20;
  for (const std::size_t length : {300, 7, 150, 1, 90, 200, 64, 33, 250, 40})
    documents.push_back(testing::synthetic_text(length, seed++));
  return documents;
}

const std::vector<std::string> carrying{"model.attention.mechanism=linear", "data.sampler=stream", "data.stateful=true",
                                        "model.short_convolution=4"};

/// A model that reads a document segment by segment, with its recurrent state, gives the result of reading it whole.
TEST_F(RecurrentStates, SegmentsEqualWholeDocuments) {
  const std::string store = store_of(long_documents());
  const TokenizedDataset data = TokenizedDataset::open(store);
  for (const char* map : {"favor_positive", "elu1", "taylor"}) {
    const auto options = with(carrying, {std::string("model.attention.feature_map=") + map,
                                         "model.initializer_range=0.2", "data.batch_size=1"});
    Model model = make_model(small_settings(store, options).settings, data.vocabulary(), Device{}, DType::float64);
    const Evaluation whole = evaluate(model, data, Split::train, 512, 1);
    const Evaluation segments = evaluate(model, data, Split::train, 32, 1);
    EXPECT_EQ(segments.targets, whole.targets);
    EXPECT_NEAR(segments.loss / whole.loss, 1, 1e-10) << map;
    for (const std::int64_t rows : {2, 3})
      EXPECT_NEAR(evaluate(model, data, Split::train, 32, rows).loss / whole.loss, 1, 1e-10) << map;
    model.settings.data.stateful = false;
    EXPECT_GT(std::abs(evaluate(model, data, Split::train, 32, 1).loss / whole.loss - 1), 1e-6) << map;
  }
}

/// Checkpoints contain the states, including those of rows inside documents, of each accumulated batch, and in
/// bfloat16.
TEST_F(RecurrentStates, ResumesBitwise) {
  const std::string store = store_of(long_documents(), "0.8,0.2,0");
  const TokenizedDataset data = TokenizedDataset::open(store);
  for (const auto& more :
       {std::vector<std::string>{}, std::vector<std::string>{"model.dtype=bfloat16", "trainer.gradient_accumulation=2"},
        std::vector<std::string>{"trainer.activation_checkpointing=blocks", "model.attention.feature_map=taylor"}}) {
    const Settings settings = small_settings(store, with(carrying, with(more, {"data.sequence_length=16"}))).settings;
    Trainer whole(settings, data, Device{});
    for (int step = 0; step < 9; ++step) {
      if (step == 4) whole.save(path("stop.h5"));
      whole.step();
      if (step == 3) whole.validate();  // whose states are others
    }
    whole.save(path("whole.h5"));
    Trainer resumed(settings, data, Device{});
    resumed.load(CheckpointReader::open(path("stop.h5")));
    while (resumed.steps() < 9) resumed.step();
    resumed.save(path("resumed.h5"));
    expect_equal_tensors(path("whole.h5"), path("resumed.h5"));
    EXPECT_FALSE(CheckpointReader::open(path("whole.h5")).tensors("recurrent_state/0/").empty());

    // If the batch layout changes, rows start with empty states instead of those of other documents.
    const auto next_loss = [&](std::int64_t sequence_length, bool stateful) {
      Settings changed = settings;
      changed.data.sequence_length = sequence_length;
      changed.data.stateful = stateful;
      Trainer trainer(changed, data, Device{});
      trainer.load(CheckpointReader::open(path("stop.h5")));
      return trainer.step().loss;
    };
    if (settings.model.dtype == DType::bfloat16) continue;  // rounds away what these states tell
    EXPECT_NEAR(next_loss(8, true) / next_loss(8, false), 1, 1e-6) << "the same sums in another order";
    EXPECT_GT(std::abs(next_loss(16, true) / next_loss(16, false) - 1), 1e-5) << "stored states must affect the loss";
    // The same data at another path.
    Settings moved = settings;
    moved.data.dataset = path("moved.h5");
    Trainer trainer(moved, data, Device{});
    trainer.load(CheckpointReader::open(path("stop.h5")));
    EXPECT_EQ(trainer.step().loss, next_loss(16, true));
  }
}

/// Information from earlier segments can be learned only with recurrent states: each segment except a document's first
/// starts with a question mark, which its letter follows.
TEST_F(RecurrentStates, CarryInformationFromEarlierSegments) {
  std::vector<std::string> documents;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const char letter = static_cast<char>('a' + random_word({3, 0, random_stream("letters")}, i) % 8);
    std::string text = std::string(1, letter) + "....";
    while (text.size() < 20 + 5 * (i % 9)) text += std::string("?") + letter + "...";
    documents.push_back(text);
  }
  const std::string store = store_of(documents, "0.8,0.2,0");
  const TokenizedDataset data = TokenizedDataset::open(store);
  const auto accuracy = [&](const std::vector<std::string>& more) {
    const auto settings =
        small_settings(store, with({"model.attention.mechanism=linear", "data.sampler=stream", "data.sequence_length=5",
                                    "data.batch_size=16", "model.short_convolution=2", "model.initializer_range=0.2",
                                    "schedule.name=constant", "optimizer.learning_rate=0.003", "model.d_model=32"},
                                   more))
            .settings;
    Trainer trainer(settings, data, Device{});
    for (int step = 0; step < 900; ++step) trainer.step();
    return evaluate(trainer.model(), data, Split::validation, 5, 4).accuracy;
  };
  // One target in five or so is a letter; one in eight of these can be guessed.
  EXPECT_GT(accuracy({"data.stateful=true"}), 0.98);
  EXPECT_LT(accuracy({}), 0.9);
}

TEST_F(RecurrentStates, RejectUnsupportedSettings) {
  const auto refusal = [&](const std::vector<std::string>& more) {
    return message_of<UserError>([&] {
      small_settings("x.h5", with({"data.sampler=stream", "data.stateful=true"}, more));
    });
  };
  const std::string linear = "model.attention.mechanism=linear";
  EXPECT_THAT(refusal({}), HasSubstr("the state of softmax attention grows"));
  EXPECT_THAT(refusal({"model.attention.layers=[linear, softmax]"}),
              HasSubstr("cannot be combined with model.attention.layers"));
  EXPECT_THAT(refusal({"model.attention.mechanism=windowed", "model.attention.softmax_window=8"}),
              HasSubstr("a window needs one token count for all rows"));
  EXPECT_THAT(refusal({linear, "model.attention.window=8"}), HasSubstr("a window needs one token count for all rows"));
  EXPECT_THAT(refusal({linear, "model.attention.redraw_every=8"}),
              HasSubstr("features of the previous random projection"));
  EXPECT_THAT(refusal({linear, "model.attention.centering=true"}),
              HasSubstr("cannot be combined with model.attention.centering"));
  EXPECT_THAT(refusal({linear, "model.attention.scaling=saderf"}),
              HasSubstr("cannot be combined with model.attention.scaling"));
  EXPECT_THAT(refusal({linear, "model.attention.feature_map=oprf"}), HasSubstr("its constants change in every step"));
  EXPECT_THAT(refusal({linear, "model.position=learned"}), HasSubstr("use rotary"));
  EXPECT_THAT(message_of<UserError>([&] {
                small_settings("x.h5", {linear, "data.stateful=true"});
              }),
              HasSubstr("requires data.sampler: stream"));
  EXPECT_THAT(message_of<UserError>([&] {
                small_settings("x.h5", {"data.sampler=stream", "data.packing=documents"});
              }),
              HasSubstr("data.packing has no effect with data.sampler: stream"));
}

}  // namespace
}  // namespace furlong
