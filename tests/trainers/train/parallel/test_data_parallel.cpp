// Data parallel training: the same global batch gives the same losses at any world size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/autodiff/tape.h"
#include "framework/core/trace.h"
#include "tests/trainers/training.h"
#include "tests/trainers/training_curves.h"

namespace furlong {
namespace {

using parallel_testing::Curves;
using parallel_testing::difference;
using parallel_testing::numbers_of;
using parallel_testing::Report;
using parallel_testing::run_world;
using parallel_testing::run_worlds;
using parallel_testing::training;
using parallel_testing::World;
using ::testing::HasSubstr;
using testing::small_settings;

class DataParallelTest : public testing::WithTemporaryFolder {
 protected:
  DataParallelTest() {
    testing::write_store(path("text.h5"), testing::synthetic_text(3000));
    write("documents.h5", 1, 120);
    write("pairs.h5", 2, 120);
    write("numbers.h5", 1, 120, LabelKind::numbers);
    write("sets.h5", 1, 120, LabelKind::sets);
    write("tokens.h5", 1, 120, LabelKind::tokens);
  }

  /// Labeled documents of 3 to 99 letters, or pairs of them.
  void write(const std::string& name, std::uint64_t documents_per_label, int labels,
             LabelKind kind = LabelKind::classes) const {
    DatasetWriterOptions options;
    options.split_by = DatasetWriterOptions::SplitBy::document;
    options.shares = {{0.7, 0.2, 0.1}};
    options.documents_per_label = documents_per_label;
    options.label_kind = kind;
    DatasetWriter writer(path(name), Vocabulary::bytes(true), options);
    const RandomKey key{7, 0, random_stream(name)};
    std::uint64_t document = 0;
    for (int label = 0; label < labels; ++label) {
      std::vector<std::uint16_t> letters;
      for (std::uint64_t i = 0; i < documents_per_label; ++i, ++document) {
        letters.clear();
        for (std::uint64_t j = 0; j < 3 + random_word(key, document * 200 + 199) % 97; ++j)
          letters.push_back(static_cast<std::uint16_t>('a' + random_word(key, document * 200 + j) % 8));
        writer.append(letters);
        writer.end_document();
      }
      put_label(writer, kind, label, letters);
    }
    writer.finish("{}", {"no", "yes"});
  }
  static void put_label(DatasetWriter& writer, LabelKind kind, int label, const std::vector<std::uint16_t>& letters) {
    if (kind == LabelKind::classes) {
      writer.label(label % 2);
      return;
    }
    std::vector<std::int32_t> ids;
    if (kind == LabelKind::sets && label % 3 > 0) ids.push_back(label % 3 - 1);
    for (const std::uint16_t letter : letters) {
      if (kind == LabelKind::tokens) ids.push_back(letter == 'h' ? -1 : letter % 2);  // -1: not labeled
    }
    const std::vector<float> numbers{static_cast<float>(label), static_cast<float>(letters.size())};
    writer.label(DocumentLabel{ids, kind == LabelKind::numbers ? numbers : std::span<const float>{}});
  }

