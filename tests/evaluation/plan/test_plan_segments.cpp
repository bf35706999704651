// furlong plan with context parallelism: compares estimated memory and communication with those of training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <tuple>

#include "evaluation/plan/plan.h"
#include "framework/core/arena.h"
#include "framework/core/parallel.h"
#include "framework/core/trace.h"
#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"
#include "trainers/model/objective.h"
#include "trainers/train/run/step_forecast.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

using parallel_testing::Curves;
using parallel_testing::Report;
using parallel_testing::run_world;
using ::testing::HasSubstr;
using testing::message_of;
using testing::small_settings;

using Overrides = std::vector<std::string>;

PlanDevice numbers(const std::string& more = "") {
  PlanDevice device;
  set_plan_numbers(device, "flops=1e9,memory=1e12,bandwidth=1e9,link=1e8,network=1e7,utilization=1,reached=1" + more);
  return device;
}

class PlanSegmentsTest : public testing::WithTemporaryFolder {
 protected:
  PlanSegmentsTest() {
    testing::write_store(path("text.h5"), testing::synthetic_text(6000));
    set_thread_count(1);  // like ranks of run_world(): scratch grows with threads
  }
  ~PlanSegmentsTest() override { set_thread_count(0); }
  Settings settings(const Overrides& overrides, int of_a_sequence) const {
    Overrides all{"model.attention.mechanism=linear",
                  "parallel.context_parallel_size=" + std::to_string(of_a_sequence)};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return small_settings(path("text.h5"), all).settings;
  }
  static PlanReport planned(const Settings& settings, const PlanCluster& cluster,
                            const PlanDevice& device = numbers()) {
    return make_plan(settings, Vocabulary::bytes(true), cluster, device);
  }
};

Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Overrides encoder{"model.architecture=encoder", "objective.name=masked_tokens"};
const Overrides packed{"data.packing=documents"};

// --- Memory

TEST_F(PlanSegmentsTest, MemoryMatchesRealSegments) {
  const Overrides wide{"model.d_model=128",        "model.n_heads=4",   "model.n_layers=3",
                       "data.sequence_length=192", "data.batch_size=4", "model.attention.n_features=1024"};
  for (const auto& [processes, of_a_sequence, extra] : std::vector<std::tuple<int, int, Overrides>>{
           {2, 2, {}},
           {4, 2, {"parallel.zero_stage=1", "parallel.gradient_dtype=bfloat16", "trainer.gradient_accumulation=2"}},
           {2, 2, encoder + packed + Overrides{"trainer.activation_checkpointing=blocks", "model.position=sinusoidal"}},
           // The peak is at the gathering of all states.
           {4,
            4,
            {"model.attention.n_features=2048", "data.sequence_length=64", "trainer.activation_checkpointing=blocks"}},
       }) {
    const Settings settings = this->settings(wide + extra, of_a_sequence);
    const Curves found = run_world(processes, [&](ProcessGroup& group, const Report& report) {
      const auto data = open_data(settings.data);
      Arena& memory = arena(Device{});
      const std::int64_t before = memory.counters().bytes_in_use;
      memory.reset_peak();
      Trainer trainer(settings, *data, Device{}, std::nullopt, &group);
      trainer.step();
      trainer.step();
      report.add(static_cast<double>(memory.counters().peak_bytes - before));
    });
    double measured = 0;
    for (const std::vector<double>& rank : found) measured = std::max(measured, rank[0]);
    const PlanReport report = planned(settings, {1, processes});
    // Otherwise the test would not show that states count.
    ASSERT_GT(3 * report.segments.state_bytes, 0.1 * measured) << "layers keep too little of the others";
    // As of whole sequences (test_plan.cpp): oneDNN's scratch, less than 1 MiB, is not estimated.
    const double foretold = report.plans[settings.parallel.zero_stage ? 1 : 0].memory.total();
    for (const double bytes :
         {foretold, static_cast<double>(predicted_peak_bytes(settings, Vocabulary::bytes(true), processes))}) {
      EXPECT_LT(bytes, 1.02 * measured) << ::testing::PrintToString(extra);
      EXPECT_GT(bytes, 0.98 * measured - (1 << 20)) << ::testing::PrintToString(extra);
    }
    RecordProperty(fmt::format("planned_over_measured_{}_{}_{}", processes, of_a_sequence, extra.size()),
                   fmt::format("{:.4f}", foretold / measured));
  }
}

