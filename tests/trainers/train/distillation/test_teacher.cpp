// Training with a teacher: initial weights, attention transfer, distillation, and what each leaves unchanged.
#include "trainers/train/distillation/teacher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "framework/core/log.h"
#include "tests/trainers/train/distillation/teacher_testing.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/optimizer/learning_rate.h"
#include "trainers/train/run/step_forecast.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

using namespace teacher_testing;
using ::testing::HasSubstr;
using testing::message_of;

std::vector<float> values(Trainer& trainer, const std::string& name) {
  return trainer.model().store->find(name).master().to_vector<float>();
}

// --- Weights

TEST_F(TeacherTest, RunStartsFromWeights) {
  Trainer one = trainer(linear);
  const WeightsReport report = one.start_from(CheckpointReader::open(path("teacher.h5")));
  EXPECT_THAT(report.missing, ::testing::ElementsAre("blocks.0.attention.directions", "blocks.1.attention.directions"));
  EXPECT_TRUE(report.unused.empty());
  EXPECT_EQ(report.positions_before, 0);
  Trainer teacher = trainer(wide);
  teacher.load(CheckpointReader::open(path("teacher.h5")));
  for (const Parameter& parameter : teacher.model().store->parameters())
    EXPECT_EQ(values(one, parameter.name()), values(teacher, parameter.name())) << parameter.name();
  EXPECT_EQ(one.steps(), 0);
}

TEST_F(TeacherTest, RejectsWeightsOfOtherAttention) {
  Trainer other = trainer(linear);
  other.step();
  other.save(path("linear.h5"));
  const auto refusal = [&](const Overrides& overrides) {
    return message_of<UserError>([&] { trainer(overrides).start_from(CheckpointReader::open(path("linear.h5"))); });
  };
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("linear.h5 has 2 tensors that this model lacks, or has in another shape: "),
                                 HasSubstr("blocks.0.attention.directions, blocks.1.attention.directions"),
                                 HasSubstr("model.attention.mechanism is linear there and softmax here"),
                                 HasSubstr("furlong convert")));
  EXPECT_THAT(refusal(linear + Overrides{"model.attention.n_features=4"}),
              HasSubstr("model.attention.n_features is 16 there and 4 here"));
}

// What is ignored or added belongs to output layers, attention or adapters.
TEST_F(TeacherTest, WeightsFitModelsThatAddAttentionAdaptersAndOutput) {
  Trainer changed = trainer(linear + Overrides{"model.lora_rank=2", "model.dropout=0.1", "model.output_bias=true",
                                               "model.tied_embeddings=false"});
  EXPECT_TRUE(changed.start_from(CheckpointReader::open(path("teacher.h5"))).unused.empty());
  changed.save(path("changed.h5"));
  Trainer output = trainer(linear + Overrides{"model.lora_rank=2"});
  EXPECT_THAT(output.start_from(CheckpointReader::open(path("changed.h5"))).unused,
              ::testing::UnorderedElementsAre("classifier.weight", "output_bias"));
  EXPECT_THAT(message_of<UserError>([&] { trainer(linear).start_from(CheckpointReader::open(path("changed.h5"))); }),
              HasSubstr("model.lora_rank is 2 there and 0 here"));
}

TEST_F(TeacherTest, KeepsProjectionsOfLoadedWeights) {
  Trainer before = trainer(linear + Overrides{"seed=7"});
  before.step();
  before.save(path("linear.h5"));
  Trainer after = trainer(linear + Overrides{"seed=8"});
  after.start_from(CheckpointReader::open(path("linear.h5")));
  after.step();
  EXPECT_EQ(values(after, "blocks.1.attention.directions"), values(before, "blocks.1.attention.directions"));
}

