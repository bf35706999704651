// The parts of furlong plan that are arithmetic: devices, rings, overlap, operations, and what would fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "evaluation/plan/plan.h"
#include "layers/attention/mechanism.h"
#include "tests/trainers/training.h"
#include "trainers/model/model.h"

namespace furlong {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

// --- Devices

TEST(PlanCluster, ParsesHostsTimesDevices) {
  EXPECT_EQ(plan_cluster("8").devices(), 8);
  EXPECT_EQ(plan_cluster("8").hosts, 1);
  EXPECT_EQ(plan_cluster("4x8").hosts, 4);
  EXPECT_EQ(plan_cluster("4x8").per_host, 8);
  for (const char* wrong : {"", "0", "-1", "x", "8x", "x8", "0x8", "2x2x2", "8.5", "8 ", "2000000", "1048576x2"})
    EXPECT_THAT(message_of<UserError>([&] { plan_cluster(wrong); }), HasSubstr("for example 8 or 4x8")) << wrong;
}

TEST(PlanDevices, HaveNumbersAndSource) {
  for (const std::string& name : plan_device_names()) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const PlanDevice device = plan_device(name, dtype, false);
      check_plan_device(device, {2, 8});
      EXPECT_THAT(device.source, HasSubstr("data sheet")) << name;
      for (const auto& [key, number] : plan_numbers(device)) EXPECT_GT(number, 0) << name << " " << key;
      // An efficiency that was not measured on this hardware is marked as assumed.
      EXPECT_THAT(device.assumed, ::testing::IsSupersetOf({"utilization", "reached", "overlap"})) << name;
    }
    const PlanDevice narrow = plan_device(name, DType::bfloat16, false), tf32 = plan_device(name, DType::float32, true),
                     wide = plan_device(name, DType::float32, false);
    EXPECT_GT(narrow.flops, tf32.flops) << name;
    EXPECT_GT(tf32.flops, wide.flops) << name;
    EXPECT_EQ(tf32.attention_flops, wide.flops) << "TF32 is not attention's";
  }
  EXPECT_EQ(plan_device("h100", DType::bfloat16, false).flops, 989.4e12);
  EXPECT_THAT(message_of<UserError>([] { plan_device("h10O", DType::float32, false); }),
              HasSubstr("did you mean h100?"));
}

TEST(PlanDevices, ParseNumbersOfCommandLine) {
  PlanDevice device = plan_device("l40s", DType::bfloat16, false);
  EXPECT_THAT(device.assumed, ::testing::Contains("network"));
  set_plan_numbers(device, "network=25e9,utilization=0.5,flops=1e14");
  EXPECT_EQ(device.network, 25e9);
  EXPECT_EQ(device.utilization, 0.5);
  set_plan_numbers(device, "utilisation=0.25");
  EXPECT_EQ(device.utilization, 0.25) << "the British spelling";
  EXPECT_EQ(device.attention_flops, 1e14) << "flops sets both";
  EXPECT_THAT(device.assumed, AllOf(::testing::Not(::testing::Contains("network")),
                                    ::testing::Not(::testing::Contains("utilization"))));
  set_plan_numbers(device, "flops=2e14,attention_flops=3e13,overlap=0");
  EXPECT_EQ(device.attention_flops, 3e13);
  EXPECT_EQ(device.overlap, 0);
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"netwrk=1e9", "did you mean network?"},
           {"flops=", "expected a number above 0"},
           {"flops=1e15x", "expected a number above 0"},
           {"flops=0", "expected a number above 0"},
           {"memory=-1", "expected a number above 0"},
           {"utilization=1.5", "at most 1"},
           {"utilization=0", "above 0"},
           {"bandwidth=nan", "expected a number"},
           {"bandwidth=inf", "expected a number"},
           {"flops=1e15,", "is not KEY=NUMBER"},
           {"flops=1e15,h100", "only the first word"},
       }) {
    EXPECT_THAT(message_of<UserError>([&] { set_plan_numbers(device, text); }), HasSubstr(message)) << text;
  }
}

TEST(PlanDevices, RequireNumbersThatClusterUses) {
  PlanDevice device;
  set_plan_numbers(device, "flops=1e15,memory=80e9,bandwidth=3e12");
  check_plan_device(device, {1, 1});
  EXPECT_THAT(message_of<UserError>([&] { check_plan_device(device, {1, 2}); }), HasSubstr("link is missing"));
  EXPECT_THAT(message_of<UserError>([&] { check_plan_device(device, {2, 1}); }), HasSubstr("network is missing"));
  EXPECT_THAT(message_of<UserError>([&] {
                check_plan_device(device, {2, 2});
              }),
              HasSubstr("link, network are missing"));
  set_plan_numbers(device, "reserve=90e9");
  EXPECT_THAT(message_of<UserError>([&] { check_plan_device(device, {1, 1}); }), HasSubstr("is not less than memory"));
}