TEST_F(PlanSegmentsTest, OnlyActivationsShrinkWithSegments) {
  const Overrides size{"data.sequence_length=4096", "model.d_model=64", "data.batch_size=1"};
  const Plan whole = planned(settings(size, 1), {1, 1}).plans[0];
  const PlanReport two = planned(settings(size, 2), {1, 2}), four = planned(settings(size, 4), {1, 4});
  EXPECT_NEAR(two.plans[0].memory.activations / whole.memory.activations, 0.5, 0.1);
  EXPECT_NEAR(four.plans[0].memory.activations / whole.memory.activations, 0.25, 0.1);
  EXPECT_EQ(two.plans[0].memory.parameters, whole.memory.parameters);
  EXPECT_EQ(four.segments.state_bytes, two.segments.state_bytes);
  EXPECT_EQ(planned(settings(size + Overrides{"data.sequence_length=8192"}, 2), {1, 2}).segments.state_bytes,
            two.segments.state_bytes);
}

// --- Exchanged states

/// Elements in the shape at the end of an operation's name, such as "all_gather of float32 [2, 30]".
double elements_in(const std::string& name) {
  double elements = 1;
  const char* const end = name.data() + name.size();
  for (const char* at = name.data() + name.find('['); at < end; ++at) {
    int extent = 0;
    const auto [stop, failure] = std::from_chars(at, end, extent);
    if (failure != std::errc()) continue;
    elements *= extent;
    at = stop;
  }
  return elements;
}

/// All-gathers of one step within a group, by the names of the backend: number of states, their bytes, and all bytes.
std::vector<double> gathered_in_a_step(Trainer& trainer) {
  trace::start();
  trainer.step();
  double states = 0, of_states = 0, others = 0;
  for (const trace::Event& event : trace::stop().events) {
    const bool is_of_a_bucket = event.details.bucket >= 0;  // values after the optimizer
    if (std::string_view(event.category) != "operation" || is_of_a_bucket || !event.name.starts_with("all_gather of "))
      continue;
    const bool is_state = event.name.find("float32") != std::string::npos;
    EXPECT_TRUE(is_state || event.name.find("int32") != std::string::npos) << event.name;
    states += is_state;
    (is_state ? of_states : others) += 4 * elements_in(event.name);
  }
  return {states, of_states, of_states + others};
}

TEST_F(PlanSegmentsTest, BytesOfStatesMatchCommunication) {
  for (const auto& [processes, extra] : std::vector<std::pair<int, Overrides>>{
           {2, {}},
           {2, {"model.attention.n_features=48", "model.n_key_value_heads=1", "trainer.gradient_accumulation=3"}},
           {4,
            {"trainer.activation_checkpointing=blocks", "parallel.zero_stage=1",
             "model.attention.feature_map=favor_trig"}},
           {2, packed + Overrides{"model.attention.feature_map=hedgehog"}},
           {2, encoder + packed + Overrides{"trainer.activation_checkpointing=blocks", "model.n_layers=3"}},
           {2, encoder},
       }) {
    const Settings settings = this->settings(Overrides{"data.batch_size=4"} + extra, 2);
    const Curves found = run_world(processes, [&](ProcessGroup& group, const Report& report) {
      const auto data = open_data(settings.data);
      Trainer trainer(settings, *data, Device{}, std::nullopt, &group);
      trainer.step();
      report.add(gathered_in_a_step(trainer));
    });
    const PlanSegments planned = this->planned(settings, {1, processes}).segments;
    const bool packs = settings.data.packing == "documents";
    for (const std::vector<double>& rank : found) {
      EXPECT_EQ(rank[0], static_cast<double>(planned.exchanges)) << ::testing::PrintToString(extra);
      EXPECT_EQ(rank[1], 2 * planned.state_bytes * static_cast<double>(planned.exchanges))
          << ::testing::PrintToString(extra);
      EXPECT_EQ(rank[2], 2 * planned.bytes) << ::testing::PrintToString(extra);
      EXPECT_EQ(rank[2] > rank[1], packs) << "ends of documents";
    }
  }
}

TEST_F(PlanSegmentsTest, SizeOfStatesMatchesFormula) {
  const Settings causal =
      settings({"model.attention.n_features=64", "data.batch_size=6", "trainer.gradient_accumulation=2"}, 2);
  // Of 3 samples and 2 heads of width 8: sums, denominators and maxima; and one number a head.
  const PlanSegments found = planned(causal, {1, 4}).segments;
  EXPECT_EQ(found.state_bytes, 4 * 3 * 2 * (64 * (8 + 2) + 1));
  EXPECT_EQ(found.exchanges, 2 * 2 * 2) << "batches, layers, forward and backward";
  EXPECT_EQ(found.tokens, 16);
  EXPECT_EQ(
      planned(settings(encoder + packed + Overrides{"model.attention.n_features=64", "data.batch_size=6"}, 2), {1, 4})
          .segments.state_bytes,
      2 * found.state_bytes)
      << "of the documents at both ends";
  EXPECT_EQ(planned(settings({"trainer.activation_checkpointing=blocks"}, 2), {1, 2}).segments.exchanges, 2 * 3)
      << "forward's once more";
}

// --- Time