// As the config says, not as the weights were trained with.
TEST_F(TeacherTest, DrawsProjectionsOfAnotherKindOrSizeAgain) {
  Trainer before = trainer(linear);
  before.step();
  before.save(path("linear.h5"));
  const CheckpointReader weights = CheckpointReader::open(path("linear.h5"));
  EXPECT_NO_THROW(trainer(linear + Overrides{"model.attention.random_projection=iid"}).start_from(weights));
  for (const char* other : {"model.attention.random_projection=iid", "model.attention.n_features=24"}) {
    Trainer after = trainer(linear + Overrides{other});
    const std::vector<float> drawn = values(after, "blocks.1.attention.directions");
    const LogCapture captured;
    initialize_from(weights, after.model());
    EXPECT_THAT(captured.text(), HasSubstr("its random projections have another distribution or size")) << other;
    EXPECT_EQ(values(after, "blocks.1.attention.directions"), drawn) << other;
    EXPECT_NE(drawn, values(before, "blocks.1.attention.directions")) << other;
    EXPECT_EQ(values(after, "blocks.1.feedforward.output.weight"),
              values(before, "blocks.1.feedforward.output.weight"));
  }
}

TEST_F(TeacherTest, RejectsMismatchedWeights) {
  const auto refusal = [&](const Overrides& overrides) {
    return message_of<UserError>([&] { trainer(overrides).start_from(CheckpointReader::open(path("teacher.h5"))); });
  };
  EXPECT_THAT(refusal({"model.d_model=32", "model.n_layers=3"}),
              AllOf(HasSubstr("model.weights: "), HasSubstr("teacher.h5 has another model: "),
                    HasSubstr("model.n_layers is 2 there and 3 here, model.d_model is 16 there and 32 here"),
                    HasSubstr("stages: [task]")));
  // These change what the same tensors compute, or leave some out.
  EXPECT_THAT(refusal({"model.norm_placement=post"}), HasSubstr("model.norm_placement is pre there and post here"));
  EXPECT_THAT(refusal({"model.position=learned"}), HasSubstr("model.position is rotary there and learned here"));
  EXPECT_THAT(refusal({"model.rotary_base=500"}), HasSubstr("model.rotary_base is 10000 there and 500 here"));
  DatasetWriter writer(path("dna.h5"), Vocabulary::dna(), {});
  const std::vector<std::int32_t> ids(400, 1);
  writer.append(std::vector<std::int32_t>(400, 1));
  writer.end_document();
  writer.finish("{}");
  const TokenizedDataset dna = TokenizedDataset::open(path("dna.h5"));
  Trainer genome(small_settings(path("dna.h5")).settings, dna, Device{});
  EXPECT_THAT(message_of<UserError>([&] { genome.start_from(CheckpointReader::open(path("teacher.h5"))); }),
              AllOf(HasSubstr("dna"), HasSubstr("bytes"), HasSubstr("vocabulary")));
}

TEST_F(TeacherTest, RepeatsLearnedPositions) {
  const Overrides learned{"model.position=learned"};
  Trainer shorter = trainer(learned);
  shorter.save(path("positions.h5"));
  Trainer longer = trainer(learned + Overrides{"model.max_sequence_length=75"});
  EXPECT_EQ(longer.start_from(CheckpointReader::open(path("positions.h5"))).positions_before, 32);
  const std::vector<float> few = values(shorter, "position_embedding.weight"),
                           many = values(longer, "position_embedding.weight");
  ASSERT_EQ(many.size(), 75u * 16u);
  for (std::size_t i = 0; i < many.size(); ++i) ASSERT_EQ(many[i], few[i % few.size()]) << i;
  longer.save(path("longer.h5"));
  EXPECT_THAT(message_of<UserError>([&] { shorter.start_from(CheckpointReader::open(path("longer.h5"))); }),
              HasSubstr("model.max_sequence_length is 75 there and 32 here"));
}

// --- Transfer