TEST(PlanDevices, PrefixesHaveThreeDigits) {
  EXPECT_EQ(with_prefix(3.35e12, "B/s"), "3.35 TB/s");
  EXPECT_EQ(with_prefix(989.4e12, "FLOP/s"), "989 TFLOP/s");
  EXPECT_EQ(with_prefix(25e9, "B/s"), "25.0 GB/s");
  EXPECT_EQ(with_prefix(999.9e6, "B"), "1.00 GB");
  EXPECT_EQ(with_prefix(0, "B"), "0.00 B");
  EXPECT_EQ(with_prefix(116000, ""), "116k");
}

// --- Communication

PlanDevice connected(bool by_host) {
  PlanDevice device;
  device.link = 8e9;
  device.network = 1e9;
  device.link_latency = 1e-3;
  device.network_latency = 1e-2;
  device.reached = 0.5;
  device.by_host = by_host;
  return device;
}

TEST(PlanRings, MatchFormula) {
  for (const bool by_host : {true, false}) {
    const PlanDevice device = connected(by_host);
    EXPECT_EQ(all_reduce_seconds(device, {1, 1}, 1e9), 0);
    // 2 (P - 1) / P · bytes / bandwidth + 2 (P - 1) · latency, of half of the link's 8 GB/s.
    EXPECT_NEAR(all_reduce_seconds(device, {1, 2}, 4e9), 1.0 + 2e-3, 1e-12);
    EXPECT_NEAR(all_reduce_seconds(device, {1, 8}, 4e9), 1.75 + 14e-3, 1e-12);
    EXPECT_NEAR(all_reduce_seconds(device, {4, 1}, 1e9), 3.0 + 6e-2, 1e-12);
    for (const PlanCluster cluster : {PlanCluster{1, 8}, PlanCluster{4, 1}, PlanCluster{4, 8}}) {
      const double halves = reduce_scatter_seconds(device, cluster, 3e8) + all_gather_seconds(device, cluster, 3e8);
      EXPECT_DOUBLE_EQ(halves, all_reduce_seconds(device, cluster, 3e8));
    }
  }
}

TEST(PlanRings, ReduceByHostOrInOneRing) {
  // By host: 3/4 of 4 GB over 4 GB/s and 3 messages, then 1/2 of the fourth part over 0.5 GB/s and 1 message.
  EXPECT_NEAR(reduce_scatter_seconds(connected(true), {2, 4}, 4e9), 0.75 + 3e-3 + 1.0 + 1e-2, 1e-12);
  // Round all: 7/8 of 4 GB; where the ring leaves a host it has the network of its 4 devices, 2 GB/s; 7 messages at the
  // network's pace.
  EXPECT_NEAR(reduce_scatter_seconds(connected(false), {2, 4}, 4e9), 7.0 / 8 * 2 + 7e-2, 1e-12);
  // With 16 devices a host, the link is the slowest: half of 8 GB/s.
  EXPECT_NEAR(reduce_scatter_seconds(connected(false), {2, 16}, 4e9), 31.0 / 32 + 31e-2, 1e-12);
}

TEST(PlanOverlap, BucketsStartWhenGradientsAreComplete) {
  // Backward: output 1 s, second block 2 s, first block 3 s, embedding 0: stages end at 1, 3, 6 and 6 s.
  const std::vector<double> backward{0, 3, 2, 1};
  const std::vector<PlanBucket> buckets{{1, 1, 2}, {1, 1, 1}, {1, 1, 0}};  // ready at 3, 6 and 6 s
  PlanExchange found = overlapped(backward, buckets, {2, 1, 1}, 1);
  EXPECT_EQ(found.busy, 4);
  EXPECT_EQ(found.overlapped, 2) << "from 3 to 5 s; the others begin when backward is over";
  found = overlapped(backward, buckets, {5, 1, 1}, 1);
  EXPECT_EQ(found.busy, 7);
  EXPECT_EQ(found.overlapped, 3) << "the first overlaps with backward for only part of its time";
  EXPECT_EQ(overlapped(backward, buckets, {5, 1, 1}, 0.5).overlapped, 1.5);
  EXPECT_EQ(overlapped(backward, buckets, {5, 1, 1}, 0).overlapped, 0);
  // In order: a bucket that is ready early waits for the previous one.
  EXPECT_EQ(overlapped(backward, {{1, 1, 1}, {1, 1, 3}}, {1, 1}, 1).overlapped, 0);
  EXPECT_EQ(overlapped(backward, {{1, 1, 3}, {1, 1, 3}}, {1, 1}, 1).overlapped, 2);
  EXPECT_EQ(overlapped(backward, {}, {}, 1).busy, 0);
}