TEST_F(PlanSegmentsTest, StatesAreExposedInForwardAndBackward) {
  const Overrides size{"data.batch_size=3", "trainer.activation_checkpointing=blocks", "data.sequence_length=48"};
  const PlanReport report = planned(settings(size, 4), {1, 12}, numbers(",link_latency=1e-3,overlap=1"));
  const PlanSegments& segments = report.segments;
  // Rings of four: three messages of a state each.
  const double one = 3 * (segments.state_bytes / 1e8 + 1e-3);
  EXPECT_NEAR(segments.forward, 2 * one, 1e-12);
  EXPECT_NEAR(segments.backward, 4 * one, 1e-12);
  const PlanReport quick = planned(settings(size, 4), {1, 12}, numbers(",link_latency=0,link=1e18,overlap=1"));
  for (const Plan& plan : report.plans) {
    EXPECT_DOUBLE_EQ(plan.exchange.states, segments.seconds());
    EXPECT_GE(plan.waited(), segments.seconds()) << "never overlapped";
    EXPECT_NEAR(plan.step,
                plan.forward + plan.backward + plan.optimizer + plan.exchange.busy - plan.exchange.overlapped, 1e-12);
  }
  EXPECT_NEAR(quick.plans[0].waited(), 0, 1e-9);
  EXPECT_EQ(report.samples, 1);
  EXPECT_EQ(report.tokens, 3 * 48);
  EXPECT_DOUBLE_EQ(report.alone, quick.alone);
  EXPECT_THAT(report.assumptions, ::testing::Contains(HasSubstr("context parallelism runs only on CPUs")));
  EXPECT_THAT(report.assumptions, ::testing::Contains(HasSubstr("one ring through all ranks")))
      << "gradients of all rows together";
}

TEST_F(PlanSegmentsTest, SegmentRepeatsFeaturesOfQueries) {
  const Overrides size{"data.sequence_length=512", "data.batch_size=2", "model.attention.n_features=64",
                       "model.d_model=32", "model.n_layers=3"};
  for (const Overrides& extra : {Overrides{}, encoder, Overrides{"trainer.activation_checkpointing=blocks"}}) {
    const auto whole = plan_stages(settings(size + extra, 1), 300, 0, 2),
               part = plan_stages(settings(size + extra, 4), 300, 0, 2);
    ASSERT_EQ(whole.size(), part.size());
    // Of each sample and head: 2 · 128 · 16 · (directions + features); with recomputation in forward's second run, too.
    const double more = 2 * 2 * 2.0 * 128 * 16 * (64 + 64);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const bool is_block = whole[i].name.starts_with("blocks.");
      EXPECT_DOUBLE_EQ(part[i].forward, whole[i].forward / 4);
      EXPECT_DOUBLE_EQ(part[i].backward, whole[i].backward / 4);
      EXPECT_DOUBLE_EQ(part[i].attention_forward, whole[i].attention_forward / 4 + (is_block ? more : 0));
      const double runs = extra == Overrides{"trainer.activation_checkpointing=blocks"} ? 2 : 1;
      EXPECT_DOUBLE_EQ(part[i].attention_backward, whole[i].attention_backward / 4 + (is_block ? runs * more : 0));
    }
  }
  // On all devices: what comes to each is counted for each.
  const PlanReport one = planned(settings(size, 1), {1, 1}), four = planned(settings(size, 4), {1, 4});
  EXPECT_DOUBLE_EQ(four.flops, one.flops + 3 * 4 * 2 * (2 * 2 * 2.0 * 128 * 16 * (64 + 64)))
      << "layers, segments, forward and backward";
}

TEST(PlanRows, GatherOverLinksOrOverTheNetwork) {
  const PlanDevice device = numbers(",link_latency=1e-3,network_latency=1e-2,network=4e6");
  // Inside a host: 3 messages of a quarter.
  EXPECT_NEAR(row_gather_seconds(device, {1, 4}, 4, 4e8), 3.0 + 3e-3, 1e-12);
  EXPECT_NEAR(row_gather_seconds(device, {2, 8}, 4, 4e8), 3.0 + 3e-3, 1e-12) << "no row leaves its host";
  // Two hosts a row: its ring has the network of 4 devices.
  EXPECT_NEAR(row_gather_seconds(device, {4, 4}, 8, 8e6), 7.0 / 16 + 7e-2, 1e-12);
  EXPECT_NEAR(row_gather_seconds(device, {4, 1}, 2, 8e6), 1.0 + 1e-2, 1e-12);
  // Of rows of 4 on two hosts of 6 the middle one leaves its host, alone.
  EXPECT_NEAR(row_gather_seconds(device, {2, 6}, 4, 4e6), 3.0 / 24 + 3e-2, 1e-12);
  // On hosts of 3 every row does: two of them at the hosts in the middle.
  EXPECT_NEAR(row_gather_seconds(device, {4, 3}, 4, 4e6), 3.0 / 6 + 3e-2, 1e-12);
  // Hosts with more network than a link gives.
  EXPECT_NEAR(row_gather_seconds(numbers(",network=1e9,link_latency=0"), {2, 2}, 4, 4e8), 3.0, 1e-12);
}