/// Relative error of the student's attentions on the teacher's hidden states, in float64, for the first training batch.
double naive_error(Trainer& student, Trainer& teacher) {
  const auto batch = student.source().batch(0, 2);
  const Tensor tokens = Tensor::from(batch.inputs, {batch.batch, batch.n});
  std::vector<std::vector<float>> inputs, outputs;
  Tape tape{Stream{}};
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  context.observe_attention = [&](const layers::ObservedAttention& seen) {
    inputs.push_back(seen.input.value().to_vector<float>());
    outputs.push_back(seen.projected.value().to_vector<float>());
  };
  teacher.model().decoder->hidden(context, tokens);
  context.observe_attention = nullptr;
  double mean = 0;
  for (std::size_t layer = 0; layer < inputs.size(); ++layer) {
    const Variable input(Tensor::from(inputs[layer], {batch.batch, batch.n, 16}));
    const auto found = student.model().decoder->attention_output(context, layer, input).value().to_vector<float>();
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      difference += std::pow(static_cast<double>(found[i]) - outputs[layer][i], 2);
      size += std::pow(static_cast<double>(outputs[layer][i]), 2);
    }
    mean += difference / size / static_cast<double>(inputs.size());
  }
  return mean;
}

TEST_F(TeacherTest, AttentionTransferLossIsMeanRelativeError) {
  Trainer teacher = trainer(wide);
  teacher.load(CheckpointReader::open(path("teacher.h5")));
  Trainer one = student(transfer());
  const double expected = naive_error(one, teacher);
  EXPECT_GT(expected, 0.001);
  // float32 outputs: sums of 1,024 squares in another order.
  EXPECT_NEAR(one.step().loss, expected, 1e-5 * expected);
}

// Longer segments have the same tokens, and padding behind them.
TEST_F(TeacherTest, AttentionTransferLeavesOutPaddingOfSegments) {
  std::vector<std::string> documents;
  for (std::size_t i = 0; i < 60; ++i) documents.push_back(testing::synthetic_text(4 + i % 4, i));
  const std::string store = testing::write_texts(path("documents.h5"), documents, "0.8,0.2");
  const TokenizedDataset data = TokenizedDataset::open(store);
  const auto losses = [&](int length) {
    Trainer one(small_settings(store, transfer({"data.sampler=stream", "data.batch_size=4", "teacher.input=student",
                                                fmt::format("data.sequence_length={}", length)}))
                    .settings,
                data, Device{});
    one.start_from(CheckpointReader::open(path("teacher.h5")));
    return std::pair{one.step().loss, one.validate().loss};
  };
  const auto [loss, validated] = losses(8);
  const auto [padded_loss, padded_validated] = losses(32);
  EXPECT_NEAR(padded_loss, loss, 1e-5 * loss);
  EXPECT_NEAR(padded_validated, validated, 1e-3 * validated) << "after a step";
}

// A longer window has the same tokens, and padding behind them.
TEST_F(TeacherTest, AttentionTransferLeavesOutPaddingOfTheLastWindow) {
  const std::string store = testing::write_texts(path("short.h5"), {testing::synthetic_text(36, 1)}, "0.8,0.2");
  const TokenizedDataset data = TokenizedDataset::open(store);
  const auto n = static_cast<std::int64_t>(data.size(Split::train));
  ASSERT_LT(n, 32);
  const auto loss = [&](std::int64_t length) {
    Trainer one(small_settings(store, transfer({"data.sampler=sequential", "data.batch_size=1", "teacher.input=student",
                                                fmt::format("data.sequence_length={}", length)}))
                    .settings,
                data, Device{});
    one.start_from(CheckpointReader::open(path("teacher.h5")));
    return one.step().loss;
  };
  EXPECT_NEAR(loss(32), loss(n), 1e-5 * loss(n));
}

TEST_F(TeacherTest, AttentionTransferReducesErrorAndTrainsAttentionOnly) {
  for (const char* input : {"teacher", "student"}) {
    for (const char* turns : {"joint", "layer_wise"}) {
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, std::string(input) + " " + turns);
      Trainer one = student(transfer({std::string("teacher.input=") + input, std::string("teacher.layers=") + turns,
                                      "trainer.max_steps=60", "optimizer.learning_rate=0.003"}));
      std::map<std::string, std::vector<float>> before;
      for (const Parameter& parameter : one.model().store->parameters())
        before[parameter.name()] = values(one, parameter.name());
      const Evaluation untrained = one.validate();
      while (one.steps() < 60) one.step();
      const Evaluation trained = one.validate();
      EXPECT_LT(trained.loss, 0.7 * untrained.loss);
      ASSERT_EQ(trained.layer_errors.size(), 2u);
      for (std::size_t layer = 0; layer < 2; ++layer)
        EXPECT_LT(trained.layer_errors[layer].second, untrained.layer_errors[layer].second);
      EXPECT_NEAR(trained.loss, (trained.layer_errors[0].second + trained.layer_errors[1].second) / 2, 1e-12);
      for (const auto& [name, values_before] : before) {
        const bool attention = name.find(".attention.") != std::string::npos && !name.ends_with(".directions");
        EXPECT_EQ(values(one, name) != values_before, attention) << name;
        EXPECT_EQ(one.model().store->is_trained(one.model().store->find(name)), attention) << name;
      }
    }
  }
}