// --- Operations

Settings model_of(const std::vector<std::string>& overrides) {
  std::vector<std::string> all{"model.d_model=32",        "model.n_heads=4",           "model.n_layers=3",
                               "data.sequence_length=48", "model.vocabulary_size=300", "device=cpu",
                               "data.batch_size=2"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return from_yaml_text("data:\n  dataset: none.h5\n", "settings of the test", all).settings;
}

struct Totals {
  double products = 0, attention = 0;
};
Totals totals(const std::vector<PlanStage>& stages) {
  Totals sum;
  for (const PlanStage& stage : stages) {
    sum.products += stage.forward + stage.backward;
    sum.attention += stage.attention_forward + stage.attention_backward;
  }
  return sum;
}

/// 6 operations for each token and each element of a matrix that it is multiplied by: 2 in forward, 4 in backward;
/// counted from the parameters of a model that was made.
double from_parameters(const Settings& settings, double tokens) {
  const Model model = make_model(settings, Vocabulary::bytes(true), Device{DeviceType::shape_only, 0});
  double elements = 0;
  for (const Parameter& parameter : model.store->parameters()) {
    const std::string& name = parameter.name();
    const bool is_table = name.find("position_embedding") == 0 || name.find("segment_embedding") == 0 ||
                          (name.find("token_embedding") == 0 && !settings.model.tied_embeddings);
    if (parameter.shape().rank() != 2 || !parameter.decays() || is_table) continue;
    elements += static_cast<double>(
        parameter.shape().elements() *
        (settings.model.shared_layers && name.starts_with("blocks.") ? settings.model.n_layers : 1));
  }
  return 6 * tokens * elements;
}

TEST(PlanWork, CountsSixOperationsPerWeight) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {},
           {"model.activation=swiglu", "model.n_key_value_heads=2", "model.norm=rmsnorm", "model.bias=false"},
           {"model.position=learned", "model.tied_embeddings=false", "model.d_head=16"},
           {"model.architecture=encoder", "objective.name=masked_tokens", "model.prediction_head=transform",
            "model.n_segments=2", "model.position=learned", "model.norm_placement=post"},
           {"model.shared_layers=true", "model.d_embedding=8", "model.prediction_head=transform"},
       }) {
    const Settings settings = model_of(overrides);
    const double found = totals(plan_stages(settings, 300, 0, 2)).products;
    EXPECT_DOUBLE_EQ(found, from_parameters(settings, 2 * 48)) << ::testing::PrintToString(overrides);
  }
}

TEST(PlanWork, FrozenWeightsHaveNoGradient) {
  const double plain = totals(plan_stages(model_of({}), 300, 0, 1)).products;
  const double adapted = totals(plan_stages(model_of({"model.lora_rank=2"}), 300, 0, 1)).products;
  // Of each layer: 32 to 96, 32 to 32, 32 to 128 and back.
  const double widths = 3 * (128.0 + 64 + 160 + 160);
  EXPECT_DOUBLE_EQ(adapted, plain * 4 / 6 + 48 * 6 * 2 * widths);
}

TEST(PlanWork, AttentionUsesCostOfEachHead) {
  const auto attention = [](const std::vector<std::string>& overrides) {
    return totals(plan_stages(model_of(overrides), 300, 0, 2)).attention;
  };
  layers::AttentionConfig one;
  one.d_head = 8;
  const auto cost = [&one] { return layers::mechanism_info(one.mechanism).cost(one, 48).with_backward; };
  const double softmax = cost();
  EXPECT_DOUBLE_EQ(attention({}), 2 * 3 * 4 * softmax) << "sequences, layers, heads";
  one.mechanism = "linear";
  one.n_features = 64;
  const double linear = cost();
  const std::vector<std::string> features{"model.attention.mechanism=linear", "model.attention.n_features=64"};
  EXPECT_DOUBLE_EQ(attention(features), 2 * 3 * 4 * linear);
  EXPECT_DOUBLE_EQ(attention({features[1], "model.attention.layers=[softmax, linear, 'softmax linear linear linear']"}),
                   2 * ((4 + 1) * softmax + (4 + 3) * linear));
  one.feature_map = "elu1";
  EXPECT_DOUBLE_EQ(attention({features[0], "model.attention.feature_map=elu1"}), 2 * 3 * 4 * cost());
  one.feature_map = "hedgehog";
  EXPECT_DOUBLE_EQ(attention({features[0], "model.attention.feature_map=hedgehog", "model.n_key_value_heads=2"}),
                   2 * 3 * (4 * cost() + (4 + 2) * 6.0 * 48 * 8 * 8))
      << "and its maps, of 4 query and 2 key heads";
  one = {};
  one.d_head = 8;
  one.window = 5;
  EXPECT_DOUBLE_EQ(attention({"model.attention.window=5"}), 2 * 3 * 4 * cost());
  one.mechanism = "windowed";
  one.softmax_window = 5;
  one.n_features = 64;
  EXPECT_DOUBLE_EQ(attention({"model.attention.mechanism=windowed", "model.attention.softmax_window=5", features[1]}),
                   2 * 3 * 4 * cost());
  one = {};
  one.d_head = 8;
  one.mechanism = "linformer";
  one.projected_length = 12;
  EXPECT_DOUBLE_EQ(attention({"model.attention.mechanism=linformer", "model.architecture=encoder",
                              "objective.name=masked_tokens", "model.attention.projected_length=12"}),
                   2 * 3 * 4 * cost());
}