// --- Errors

TEST_F(PlanSegmentsTest, RejectsSettingsThatTrainingRejects) {
  const auto refused = [&](const Overrides& overrides, const PlanCluster& cluster = {1, 2},
                           const PlanDevice& device = numbers()) {
    return message_of<UserError>([&] { planned(settings(overrides, 2), cluster, device); });
  };
  const std::string key = "parallel.context_parallel_size: 2";
  for (const auto& [overrides, part] : std::vector<std::pair<Overrides, std::string>>{
           {{"model.attention.mechanism=softmax"},
            "cannot be combined with attention other than model.attention.mechanism: linear"},
           {{"model.attention.window=8"}, "cannot be combined with model.attention.window"},
           {{"model.short_convolution=4"}, "cannot be combined with model.short_convolution"},
           {{"model.architecture=encoder", "objective.name=classification"},
            "cannot be combined with objective.name: classification"},
           {{"data.sampler=documents", "data.padding=longest"}, "cannot be combined with data.padding: longest"},
           {{"data.sequence_length=47"}, "data.sequence_length: 47 is not a multiple of it"}})
    EXPECT_THAT(refused(overrides), ::testing::AllOf(HasSubstr(key), HasSubstr(part)));
  const Overrides mixed{"model.attention.layers=[softmax, linear]", "parallel.context_parallel_size=2"};
  EXPECT_THAT(message_of<UserError>([&] {
                planned(small_settings(path("text.h5"), mixed).settings, {1, 2});
              }),
              HasSubstr(key + " cannot be combined with attention other than model.attention.mechanism: linear"));
  EXPECT_EQ(refused({}, {1, 3}),
            key + ": the plan is for 3 devices; expected a multiple of parallel.context_parallel_size");
  EXPECT_EQ(refused({}, {1, 1}), key + ": found one process; start a multiple of that number, or set it to 1");
  EXPECT_EQ(refused({}, {1, 2}, plan_device("h100", DType::float32, false)),
            key + ": supported on CPUs only; set it to 1, or plan for --device cpu");
  EXPECT_THAT(refused({"data.batch_size=1"}, {1, 4}), HasSubstr("raise it to at least 2, or plan for fewer"))
      << "rows share the samples";
}

// --- What would fit

TEST_F(PlanSegmentsTest, SuggestsSegmentsForOneLargeSample) {
  const Overrides size{"data.sequence_length=4096", "data.batch_size=1", "model.d_model=64"};
  const double whole = planned(settings(size, 1), {1, 1}).plans[0].memory.total(),
               half = planned(settings(size, 2), {1, 2}).plans[0].memory.total();
  PlanDevice device = numbers();
  device.memory = (whole + half) / 2;
  EXPECT_THAT(planned(settings(size, 1), {1, 1}, device).plans[0].would_fit,
              ::testing::Contains("2 devices with parallel.context_parallel_size: 2"));
  device.memory = 0.9 * half;
  EXPECT_THAT(planned(settings(size, 2), {1, 2}, device).plans[0].would_fit,
              ::testing::Contains(HasSubstr("devices with parallel.context_parallel_size: ")));
  // Segments are not suggested if training rejects them.
  const auto gpu = [&](const Overrides& more) {
    PlanDevice small = plan_device("h100", DType::float32, false);
    small.reserve = 0;
    small.memory = (whole + half) / 2;
    return planned(settings(size + more, 1), {1, 1}, small).plans[0].would_fit;
  };
  EXPECT_THAT(gpu({}), ::testing::Each(::testing::Not(HasSubstr("context_parallel_size"))));
}

TEST(PlanFitOfSegments, GroupsShareSamples) {
  // In GiB: 1 a sample and 1,024 tokens.
  const auto bytes = [](const PlanChange& change) {
    return 0x1p30 * static_cast<double>(change.samples) * 8 / change.context_parallel_size;
  };
  const PlanChange now{4, true, PlanSharing::zero_1, 8, 2};  // 4 rows, 16 samples
  EXPECT_THAT(what_would_fit(now, 16, 8 * 0x1p30, bytes),
              ::testing::ElementsAre("data.batch_size: 8 (2 per device), with a higher trainer.gradient_accumulation",
                                     "16 devices"));
  EXPECT_THAT(what_would_fit({1, true, PlanSharing::zero_1, 8, 2}, 4, 1.5 * 0x1p30, bytes),
              ::testing::ElementsAre("32 devices with parallel.context_parallel_size: 8"));
}

}  // namespace
}  // namespace furlong