TEST_F(TeacherTest, AttentionTransferKeepsSoftmaxLayers) {
  const Overrides hybrid{"model.attention.layers=[softmax,linear]", "teacher.loss=attention_transfer",
                         "teacher.checkpoint=" + path("teacher.h5")};
  Trainer one = student(hybrid);
  const std::vector<float> before = values(one, "blocks.0.attention.query_key_value.weight");
  for (int step = 0; step < 3; ++step) one.step();
  EXPECT_EQ(values(one, "blocks.0.attention.query_key_value.weight"), before);
  EXPECT_EQ(one.validate().layer_errors.size(), 1u);
  EXPECT_THAT(message_of<UserError>([&] {
                trainer({"teacher.loss=attention_transfer", "teacher.checkpoint=" + path("teacher.h5")});
              }),
              HasSubstr("transfer has no layer to train"));
}

TEST_F(TeacherTest, LayerWiseTrainsOneLayerAtATime) {
  const std::string first = "blocks.0.attention.query_key_value.weight",
                    second = "blocks.1.attention.query_key_value.weight";
  Trainer one = student(transfer({"teacher.layers=layer_wise", "trainer.max_steps=10", "optimizer.weight_decay=0.1"}));
  const std::vector<float> untouched = values(one, second);
  std::vector<double> rates;
  while (rates.size() < 5) rates.push_back(one.step().learning_rate);
  EXPECT_EQ(values(one, second), untouched) << "without weight decay";
  EXPECT_EQ(rates.back(), learning_rate(one.model().settings, 9)) << "the whole schedule";
  const std::vector<float> done = values(one, first);
  for (const double rate : rates) EXPECT_EQ(one.step().learning_rate, rate);
  EXPECT_EQ(values(one, first), done);
  EXPECT_NE(values(one, second), untouched);
}

// Norms of the layer before, which has converged, do not make outliers of the next layer's.
TEST_F(TeacherTest, LayerWiseStepsAreNoOutliersOfAnotherLayer) {
  Trainer one = student(transfer({"teacher.layers=layer_wise", "trainer.max_steps=80", "optimizer.learning_rate=0.003",
                                  "trainer.skip_outlier_factor=1.01"}));
  int skipped = 0;
  for (int step = 0; step < 80; ++step) {
    const bool was_skipped = one.step().skipped;
    if (step < 40) skipped += was_skipped;
    EXPECT_FALSE(was_skipped && step >= 40 && step < 56) << "too few norms of this layer, step " << step;
  }
  EXPECT_GT(skipped, 0) << "the filter works";
}

TEST_F(TeacherTest, LayerWiseMomentsCountOwnSteps) {
  Trainer one = student(transfer({"teacher.layers=layer_wise", "trainer.max_steps=8", "model.attention.centering=true",
                                  "model.attention.scaling=saderf"}));
  const auto buffers = [&](int layer) {
    std::vector<std::vector<float>> found;
    for (const char* name : {"statistics", "query_center", "key_center", "scaling"})
      found.push_back(values(one, fmt::format("blocks.{}.attention.{}", layer, name)));
    return found;
  };
  // As measured before the run (furlong convert --data).
  const Tensor measured = one.model().store->find("blocks.1.attention.statistics").master();
  measured.copy_from(
      Tensor::from(std::vector<float>(static_cast<std::size_t>(measured.elements()), 3.0F), measured.shape()));
  const auto before = buffers(1);
  for (int step = 0; step < 4; ++step) one.step();
  EXPECT_EQ(buffers(1), before);
  one.step();  // which begins with what the last step of the first layer has seen
  const auto done = buffers(0);
  EXPECT_NE(done[1], std::vector<float>(done[1].size()));
  for (int step = 0; step < 3; ++step) one.step();
  EXPECT_EQ(buffers(0), done);
  EXPECT_NE(buffers(1)[0], before[0]);
  EXPECT_NE(buffers(1)[1], before[1]);
}

