// Context parallelism: ranks that each have a segment of a sequence train like one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "framework/io/checkpoint_file.h"
#include "framework/ops/attention/feature_maps/feature_map.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"
#include "tests/trainers/training_curves.h"
#include "trainers/checkpoint/checkpoints.h"

namespace furlong::sequence_testing {
namespace {

using parallel_testing::Curves;
using parallel_testing::Report;
using parallel_testing::run_world;
using parallel_testing::run_worlds;
using parallel_testing::World;
using ::testing::HasSubstr;
using testing::small_settings;

using Overrides = std::vector<std::string>;

/// World size, and number of ranks that share each sequence.
struct Grid {
  int processes, of_a_sequence;
};

class ContextParallelTest : public testing::WithTemporaryFolder {
 protected:
  ContextParallelTest() {
    testing::write_store(path("text.h5"), testing::synthetic_text(3000));
    write_documents();
  }

  /// Documents of 3 to 40 letters: in windows of 48 tokens some lie in one segment, others in several.
  void write_documents() const {
    DatasetWriterOptions options;
    options.split_by = DatasetWriterOptions::SplitBy::document;
    options.shares = {{0.7, 0.2, 0.1}};
    DatasetWriter writer(path("documents.h5"), Vocabulary::bytes(true), options);
    const std::string text = testing::synthetic_text(6000, 3);
    const RandomKey key{7, 0, random_stream("documents of segments")};
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < 120; ++i) {
      const std::size_t length = 3 + random_word(key, i) % 38;
      writer.append(std::vector<std::uint16_t>(text.begin() + static_cast<std::ptrdiff_t>(at),
                                               text.begin() + static_cast<std::ptrdiff_t>(at + length)));
      writer.end_document();
      at += length;
    }
    writer.finish("{}");
  }