  Settings settings(const std::string& store, const std::vector<std::string>& overrides) const {
    std::vector<std::string> all{"data.batch_size=5", "data.sequence_length=16", "trainer.max_steps=60",
                                 "schedule.warmup_steps=5"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return small_settings(path(store), all).settings;
  }

  std::string store_path(const std::string& name) const { return path(name); }
};

// --- One loss curve for all sizes

struct Case {
  const char* name;
  const char* store;
  std::vector<std::string> overrides;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Invariance : public DataParallelTest, public ::testing::WithParamInterface<Case> {};

// Sums in another order differ by 1e-16 of their terms in float64, which fifty steps of Adam amplify to about 1e-12. In
// float32 they differ by 6e-8; the first ten steps are checked and all fifty are reported.
TEST_P(Invariance, LossesAreIndependentOfWorldSize) {
  constexpr int steps = 50;
  const Settings given = settings(GetParam().store, GetParam().overrides);
  for (const auto& [compute, bounded, tolerance] :
       {std::tuple{DType::float64, 50, 1e-9}, std::tuple{DType::float32, 10, 1e-5}}) {
    std::vector<double> alone;
    for (const Curves& found : run_worlds({1, 2, 3, 4}, training(given, compute, steps))) {
      const std::size_t size = found.size();
      if (size == 1) alone = found[0];
      EXPECT_LT(difference(found[0], alone, numbers_of(bounded)), tolerance)
          << size << " processes, " << name_of(compute);
      for (const int shown : {10, steps}) {
        const double apart = difference(found[0], alone, numbers_of(shown));
        RecordProperty(fmt::format("{}_{}_processes_{}_steps", name_of(compute), size, shown),
                       fmt::format("{:.2e}", apart));
      }
      for (const std::vector<double>& rank : found)
        EXPECT_EQ(rank, found[0]) << "losses and parameters must equal rank 0's bitwise";
    }
    EXPECT_NE(alone[4], alone[0]) << "the loss does not change in these steps";
  }
}

const std::vector<std::string> encoder{"model.architecture=encoder", "model.initializer_range=0.1"};
std::vector<std::string> encoder_with(std::vector<std::string> more) {
  more.insert(more.begin(), encoder.begin(), encoder.end());
  return more;
}

INSTANTIATE_TEST_SUITE_P(
    Trainers, Invariance,
    ::testing::Values(
        Case{"windows", "text.h5", {"model.dropout=0.1", "data.ignore_tokens=[e]"}},
        Case{"linear_accumulation",
             "text.h5",
             {"model.attention.mechanism=linear", "model.attention.redraw_every=7", "model.dropout=0.1",
              "model.short_convolution=4", "trainer.gradient_accumulation=3"}},
        Case{"sequential_shared_averaged_recomputed",
             "text.h5",
             {"data.sampler=sequential", "optimizer.ema_decay=0.9", "model.shared_layers=true",
              "trainer.activation_checkpointing=blocks", "model.attention.mechanism=linear", "model.dropout=0.1"}},
        Case{"sharded",
             "text.h5",
             {"parallel.zero_stage=1", "optimizer.ema_decay=0.9", "model.dropout=0.1",
              "model.attention.mechanism=linear"}},
        Case{"sharded_buckets",
             "text.h5",
             {"parallel.zero_stage=1", "parallel.bucket_megabytes=1", "model.d_model=112", "data.sequence_length=8",
              "data.batch_size=4", "optimizer.ema_decay=0.9", "model.dropout=0.1", "optimizer.learning_rate=0.001"}},
        Case{"packed",
             "documents.h5",
             {"data.packing=documents", "model.attention.mechanism=linear", "data.sequence_length=48"}},
        Case{"stream",
             "documents.h5",
             {"data.sampler=stream", "data.batch_size=12", "model.attention.mechanism=linear"}},
        Case{"documents", "documents.h5", {"data.sampler=documents", "data.sequence_length=100"}},
        Case{"documents_dropout",
             "documents.h5",
             {"data.sampler=documents", "data.sequence_length=100", "model.dropout=0.1"}},
        Case{"copy_task",
             "text.h5",
             {"data.dataset=null", "data.task=copy", "data.task_symbols=8", "data.task_min_symbols=2"}},
        Case{"masked_packed", "documents.h5",
             encoder_with({"objective.name=masked_tokens", "data.packing=documents", "data.sequence_length=48",
                           "model.dropout=0.1"})},
        Case{"masked_documents", "documents.h5",
             encoder_with({"objective.name=masked_tokens", "data.sampler=documents", "data.padding=sequence_length",
                           "data.sequence_length=24", "trainer.gradient_accumulation=3",
                           "model.attention.mechanism=linear"})},
        Case{"classification", "documents.h5",
             encoder_with({"objective.name=classification", "objective.pooling=class_token",
                           "data.sequence_length=100"})},
        Case{"matching", "pairs.h5",
             encoder_with({"objective.name=pair_classification", "data.sequence_length=16", "model.dropout=0.1",
                           "data.batch_size=7", "trainer.gradient_accumulation=3"})},
        Case{
            "regression", "numbers.h5",
            encoder_with({"objective.name=regression", "data.sequence_length=100", "trainer.gradient_accumulation=3"})},
        Case{"several_labels", "sets.h5",
             encoder_with({"objective.name=multi_label_classification", "data.sequence_length=100"})},
        Case{"labels_of_tokens", "tokens.h5",
             encoder_with({"objective.name=token_classification", "data.sequence_length=100",
                           "trainer.gradient_accumulation=3"})}),
    [](const auto& info) { return std::string(info.param.name); });

// --- The same size twice

TEST_F(DataParallelTest, RunsOfEqualWorldSizeAreBitwiseEqual) {
  const std::vector<std::string> common{"model.dropout=0.1", "model.attention.mechanism=linear", "data.batch_size=4",
                                        "optimizer.ema_decay=0.9"};
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {},
           {"parallel.gradient_dtype=bfloat16"},
           {"model.dtype=bfloat16"},
           {"model.dtype=bfloat16", "optimizer.stochastic_rounding=true", "parallel.gradient_dtype=bfloat16"},
           {"parallel.zero_stage=1"},
           {"parallel.zero_stage=1", "model.dtype=bfloat16", "optimizer.stochastic_rounding=true",
            "parallel.gradient_dtype=bfloat16"}}) {
    std::vector<std::string> overrides = common;
    overrides.insert(overrides.end(), more.begin(), more.end());
    const std::vector<Curves> found =
        run_worlds({2, 2, 3, 3}, training(settings("text.h5", overrides), std::nullopt, 10));
    EXPECT_EQ(found[0], found[1]) << ::testing::PrintToString(more);
    EXPECT_EQ(found[2], found[3]) << ::testing::PrintToString(more);
    for (const Curves& world : found) {
      for (const std::vector<double>& rank : world) EXPECT_EQ(rank, world[0]) << ::testing::PrintToString(more);
    }
    EXPECT_GT(found[0][0].size(), numbers_of(10) + 1000) << "the parameters were not compared";
    EXPECT_NE(found[0][0], found[2][0]) << "other sums must differ, otherwise the equality above proves nothing";
  }
}

// Rank 0's norm, summed with zeros of the others: no rank clips by its own norm, which another CPU may round
// differently. All other tests here verify that the sum is the norm and not a multiple of it.
TEST_F(DataParallelTest, RanksShareOneGradientNorm) {
  for (const char* sharded : {"parallel.zero_stage=0", "parallel.zero_stage=1"}) {
    run_world(2, [&](ProcessGroup& group, const Report&) {
      const Settings given = settings("text.h5", {sharded});
      const auto data = open_data(given.data);
      Trainer trainer(given, *data, Device{}, std::nullopt, &group);
      trainer.step();
      trace::start();
      trainer.step();
      const trace::Recording recording = trace::stop();
      const auto count = [&](const char* name) {
        return std::count_if(recording.events.begin(), recording.events.end(),
                             [&](const trace::Event& event) { return event.name == name; });
      };
      EXPECT_EQ(count("all_reduce of float64 [3]"), 1) << "loss, stop requests, and squared gradients";
      EXPECT_EQ(count("all_reduce of float64 [2]"), 1) << "tokens and targets";
    });
  }
}

// --- What travels

// Each gradient is rounded once before it is sent and once in the sum of two, by 2^-9 at most. The norm of all of them,
// with independent roundings, changes by far less than 2^-8.
TEST_F(DataParallelTest, Bfloat16GradientsApproximateFloat32) {
  const auto run = [&](const char* dtype) {
    return run_world(
        2, training(settings("text.h5", {std::string("parallel.gradient_dtype=") + dtype}), std::nullopt, 10))[0];
  };
  const std::vector<double> narrow = run("bfloat16"), wide = run("float32");
  ASSERT_EQ(narrow.size(), wide.size());
  EXPECT_EQ(narrow[0], wide[0]) << "losses are exchanged unrounded: the first one is unaffected";
  EXPECT_NE(narrow[1], wide[1]);
  EXPECT_NEAR(narrow[1] / wide[1], 1, 0x1p-8);
  EXPECT_LT(difference(narrow, wide, numbers_of(10)), 0.05);
}

// --- Who reads what

TEST(SampleShareTest, SharesAreContiguousAndBalanced) {
  for (const std::int64_t batch : {1, 2, 5, 8, 97, 1000}) {
    for (int processes = 1; processes <= std::min<std::int64_t>(batch, 17); ++processes) {
      std::int64_t next = 0;
      for (int rank = 0; rank < processes; ++rank) {
        const SampleShare share = SampleShare::of(batch, rank, processes);
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.samples, batch / processes);
        EXPECT_LE(share.samples, (batch + processes - 1) / processes);
        next += share.samples;
      }
      EXPECT_EQ(next, batch) << processes << " processes";
    }
  }
}

void append(std::vector<std::int32_t>& all, const std::vector<std::int32_t>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void expect_equal_batches(const Batch& found, const Batch& expected) {
  EXPECT_EQ(found.batch, expected.batch);
  EXPECT_EQ(found.n, expected.n);
  EXPECT_EQ(found.inputs, expected.inputs);
  EXPECT_EQ(found.targets, expected.targets);
  EXPECT_EQ(found.n_targets, expected.n_targets);
  EXPECT_EQ(found.n_tokens, expected.n_tokens);
  EXPECT_EQ(found.mask, expected.mask);
  EXPECT_EQ(found.documents, expected.documents);
  EXPECT_EQ(found.fresh, expected.fresh);
  EXPECT_EQ(found.labels, expected.labels);
  EXPECT_EQ(found.values, expected.values);
}

/// A batch assembled from the shares of all ranks. A share without padding has an empty mask.
Batch together(std::vector<Batch> parts) {
  const bool masked = std::any_of(parts.begin(), parts.end(), [](const Batch& part) { return !part.mask.empty(); });
  Batch whole;
  for (Batch& part : parts) {
    if (masked && part.mask.empty()) part.mask.assign(part.inputs.size(), 1);
    whole.batch += part.batch;
    whole.n = part.n;
    whole.n_targets += part.n_targets;
    whole.n_tokens += part.n_tokens;
    append(whole.inputs, part.inputs);
    append(whole.targets, part.targets);
    append(whole.mask, part.mask);
    append(whole.documents, part.documents);
    append(whole.fresh, part.fresh);
    append(whole.labels, part.labels);
    append(whole.values, part.values);
  }
  return whole;
}

TEST_F(DataParallelTest, SharesCoverTheBatch) {
  std::vector<Case> cases{{"windows", "text.h5", {}},
                          {"sequential", "text.h5", {"data.sampler=sequential", "data.ignore_tokens=[e]"}},
                          {"packed", "documents.h5", {"data.packing=documents"}},
                          {"stream", "documents.h5", {"data.sampler=stream"}},
                          {"copy_task", "text.h5", {"data.dataset=null", "data.task=copy", "data.task_min_symbols=2"}},
                          {"masked", "documents.h5", encoder_with({"objective.name=masked_tokens"})}};
  for (const char* padding : {"longest", "sequence_length"}) {
    const std::string how = std::string("data.padding=") + padding;
    cases.push_back({"documents", "documents.h5", {"data.sampler=documents", "data.sequence_length=100", how}});
    cases.push_back(
        {"masked_documents", "documents.h5",
         encoder_with({"objective.name=masked_tokens", "data.sampler=documents", "data.sequence_length=100", how})});
    cases.push_back({"classification", "documents.h5",
                     encoder_with({"objective.name=classification", "objective.pooling=class_token",
                                   "data.sequence_length=100", how})});
    cases.push_back({"matching", "pairs.h5",
                     encoder_with({"objective.name=pair_classification", "data.sequence_length=100", how})});
    for (const auto& [objective, store] : {std::pair{"regression", "numbers.h5"},
                                           {"multi_label_classification", "sets.h5"},
                                           {"token_classification", "tokens.h5"}})
      cases.push_back({objective, store,
                       encoder_with({std::string("objective.name=") + objective, "data.sequence_length=100", how})});
  }
  int widened = 0;
  for (const Case& one : cases) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, one.name);
    std::vector<std::string> overrides = one.overrides;
    overrides.push_back("data.batch_size=6");
    const Settings given = settings(one.store, overrides);
    const auto data = open_data(given.data);
    const Vocabulary vocabulary = model_vocabulary(given, data->vocabulary());
    const auto train = training_source(given, vocabulary, *data);
    const auto held_out = evaluation_source(given, vocabulary, *data, Split::validation, given.data.sequence_length, 6);
    for (const int processes : {2, 3, 6}) {
      // The last batch of validation is not full.
      for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{18}, (held_out->n_samples() - 1) / 6 * 6}) {
        for (const bool training : {true, false}) {
          const auto read = [&](std::uint64_t begin, std::int64_t samples) {
            return training ? train->batch(begin, samples) : held_out->single_pass_batch(begin, samples);
          };
          const Batch whole = read(first, 6);
          std::vector<Batch> parts;
          for (int rank = 0; rank < processes; ++rank) {
            const SampleShare share = SampleShare::of(6, rank, processes);
            parts.push_back(read(first + static_cast<std::uint64_t>(share.first), share.samples));
            widened += parts.back().n < whole.n;
            widen(parts.back(), whole.n);
          }
          expect_equal_batches(together(std::move(parts)), whole);
        }
      }
    }
  }
  EXPECT_GT(widened, 20) << "no share was shorter than its batch";
}