// A sentence-embedding model: only its attentions can be trained and measured.
TEST_F(TeacherTest, ModelWithoutOutputLayerAllowsAttentionTransferOnly) {
  const Overrides headless{"model.architecture=encoder", "objective.name=masked_tokens", "model.prediction_head=none"};
  Trainer teacher = trainer(headless + wide);
  teacher.save(path("headless.h5"));
  for (const Parameter& parameter : teacher.model().store->parameters()) {
    EXPECT_FALSE(parameter.name().starts_with("classifier") || parameter.name().starts_with("prediction"))
        << parameter.name();
  }
  EXPECT_THAT(message_of<UserError>([&] { teacher.step(); }),
              AllOf(HasSubstr("objective.name: masked_tokens"),
                    HasSubstr("no output layer over tokens (model.prediction_head: none)")));
  EXPECT_THAT(message_of<UserError>([&] { teacher.validate(); }), HasSubstr("no output layer over tokens"));
  const auto check = [&](const Overrides& overrides) {
    check_against_data(small_settings(path("tokens.h5"), overrides), data);
  };
  EXPECT_THAT(message_of<UserError>([&] { check(headless); }),
              AllOf(HasSubstr("--set model.prediction_head"), HasSubstr("no output layer over tokens")));

  const Overrides of_headless{"teacher.checkpoint=" + path("headless.h5"), "optimizer.learning_rate=0.003",
                              "trainer.max_steps=20"};
  const Overrides transfer = headless + linear + of_headless + Overrides{"teacher.loss=attention_transfer"};
  check(transfer);
  Trainer one = trainer(transfer);
  one.start_from(CheckpointReader::open(path("headless.h5")));
  const double before = one.validate().loss;
  while (one.steps() < 20) one.step();
  EXPECT_LT(one.validate().loss, before);
  const Overrides distillation = linear + of_headless + Overrides{"teacher.loss=distillation"};
  EXPECT_THAT(message_of<UserError>([&] { trainer(headless + distillation); }),
              HasSubstr("predictions of tokens need an output layer"));
  EXPECT_THAT(message_of<UserError>([&] {
                trainer(Overrides{"model.architecture=encoder", "objective.name=masked_tokens"} + distillation);
              }),
              AllOf(HasSubstr("teacher.checkpoint"), HasSubstr("headless.h5"), HasSubstr("output layer")));
}

TEST_F(TeacherTest, AttentionTransferMemoryIsLinearInLength) {
  const auto peak = [&](std::int64_t n, const char* layers) {
    const Overrides size{"data.sequence_length=" + std::to_string(n), std::string("model.n_layers=") + layers};
    if (std::string(layers) != "2") {
      Trainer deep = trainer(Overrides{std::string("model.n_layers=") + layers});
      deep.save(path("deep.h5"));
    }
    const std::string teacher = std::string(layers) == "2" ? "teacher.h5" : "deep.h5";
    return predicted_peak_bytes(settings(transfer(size + Overrides{"teacher.checkpoint=" + path(teacher)})),
                                data.vocabulary());
  };
  const std::int64_t one = peak(4096, "2"), two = peak(8192, "2"), four = peak(16384, "2");
  EXPECT_NEAR(static_cast<double>(four - two), 2.0 * static_cast<double>(two - one), 0.02 * static_cast<double>(two));
  // The memory of one layer: six more layers add only their weights, 64 KiB, for 16,384 tokens of width 16.
  EXPECT_LT(peak(16384, "8") - four, four / 20);
}

// --- Distillation