  Settings settings(const Overrides& overrides, int of_a_sequence) const {
    Overrides all{"data.batch_size=4",       "data.sequence_length=48",          "trainer.max_steps=60",
                  "schedule.warmup_steps=3", "model.attention.mechanism=linear", "model.attention.chunk_size=16"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    all.push_back("parallel.context_parallel_size=" + std::to_string(of_a_sequence));
    const bool by_document =
        std::any_of(all.begin(), all.end(), [](const std::string& one) { return one.ends_with("=documents"); });
    return small_settings(path(by_document ? "documents.h5" : "text.h5"), all).settings;
  }
};

/// Loss, gradient norm, tokens and targets of each step; then loss, targets, tokens and accuracy of a validation.
void train_and_validate(Trainer& trainer, int steps, const Report& report) {
  for (int i = 0; i < steps; ++i) {
    const StepReport found = trainer.step();
    report.add(
        {found.loss, found.gradient_norm, static_cast<double>(found.tokens), static_cast<double>(found.targets)});
  }
  const Evaluation validation = trainer.validate();
  report.add({validation.loss, static_cast<double>(validation.targets), static_cast<double>(validation.tokens),
              validation.accuracy});
}

World::Body training(const Settings& settings, std::optional<DType> compute, int steps) {
  return [=](ProcessGroup& group, const Report& report) {
    const auto data = open_data(settings.data);
    Trainer trainer(settings, *data, Device{}, compute, &group);
    train_and_validate(trainer, steps, report);
    report.add(parallel_testing::values_of(trainer.model().store->values()));
  };
}

std::size_t numbers_of(int steps) { return static_cast<std::size_t>(4 * steps + 4); }

double difference(const std::vector<double>& found, const std::vector<double>& expected, int steps) {
  return parallel_testing::difference(found, expected, numbers_of(steps));
}

// --- One loss curve

struct Case {
  std::string name;
  Overrides overrides;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class ContextParallel : public ContextParallelTest, public ::testing::WithParamInterface<Case> {
 protected:
  /// Sums in another order differ by 1e-16 of their terms in float64, by 6e-8 in float32.
  void expect_one_curve(const std::vector<Grid>& grids) const {
    for (const auto& [compute, steps, tolerance] :
         {std::tuple{DType::float64, 14, 1e-9}, std::tuple{DType::float32, 10, 1e-5}}) {
      const std::vector<double> alone = run_world(1, training(settings(GetParam().overrides, 1), compute, steps))[0];
      ASSERT_GT(alone.size(), numbers_of(steps) + 1000) << "the parameters are missing";
      EXPECT_NE(alone[4], alone[0]) << "the loss does not change in these steps";
      for (const Grid& grid : grids) {
        const Curves found =
            run_world(grid.processes, training(settings(GetParam().overrides, grid.of_a_sequence), compute, steps));
        const double apart = difference(found[0], alone, steps);
        EXPECT_LT(apart, tolerance) << grid.of_a_sequence << " of " << grid.processes << " processes, "
                                    << name_of(compute);
        RecordProperty(fmt::format("{}_{}_of_{}", name_of(compute), grid.of_a_sequence, grid.processes),
                       fmt::format("{:.2e}", apart));
        for (const std::vector<double>& rank : found)
          EXPECT_EQ(rank, found[0]) << "losses and parameters must equal rank 0's bitwise";
      }
    }
  }
};

TEST_P(ContextParallel, LossesEqualOneProcess) { expect_one_curve({{2, 2}, {4, 2}, {4, 4}}); }

Overrides encoder(Overrides more) {
  more.insert(more.begin(),
              {"model.architecture=encoder", "objective.name=masked_tokens", "model.initializer_range=0.1"});
  return more;
}

INSTANTIATE_TEST_SUITE_P(
    Trainers, ContextParallel,
    ::testing::Values(
        Case{"decoder", {}}, Case{"decoder_learned", {"model.position=learned"}},
        Case{"decoder_sinusoidal_recomputed", {"model.position=sinusoidal", "trainer.activation_checkpointing=blocks"}},
        Case{"decoder_numerator_sharded",
             {"model.rotary_placement=numerator", "parallel.zero_stage=1", "optimizer.ema_decay=0.9"}},
        Case{"decoder_accumulation_centered",
             {"trainer.gradient_accumulation=3", "data.batch_size=3", "model.attention.centering=true",
              "model.attention.scaling=saderf"}},
        Case{"decoder_stream_redrawn",
             {"data.sampler=stream", "model.attention.redraw_every=3", "model.attention.normalizer=none"}},
        Case{"decoder_everything",
             {"trainer.gradient_accumulation=2", "trainer.activation_checkpointing=blocks", "parallel.zero_stage=1",
              "model.shared_layers=true", "model.query_key_norm=rmsnorm"}},
        Case{"encoder", encoder({})},
        Case{"encoder_learned_accumulation", encoder({"model.position=learned", "trainer.gradient_accumulation=2"})},
        Case{"encoder_sinusoidal_sharded", encoder({"model.position=sinusoidal", "parallel.zero_stage=1",
                                                    "trainer.activation_checkpointing=blocks"})}),
    [](const auto& info) { return info.param.name; });

/// Documents of 3 to 40 tokens in segments of 12 and 24: borders inside, on and next to those of segments.
Overrides packed(Overrides more) {
  more.insert(more.begin(), "data.packing=documents");
  return more;
}
INSTANTIATE_TEST_SUITE_P(
    Packed, ContextParallel,
    ::testing::Values(Case{"decoder", packed({})},
                      Case{"decoder_learned_recomputed",
                           packed({"model.position=learned", "trainer.activation_checkpointing=blocks"})},
                      Case{"decoder_sinusoidal_sharded",
                           packed({"model.position=sinusoidal", "parallel.zero_stage=1"})},
                      Case{"decoder_numerator_accumulation",
                           packed({"model.rotary_placement=numerator", "trainer.gradient_accumulation=3"})},
                      Case{"encoder", encoder(packed({}))},
                      Case{"encoder_learned_everything",
                           encoder(packed({"model.position=learned", "trainer.activation_checkpointing=blocks",
                                           "parallel.zero_stage=1", "trainer.gradient_accumulation=2",
                                           "model.attention.centering=true"}))},
                      Case{"encoder_numerator", encoder(packed({"model.rotary_placement=numerator"}))},
                      // One document per row, and segments with padding only.
                      Case{"decoder_padded", {"data.sampler=documents", "data.padding=sequence_length"}},
                      Case{"encoder_padded", encoder({"data.sampler=documents", "data.padding=sequence_length"})}),
    [](const auto& info) { return info.param.name; });

/// Each dropped element is the one that one process drops, in every row and every accumulated batch.
INSTANTIATE_TEST_SUITE_P(
    Dropout, ContextParallel,
    ::testing::Values(
        Case{"decoder", {"model.dropout=0.1", "trainer.gradient_accumulation=2"}},
        Case{"decoder_packed_recomputed", packed({"model.dropout=0.2", "trainer.activation_checkpointing=blocks"})},
        Case{"encoder", encoder({"model.dropout=0.1", "model.d_embedding=8", "model.prediction_head=transform"})}),
    [](const auto& info) { return info.param.name; });

/// Every map, in two segments.
class ContextParallelMaps : public ContextParallel {};
TEST_P(ContextParallelMaps, LossesEqualOneProcess) { expect_one_curve({{2, 2}}); }

std::vector<Case> every_map() {
  std::vector<Case> cases;
  for (const ops::FeatureMapInfo& info : ops::feature_maps())
    cases.push_back({std::string(info.name), packed({"model.attention.feature_map=" + std::string(info.name),
                                                     "trainer.activation_checkpointing=blocks"})});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Trainers, ContextParallelMaps, ::testing::ValuesIn(every_map()),
                         [](const auto& info) { return info.param.name; });

// --- The same size twice

TEST_F(ContextParallelTest, RunsOfEqualWorldSizeAreBitwiseEqual) {
  for (const Grid& grid : {Grid{2, 2}, Grid{4, 2}}) {
    const Settings given =
        settings(packed({"parallel.zero_stage=1", "trainer.gradient_accumulation=2"}), grid.of_a_sequence);
    const std::vector<Curves> found = run_worlds({grid.processes, grid.processes}, training(given, std::nullopt, 8));
    EXPECT_EQ(found[0], found[1]) << grid.processes;
    EXPECT_GT(found[0][0].size(), numbers_of(8) + 1000) << "the parameters were not compared";
  }
}

// --- Checkpoints

TEST_F(ContextParallelTest, AnyWorldSizeResumesCheckpointOfFourRanks) {
  constexpr int before = 5, after = 6;
  for (const Overrides& overrides :
       {Overrides{"optimizer.ema_decay=0.9"},
        packed({"parallel.zero_stage=1", "optimizer.ema_decay=0.9", "model.dropout=0.1"})}) {
    const std::string name = path("saved.h5");
    const auto run = [&](const Grid& grid, const std::function<void(Trainer&)>& begin) {
      return run_world(grid.processes,
                       [&, given = settings(overrides, grid.of_a_sequence)](ProcessGroup& group, const Report& report) {
                         const auto data = open_data(given.data);
                         Trainer trainer(given, *data, Device{}, DType::float64, &group);
                         begin(trainer);
                         train_and_validate(trainer, after, report);
                         report.add(trainer.model().store->values().to_vector<double>());
                       })[0];
    };
    const auto resume = [&](Trainer& trainer) { trainer.load(CheckpointReader::open(name)); };
    const auto first_steps = [](Trainer& trainer) {
      for (int i = 0; i < before; ++i) trainer.step();
    };
    const auto first_steps_saved = [&](Trainer& trainer) {
      first_steps(trainer);
      trainer.save(name, "");
    };
    const std::vector<double> undisturbed = run({4, 2}, first_steps_saved);
    EXPECT_EQ(run({4, 2}, resume), undisturbed) << "equal world sizes are bitwise equal";
    EXPECT_LT(difference(run({1, 1}, first_steps), undisturbed, after), 1e-9);
    for (const Grid& grid : {Grid{4, 4}, Grid{2, 2}, Grid{2, 1}, Grid{1, 1}})
      EXPECT_LT(difference(run(grid, resume), undisturbed, after), 1e-9)
          << grid.of_a_sequence << " of " << grid.processes;
  }
}

// --- The program

class ContextParallelProgram : public ContextParallelTest {
 protected:
  /// furlong launch train with two ranks per sequence, and these overrides.
  testing::Finished train(const std::string& run, const Overrides& overrides) const {
    Overrides all{"data.sequence_length=48", "parallel.context_parallel_size=2"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const std::string config = file("config.yaml", to_yaml(small_settings(path("documents.h5"), all).settings));
    return testing::Program(folder_, {"launch", "--processes", "2", "train", config, "--run-dir", path(run)}).wait();
  }
};

Overrides linear(Overrides more) {
  more.insert(more.begin(), "model.attention.mechanism=linear");
  return more;
}

TEST_F(ContextParallelProgram, TrainsOnPackedDocumentsWithDropout) {
  const testing::Finished found =
      train("run",
            linear({"data.packing=documents", "model.dropout=0.1", "trainer.max_steps=5", "trainer.validate_every=5"}));
  EXPECT_EQ(found.status, 0) << found.err;
  EXPECT_TRUE(newest_complete_checkpoint(path("run/checkpoints")).has_value()) << found.out << found.err;
}

TEST_F(ContextParallelProgram, RejectsUnsupportedSettings) {
  const std::vector<std::pair<Overrides, std::string>> cases{
      {{"model.attention.mechanism=softmax"}, "attention other than model.attention.mechanism: linear"},
      {{"model.attention.layers=[softmax, linear]"}, "attention other than model.attention.mechanism: linear"},
      {linear({"model.attention.window=8"}), "model.attention.window"},
      {linear({"model.short_convolution=4"}), "model.short_convolution"},
      {linear({"model.architecture=encoder", "objective.name=classification"}), "objective.name: classification"},
      {linear({"data.sampler=documents", "data.padding=longest"}), "data.padding: longest"},
      {linear({"data.sequence_length=47"}), "data.sequence_length: 47 is not a multiple of it"}};
  for (const auto& [overrides, part] : cases) {
    const testing::Finished found = train("run", overrides);
    EXPECT_THAT(found.status, ::testing::AnyOf(1, 2))
        << "status of the first failed rank: its own error, or that of a peer";
    EXPECT_THAT(found.err, HasSubstr("parallel.context_parallel_size: 2")) << part;
    EXPECT_THAT(found.err, HasSubstr(part));
    EXPECT_FALSE(std::filesystem::exists(path("run"))) << part;
  }
}

}  // namespace
}  // namespace furlong::sequence_testing