// --- What each finds of its own

TEST_F(DataParallelTest, CountsDenominatorsOverAllRanks) {
  const Settings given = settings(
      "text.h5", {"model.attention.mechanism=linear", "model.attention.feature_map=favor_trig",
                  "model.attention.denominator_guard=0.3", "data.batch_size=7", "model.initializer_range=0.5"});
  const auto counted = [&](ProcessGroup& group, const Report& report) {
    const auto data = open_data(given.data);
    Trainer trainer(given, *data, Device{}, DType::float64, &group);
    for (int i = 0; i < 3; ++i) {
      const ops::DenominatorReport found = trainer.step().denominators;
      report.add({static_cast<double>(found.rows), static_cast<double>(found.guarded), found.least});
    }
  };
  const std::vector<Curves> found = run_worlds({1, 2, 3}, counted);
  const std::vector<double>& alone = found[0][0];
  ASSERT_EQ(alone.size(), 9u);
  EXPECT_EQ(alone[0], 2 * 7 * 16 * 2) << "layers, samples, tokens, heads";
  EXPECT_GT(alone[1], 0) << alone[2];
  EXPECT_LT(alone[1], alone[0]);
  for (const Curves& world : found) {
    for (const std::vector<double>& rank : world) {
      ASSERT_EQ(rank.size(), 9u);
      for (const std::size_t step : {0u, 3u, 6u}) {
        EXPECT_EQ(rank[step], alone[step]);
        EXPECT_EQ(rank[step + 1], alone[step + 1]);
        EXPECT_NEAR(rank[step + 2], alone[step + 2], 1e-9 * std::abs(alone[step + 2]));
      }
    }
  }
}