/// Mean over all positions of T² KL(teacher ‖ student) and of the cross-entropy, for the first training batch.
std::pair<double, double> naive_divergence(Trainer& student, Trainer& teacher, double temperature) {
  const auto batch = student.source().batch(0, 2);
  const Tensor tokens = Tensor::from(batch.inputs, {batch.batch, batch.n});
  const auto logits = [&](Trainer& one) {
    Tape tape{Stream{}};
    const Tape::NoGradient guard(tape);
    layers::ForwardContext context{tape};
    const Tensor hidden = one.model().decoder->hidden(context, tokens).value();
    return one.model()
        .decoder->logits(Stream{}, hidden.reshape({batch.batch * batch.n, hidden.extent(2)}))
        .to_vector<float>();
  };
  const std::vector<float> theirs = logits(teacher), ours = logits(student);
  const std::size_t rows = batch.inputs.size(), vocabulary = theirs.size() / rows;
  const auto log_softmax = [&](const std::vector<float>& all, std::size_t row, double t) {
    std::vector<double> result(vocabulary);
    double sum = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(all[row * vocabulary + i] / t);
    for (std::size_t i = 0; i < vocabulary; ++i) result[i] = all[row * vocabulary + i] / t - std::log(sum);
    return result;
  };
  double divergence = 0, loss = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto p = log_softmax(theirs, row, temperature), q = log_softmax(ours, row, temperature);
    for (std::size_t i = 0; i < vocabulary; ++i)
      divergence += temperature * temperature * std::exp(p[i]) * (p[i] - q[i]);
    loss -= log_softmax(ours, row, 1)[static_cast<std::size_t>(batch.targets[row])];
  }
  return {divergence / static_cast<double>(rows), loss / static_cast<double>(rows)};
}

TEST_F(TeacherTest, DistillationLossIsDivergencePlusTaskLoss) {
  Trainer teacher = trainer(wide);
  teacher.load(CheckpointReader::open(path("teacher.h5")));
  for (const auto& [share, temperature] : {std::pair(1.0, 1.0), std::pair(0.25, 1.0), std::pair(0.5, 3.0)}) {
    Trainer one = student(distillation(
        {fmt::format("teacher.distillation_weight={}", share), fmt::format("teacher.temperature={}", temperature)}));
    const auto [divergence, loss] = naive_divergence(one, teacher, temperature);
    const double expected = share * divergence + (1 - share) * loss;
    // The divergence, about 1e-3, is a difference of float32 terms of size 1 or more.
    EXPECT_NEAR(one.step().loss, expected, 1e-5 * expected + 0x1p-25) << share << " " << temperature;
  }
}

// The halves have different numbers of targets: the mean is over all compared positions.
TEST_F(TeacherTest, AccumulatedDistillationEqualsOneLargeBatch) {
  for (const char* positions : {"targets", "all"}) {
    const Overrides common = distillation({std::string("teacher.positions=") + positions, "data.ignore_tokens=[e, a]",
                                           "teacher.distillation_weight=0.5", "teacher.temperature=2"});
    Trainer twice = student(common + Overrides{"trainer.gradient_accumulation=2", "data.batch_size=2"}),
            large = student(common + Overrides{"data.batch_size=4"});
    const Batch all = large.source().batch(0, 4);
    EXPECT_NE(large.source().batch(0, 2).n_targets * 2, all.n_targets) << "equal halves test nothing";
    const StepReport found = twice.step(), expected = large.step();
    EXPECT_EQ(found.targets, expected.targets);
    EXPECT_NEAR(found.loss / expected.loss, 1, 1e-6) << positions;
    EXPECT_NEAR(found.gradient_norm / expected.gradient_norm, 1, 1e-5) << positions;
    const auto of_twice = values(twice, "blocks.1.feedforward.output.weight"),
               of_large = values(large, "blocks.1.feedforward.output.weight");
    for (std::size_t i = 0; i < of_twice.size(); ++i) EXPECT_NEAR(of_twice[i], of_large[i], 1e-6) << positions;
  }
}

TEST_F(TeacherTest, IdenticalStudentHasZeroDivergence) {
  Trainer one = student({"teacher.loss=distillation", "teacher.checkpoint=" + path("teacher.h5")});
  const StepReport report = one.step();
  EXPECT_NEAR(report.loss, 0, 1e-6);           // of logits that are the same bit for bit
  EXPECT_NEAR(report.gradient_norm, 0, 1e-6);  // likewise
}

