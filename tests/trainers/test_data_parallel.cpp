// Training in several processes means what it means in one: the same global batch gives the same losses, whoever reads which part of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/autodiff/tape.h"
#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"
#include "trainers/trainer.h"

namespace furlong {
namespace {

using parallel_testing::Curves;
using parallel_testing::Report;
using parallel_testing::run_world;
using parallel_testing::run_worlds;
using parallel_testing::World;
using ::testing::HasSubstr;
using testing::small_settings;

class DataParallelTest : public testing::WithTemporaryFolder {
 protected:
  DataParallelTest() {
    testing::write_store(path("text.h5"), testing::synthetic_text(3000));
    write("documents.h5", 1, 120);
    write("pairs.h5", 2, 120);
  }

  /// Labelled documents of 3 to 99 letters, or pairs of them.
  void write(const std::string& name, std::uint64_t documents_per_label, int labels) const {
    StoreWriterOptions options;
    options.split_by = StoreWriterOptions::SplitBy::document;
    options.shares = {{0.7, 0.2, 0.1}};
    options.documents_per_label = documents_per_label;
    StoreWriter writer(path(name), Vocabulary::bytes(true), options);
    const RandomKey key{7, 0, random_stream(name)};
    std::uint64_t document = 0;
    for (int label = 0; label < labels; ++label) {
      for (std::uint64_t i = 0; i < documents_per_label; ++i, ++document) {
        std::vector<std::uint16_t> letters;
        for (std::uint64_t j = 0; j < 3 + random_word(key, document * 200 + 199) % 97; ++j)
          letters.push_back(static_cast<std::uint16_t>('a' + random_word(key, document * 200 + j) % 8));
        writer.append(letters);
        writer.end_document();
      }
      writer.label(label % 2);
    }
    writer.finish("{}", {"no", "yes"});
  }

  Settings settings(const std::string& store, const std::vector<std::string>& overrides) const {
    std::vector<std::string> all{"data.batch_size=5", "data.sequence_length=16", "trainer.max_steps=60", "schedule.warmup_steps=5"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return small_settings(path(store), all).settings;
  }

  std::string store_path(const std::string& name) const { return path(name); }
};

/// What a training finds: of each step loss, gradient norm, tokens and targets; every tenth step a validation's loss, targets and accuracy.
void train_some(Trainer& trainer, int steps, const Report& report) {
  for (int i = 1; i <= steps; ++i) {
    const StepReport found = trainer.step();
    report.add({found.loss, found.gradient_norm, static_cast<double>(found.tokens), static_cast<double>(found.targets)});
    if (i % 10 != 0) continue;
    const Evaluation validation = trainer.validate();
    report.add({validation.loss, static_cast<double>(validation.targets), validation.accuracy});
  }
}

std::vector<double> values_of(const Tensor& tensor) {
  if (tensor.dtype() == DType::float64) return tensor.to_vector<double>();
  const auto narrow = tensor.to_vector<float>();
  return {narrow.begin(), narrow.end()};
}

/// The same, and then all parameters.
World::Body training(const Settings& settings, DType compute, int steps) {
  return [=](ProcessGroup& group, const Report& report) {
    const auto data = open_data(settings.data);
    Trainer trainer(settings, *data, Device{}, compute, &group);
    train_some(trainer, steps, report);
    report.add(values_of(trainer.model().store->values()));
  };
}

std::size_t numbers_of(int steps) { return static_cast<std::size_t>(4 * steps + 3 * (steps / 10)); }

/// The largest relative difference of two curves.
double difference(const std::vector<double>& found, const std::vector<double>& expected, std::size_t count) {
  if (found.size() < count || expected.size() < count) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double apart = std::abs(found[i] - expected[i]) / std::max(std::abs(expected[i]), 1e-3);
    largest = std::max(largest, std::isfinite(apart) ? apart : std::numeric_limits<double>::infinity());
  }
  return largest;
}

// --- One loss curve for all sizes

struct Case {
  const char* name;
  const char* store;
  std::vector<std::string> overrides;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Invariance : public DataParallelTest, public ::testing::WithParamInterface<Case> {};

// In float64 sums in another order differ by 1e-16 of their terms, which fifty steps of Adam make about 1e-12; in float32 by 6e-8.
TEST_P(Invariance, TheSameLossesOnAnyNumberOfProcesses) {
  const Settings given = settings(GetParam().store, GetParam().overrides);
  for (const auto& [compute, steps, tolerance] : {std::tuple{DType::float64, 50, 1e-9}, std::tuple{DType::float32, 10, 1e-5}}) {
    std::vector<double> alone;
    for (const Curves& found : run_worlds({1, 2, 3, 4}, training(given, compute, steps))) {
      const std::size_t size = found.size();
      if (size == 1) alone = found[0];
      const double apart = difference(found[0], alone, numbers_of(steps));
      EXPECT_LT(apart, tolerance) << size << " processes, " << name_of(compute);
      RecordProperty(fmt::format("{}_{}", name_of(compute), size), fmt::format("{:.2e}", apart));
      for (const std::vector<double>& rank : found) EXPECT_EQ(rank, found[0]) << "losses and parameters are those of rank 0, bit for bit";
    }
    EXPECT_NE(alone[4], alone[0]) << "nothing happens in these steps";
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
             {"model.attention.mechanism=linear", "model.attention.redraw_every=7", "model.dropout=0.1", "model.short_convolution=4",
              "trainer.gradient_accumulation=3"}},
        Case{"sequential_shared_averaged_recomputed",
             "text.h5",
             {"data.sampler=sequential", "optimizer.ema_decay=0.9", "model.shared_layers=true", "trainer.recompute=blocks",
              "model.attention.mechanism=linear", "model.dropout=0.1"}},
        Case{"packed", "documents.h5", {"data.packing=documents", "model.attention.mechanism=linear", "data.sequence_length=48"}},
        Case{"stream", "documents.h5", {"data.sampler=stream", "data.batch_size=12", "model.attention.mechanism=linear"}},
        Case{"documents", "documents.h5", {"data.sampler=documents", "data.sequence_length=100"}},
        Case{"documents_dropout", "documents.h5", {"data.sampler=documents", "data.sequence_length=100", "model.dropout=0.1"}},
        Case{"copy_task", "text.h5", {"data.store=null", "data.task=copy", "data.task_symbols=8", "data.task_shortest=2"}},
        Case{"masked_packed", "documents.h5",
             encoder_with({"objective.name=masked_tokens", "data.packing=documents", "data.sequence_length=48", "model.dropout=0.1"})},
        Case{"masked_documents", "documents.h5",
             encoder_with({"objective.name=masked_tokens", "data.sampler=documents", "data.padding=sequence_length",
                           "data.sequence_length=24", "trainer.gradient_accumulation=3", "model.attention.mechanism=linear"})},
        Case{"classification", "documents.h5",
             encoder_with({"objective.name=classification", "objective.pooling=class_token", "data.sequence_length=100"})},
        Case{"matching", "pairs.h5",
             encoder_with({"objective.name=matching", "data.sequence_length=16", "model.dropout=0.1", "data.batch_size=7",
                           "trainer.gradient_accumulation=3"})}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace furlong