TEST(PlanWork, CheckpointingRepeatsForward) {
  const auto plain = plan_stages(model_of({}), 300, 0, 2),
             again = plan_stages(model_of({"trainer.activation_checkpointing=blocks"}), 300, 0, 2);
  ASSERT_EQ(plain.size(), 5u);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const bool is_block = plain[i].name.starts_with("blocks.");
    EXPECT_EQ(again[i].forward, plain[i].forward);
    EXPECT_DOUBLE_EQ(again[i].backward, plain[i].backward + (is_block ? plain[i].forward : 0));
    EXPECT_DOUBLE_EQ(again[i].attention_backward,
                     plain[i].attention_backward + (is_block ? plain[i].attention_forward : 0));
  }
}

TEST(PlanWork, CountsLabelsAndPairs) {
  const Settings settings = model_of({"model.architecture=encoder", "objective.name=pair_classification"});
  const auto stages = plan_stages(settings, 300, 2, 2);
  EXPECT_DOUBLE_EQ(stages[1].forward, 2 * 2 * 48 * 2 * 12.0 * 32 * 32);
  EXPECT_DOUBLE_EQ(stages.back().forward + stages.back().backward, 2 * 6 * (32.0 * 2 + 4 * 32 * 32));
}

// --- What would fit

TEST(PlanFit, NamesEachSufficientChange) {
  // In GiB: 10 of state, of which ZeRO-1 shards 6; 1 a sample, half with recomputation.
  const auto bytes = [](const PlanChange& change) {
    const double state = change.sharing == PlanSharing::zero_1 ? 4 + 6.0 / change.devices : 10;
    return 0x1p30 * (state + static_cast<double>(change.samples) * (change.recompute ? 0.5 : 1));
  };
  const PlanChange now{8, false, PlanSharing::data_parallel, 2};
  EXPECT_THAT(
      what_would_fit(now, 16, 15 * 0x1p30, bytes),
      ElementsAre("parallel.zero_stage: 1 (ZeRO-1)", "trainer.activation_checkpointing: blocks",
                  "data.batch_size: 10 (5 per device), with a higher trainer.gradient_accumulation", "4 devices"));
  EXPECT_THAT(
      what_would_fit(now, 16, 11 * 0x1p30, bytes),
      ElementsAre("data.batch_size: 2 (1 per device), with a higher trainer.gradient_accumulation", "16 devices"));
  EXPECT_THAT(what_would_fit(now, 16, 10.5 * 0x1p30, bytes),
              ElementsAre("trainer.activation_checkpointing: blocks and data.batch_size: 2 together"));
  EXPECT_THAT(what_would_fit(now, 16, 7.5 * 0x1p30, bytes),
              ElementsAre(AllOf(HasSubstr("together"), HasSubstr("ZeRO-1"))));
  EXPECT_THAT(what_would_fit(now, 16, 7 * 0x1p30, bytes),
              ElementsAre(AllOf(HasSubstr("none of these"), HasSubstr("7.50 GiB"))));
  // One device, one sample: nothing to shard, nothing to reduce.
  EXPECT_THAT(what_would_fit({1, false, PlanSharing::data_parallel, 1}, 1, 10.5 * 0x1p30, bytes),
              ElementsAre("trainer.activation_checkpointing: blocks"));
  EXPECT_THAT(what_would_fit({1, true, PlanSharing::data_parallel, 1}, 1, 10 * 0x1p30, bytes),
              ElementsAre(AllOf(HasSubstr("none of these"), ::testing::Not(HasSubstr("ZeRO-1")))));
}

}  // namespace
}  // namespace furlong