TEST_F(TeacherTest, DistillationReducesDivergence) {
  for (const char* positions : {"targets", "all"}) {
    Trainer one = student(distillation(
        {std::string("teacher.positions=") + positions, "trainer.max_steps=60", "optimizer.learning_rate=0.003"}));
    const Evaluation before = one.validate();
    while (one.steps() < 60) one.step();
    const Evaluation after = one.validate();
    EXPECT_LT(after.divergence, 0.7 * before.divergence);
    // Loss and accuracy are the objective's, as without a teacher.
    Trainer plain = trainer(linear);
    for (const Parameter& parameter : one.model().store->parameters())
      plain.model().store->find(parameter.name()).master().copy_from(parameter.master());
    const Evaluation same = plain.validate();
    EXPECT_DOUBLE_EQ(after.loss, same.loss);
    EXPECT_EQ(after.accuracy, same.accuracy);
  }
}

TEST_F(TeacherTest, DistillsIntoAdapters) {
  Trainer one = student(distillation({"model.lora_rank=4", "trainer.max_steps=30"}));
  const Evaluation before = one.validate();
  const std::vector<float> base = values(one, "blocks.1.attention.query_key_value.weight");
  while (one.steps() < 30) one.step();
  EXPECT_EQ(values(one, "blocks.1.attention.query_key_value.weight"), base);
  EXPECT_LT(one.validate().divergence, before.divergence);
}

TEST_F(TeacherTest, DistillsEncoders) {
  const Overrides encoder{"model.architecture=encoder", "objective.name=masked_tokens", "data.sampler=sequential"};
  Trainer teacher = trainer(encoder + wide);
  while (teacher.steps() < 24) teacher.step();
  teacher.save(path("encoder.h5"));
  for (const char* loss : {"attention_transfer", "distillation"}) {
    Overrides overrides = encoder + linear +
                          Overrides{std::string("teacher.loss=") + loss, "teacher.checkpoint=" + path("encoder.h5"),
                                    "optimizer.learning_rate=0.003", "trainer.max_steps=60"};
    if (std::string(loss) == "distillation") overrides.push_back("teacher.positions=all");
    Trainer one = trainer(overrides);
    one.start_from(CheckpointReader::open(path("encoder.h5")));
    const Evaluation before = one.validate();
    while (one.steps() < 60) one.step();
    const Evaluation after = one.validate();
    EXPECT_LT(std::string(loss) == "attention_transfer" ? after.loss : after.divergence,
              std::string(loss) == "attention_transfer" ? before.loss : before.divergence);
  }
}

TEST_F(TeacherTest, RejectsMismatchedTeacher) {
  EXPECT_THAT(message_of<UserError>([&] { trainer(transfer({"model.n_layers=3"})); }),
              AllOf(HasSubstr("teacher.h5"), HasSubstr("model.n_layers is 2 in the teacher and 3 in the student")));
  EXPECT_THAT(message_of<UserError>([&] { trainer(transfer({"model.d_model=32"})); }),
              HasSubstr("model.d_model is 16 in the teacher and 32 in the student"));
  EXPECT_THAT(message_of<UserError>([&] { trainer(distillation({"model.vocabulary_size=300"})); }),
              HasSubstr("model.vocabulary_size is 256 in the teacher and 300 in the student"));
  EXPECT_THAT(message_of<UserError>([&] {
                trainer(transfer({"teacher.layers=layer_wise", "trainer.max_steps=1", "schedule.warmup_steps=0"}));
              }),
              HasSubstr("at least one step for each of "));
  EXPECT_THAT(message_of<UserError>([&] { settings(transfer({"teacher.temperature=2"})); }),
              HasSubstr("teacher.temperature has no effect"));
  EXPECT_THAT(message_of<UserError>([&] { settings(linear + Overrides{"teacher.loss=attention_transfer"}); }),
              HasSubstr("teacher.checkpoint is missing"));
}

}  // namespace
}  // namespace furlong