// --- What is not finite

/// Rank `where` alone writes `value` into its copy of a parameter, and must detect the result.
class FaultyRank : public DataParallelTest {
 protected:
  void expect_named(int where, float value, const std::vector<std::string>& parts) const {
    const Settings given = settings("text.h5", {});
    World world(3, [=](ProcessGroup& group, const Report&) {
      const auto data = open_data(given.data);
      Trainer trainer(given, *data, Device{}, std::nullopt, &group);
      trainer.step();
      if (group.rank() == where) {
        const Tensor values = trainer.model().store->find("blocks.1.feedforward.input.weight").master();
        std::fill_n(values.data<float>(), values.elements(), value);
      }
      trainer.step();
    });
    EXPECT_EQ(world.wait(), (std::vector<int>{1, 1, 1}));
    const std::string errors = world.errors();
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
    for (const std::string& part : parts) EXPECT_THAT(errors, HasSubstr(part));
  }
};

TEST_F(FaultyRank, ReportsOpAndRank) {
  for (const int where : {0, 2})  // finite itself, but not in a product
    expect_named(where, 3e38f,
                 {where == 0 ? "error: step 2: loss " : "error: rank 2 on host here failed: error: step 2: loss ",
                  "First op with a non-finite result: ", "blocks.1.feedforward"});
}

TEST_F(FaultyRank, ReportsParameterAndRank) {
  expect_named(1, std::numeric_limits<float>::quiet_NaN(),
               {"error: rank 1 on host here failed: error: step 2: loss ",
                "values of parameter blocks.1.feedforward.input.weight"});
}

}  // namespace
}  // namespace furlong
