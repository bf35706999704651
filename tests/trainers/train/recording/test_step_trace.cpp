// Traces of training steps with one and several ranks.
#include "trainers/train/recording/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "framework/core/trace.h"
#include "framework/io/atomic_file.h"
#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"
#include "trainers/train/train.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using parallel_testing::Curves;
using parallel_testing::Report;
using parallel_testing::run_world;
using ::testing::HasSubstr;
using testing::message_of;
using testing::small_settings;
using Json = nlohmann::json;

struct TracedSpan {
  int rank = 0;
  std::string thread, category, name, scope;
  std::int64_t begin = 0, end = 0;  // nanoseconds
  std::int64_t step = -1, bucket = -1, bytes = -1;

  bool holds(const TracedSpan& other) const {
    return rank == other.rank && thread == other.thread && begin <= other.begin && other.end <= end;
  }
};

/// A trace as a viewer sees it.
struct Trace {
  explicit Trace(const std::string& text) : file(Json::parse(text)) {
    std::map<std::pair<int, int>, std::string> threads;
    for (const Json& event : file["traceEvents"])
      if (event["name"] == "thread_name") threads[{event["pid"], event["tid"]}] = event["args"]["name"];
    for (const Json& event : file["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const Json& more = event["args"];
      const std::int64_t begin = nanoseconds(event["ts"]);
      spans.push_back({event["pid"], threads.at({event["pid"], event["tid"]}), event["cat"], event["name"],
                       more.value("scope", ""), begin, begin + nanoseconds(event["dur"]), more.value("step", -1),
                       more.value("bucket", -1), more.value("bytes", -1)});
    }
  }
  /// Of microseconds with three decimals.
  static std::int64_t nanoseconds(const Json& time) { return std::llround(time.get<double>() * 1000); }
  std::vector<TracedSpan> find(const std::function<bool(const TracedSpan&)>& matches) const {
    std::vector<TracedSpan> found;
    std::copy_if(spans.begin(), spans.end(), std::back_inserter(found), matches);
    return found;
  }
  std::vector<TracedSpan> named(int rank, const std::string& name) const {
    return find([&](const TracedSpan& span) { return span.rank == rank && span.name == name; });
  }

  Json file;
  std::vector<TracedSpan> spans;
};

/// Two spans of a thread are nested or disjoint.
void expect_nested(const Trace& trace) {
  std::map<std::pair<int, std::string>, std::vector<TracedSpan>> open;
  for (const TracedSpan& span : trace.spans) {  // each before those that lie in it
    auto& stack = open[{span.rank, span.thread}];
    while (!stack.empty() && stack.back().end <= span.begin) stack.pop_back();
    if (!stack.empty()) {
      EXPECT_LE(stack.back().begin, span.begin);
      EXPECT_LE(span.end, stack.back().end) << span.name << " in " << stack.back().name;
    }
    stack.push_back(span);
  }
}

class StepTraceTest : public testing::WithTemporaryFolder {
 protected:
  StepTraceTest() : store(testing::write_store(path("tokens.h5"), testing::synthetic_text(4000))) {}

  /// 3 million parameters, reduced in buckets of 1 MB.
  Settings settings(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"model.d_model=256", "model.n_layers=4", "model.n_heads=4",
                                 "parallel.bucket_megabytes=1", "data.batch_size=4"};
    all.insert(all.end(), more.begin(), more.end());
    return small_settings(store, all).settings;
  }
  /// Seven steps of two ranks; 3 to 5 are traced, the fifth with validation and checkpoint.
  Trace traced(const Settings& settings, std::vector<double>& bucket_bytes) const {
    const std::string file = path("trace.json"), checkpoint = path("step.h5");
    const Curves found = run_world(2, [&](ProcessGroup& group, const Report& report) {
      const auto data = open_data(settings.data);
      Trainer trainer(settings, *data, Device{}, std::nullopt, &group);
      StepTrace trace(TraceOptions{file, 3, 5}, group, Device{});
      for (int i = 1; i <= 7; ++i) {
        trace.begin_step();
        trainer.step();
        if (i == 5) {
          trainer.validate();
          trainer.save(checkpoint);
        }
        trace.end_step();
        EXPECT_EQ(trace::is_on(), i >= 3 && i < 5);
      }
      trace.finish();
      for (const std::int64_t bytes : trainer.reducer()->bucket_bytes()) report.add(static_cast<double>(bytes));
    });
    bucket_bytes = found[0];
    return Trace(content(file));
  }

  std::string store;
};

TEST_F(StepTraceTest, ParsesStepRanges) {
  TraceOptions options;
  parse_trace_steps("3-6", options);
  EXPECT_EQ(options.first, 3);
  EXPECT_EQ(options.last, 6);
  parse_trace_steps("12", options);
  EXPECT_EQ(options.first, 12);
  EXPECT_EQ(options.last, 12);
  for (const char* wrong : {"", "0", "0-3", "6-3", "3-", "-3", "3-6-9", "a", "3 - 6", "3.5", "99999999999999999999"})
    EXPECT_THAT(message_of<UserError>([&] { parse_trace_steps(wrong, options); }),
                HasSubstr(std::string("--trace-steps ") + wrong + ": expected a range of steps"));
}

TEST_F(StepTraceTest, WritesTwoRanksToOneFile) {
  std::vector<double> buckets;
  const Trace trace = traced(settings(), buckets);
  ASSERT_GT(buckets.size(), 4u);
  expect_nested(trace);
  EXPECT_EQ(trace.file["otherData"]["steps"], 3);
  ASSERT_EQ(trace.file["otherData"]["processes"].size(), 2u);
  for (const Json& process : trace.file["otherData"]["processes"]) {
    EXPECT_EQ(process["dropped"], 0);
    EXPECT_GT(process["events"], 500);
    EXPECT_EQ(process["device"], "cpu");
    EXPECT_EQ(process["clock_offset_ns"], 0) << "one host";
  }
  int begun_in_backward = 0;
  for (const int rank : {0, 1}) {
    const std::vector<TracedSpan> steps = trace.named(rank, "step");
    ASSERT_EQ(steps.size(), 3u);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i].step, static_cast<std::int64_t>(i) + 3);
      const auto inside = [&](const char* name) {
        return trace.find([&](const TracedSpan& span) { return span.name == name && steps[i].holds(span); });
      };
      for (const char* name : {"read data", "counts", "forward", "backward", "finish", "optimizer", "loss and norm"})
        EXPECT_EQ(inside(name).size(), 1u) << name;
      const std::int64_t backward_end = inside("backward")[0].end;
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        const auto of_bucket = [&](const TracedSpan& span) {
          return span.rank == rank && span.bucket == static_cast<std::int64_t>(b) && steps[i].begin <= span.begin &&
                 span.end <= steps[i].end;
        };
        const auto issued = trace.find([&](const TracedSpan& span) { return of_bucket(span) && span.name == "issue"; });
        const auto awaited = trace.find([&](const TracedSpan& span) { return of_bucket(span) && span.name == "wait"; });
        const auto ran =
            trace.find([&](const TracedSpan& span) { return of_bucket(span) && span.thread == "communication"; });
        ASSERT_EQ(issued.size(), 1u) << "bucket " << b;
        ASSERT_EQ(awaited.size(), 1u) << "bucket " << b;
        ASSERT_EQ(ran.size(), 1u) << "bucket " << b;
        EXPECT_EQ(issued[0].thread, "main");
        EXPECT_EQ(issued[0].bytes, buckets[b]);
        EXPECT_EQ(ran[0].bytes, buckets[b]);
        EXPECT_THAT(ran[0].name, HasSubstr("all_reduce of float32"));
        EXPECT_LE(issued[0].begin, ran[0].begin);
        EXPECT_LE(ran[0].end, awaited[0].end);
        begun_in_backward += ran[0].begin < backward_end ? 1 : 0;
      }
    }
    EXPECT_EQ(trace.named(rank, "validation").size(), 1u);
    EXPECT_EQ(trace.named(rank, "checkpoint").size(), 1u);
  }
  EXPECT_GT(begun_in_backward, 0) << "no reduction overlaps";
}

TEST_F(StepTraceTest, NodeSpansNestInLayerSpans) {
  std::vector<double> buckets;
  const Trace trace = traced(settings(), buckets);
  for (const char* pass : {"forward", "backward"}) {
    const std::vector<TracedSpan> nodes = trace.find([&](const TracedSpan& span) {
      return span.rank == 1 && span.category == pass && span.scope == "blocks.2.attention";
    });
    EXPECT_GE(nodes.size(), 3u * 3) << pass << ": several nodes in each of three steps";
    for (const TracedSpan& node : nodes) {
      const auto around = trace.find([&](const TracedSpan& span) { return span.holds(node); });
      std::set<std::string> names;
      for (const TracedSpan& span : around) names.insert(span.name);
      EXPECT_TRUE(names.contains("step") || names.contains("validation"));
      for (const char* outer : {pass, "blocks", "blocks.2", "blocks.2.attention"})
        EXPECT_TRUE(names.contains(outer)) << outer;
    }
  }
}

TEST_F(StepTraceTest, TracesReduceScatterAndGatherOfShardedBuckets) {
  std::vector<double> buckets;
  const Trace trace = traced(settings({"parallel.zero_stage=1"}), buckets);
  expect_nested(trace);
  const auto operations = [&](const char* name) {
    return trace
        .find([&](const TracedSpan& span) {
          return span.rank == 0 && span.bucket >= 0 && span.category == "operation" && span.name.starts_with(name);
        })
        .size();
  };
  EXPECT_EQ(operations("reduce_scatter"), 3 * buckets.size());
  EXPECT_EQ(operations("all_gather"), 3 * buckets.size());
  for (const TracedSpan& gather : trace.named(0, "gather")) {
    const auto around =
        trace.find([&](const TracedSpan& span) { return span.name == "optimizer" && span.holds(gather); });
    EXPECT_TRUE(around.size() == 1 || gather.begin > trace.named(0, "step").back().end)
        << "in the optimizer, or for a checkpoint";
  }
  EXPECT_GE(trace.named(0, "gather").size(), 3u);
}

// The same clock plus five seconds, as on a host that was started earlier.
TEST_F(StepTraceTest, MeasuresClocksOfOtherHosts) {
  constexpr std::int64_t more = 5'000'000'000;
  const Curves found = run_world(3, [&](ProcessGroup& group, const Report& report) {
    const bool is_elsewhere = group.rank() == 2;
    const ClockOffset offset = measure_clock_offset(group, is_elsewhere ? "another host" : "one host",
                                                    [&] { return trace::now() + (is_elsewhere ? more : 0); });
    report.add({static_cast<double>(offset.nanoseconds), static_cast<double>(offset.uncertainty)});
  });
  EXPECT_EQ(found[0], (std::vector<double>{0, 0}));
  EXPECT_EQ(found[1], (std::vector<double>{0, 0}));
  EXPECT_GT(found[2][1], 0);
  EXPECT_LT(found[2][1], 1e9);
  EXPECT_NEAR(found[2][0], -static_cast<double>(more), found[2][1]);
}

class TracedTrainTest : public StepTraceTest {
 protected:
  TrainResult run(const std::string& name, std::optional<TraceOptions> trace, int steps) const {
    TrainOptions options;
    options.trace = std::move(trace);
    return train(small_settings(store, {"run_directory=" + path(name), fmt::format("trainer.max_steps={}", steps),
                                        "schedule.warmup_steps=1", "trainer.validate_every=2", "checkpoint.every=2"}),
                 options);
  }
};

TEST_F(TracedTrainTest, OneProcessHasNoReductions) {
  run("run", TraceOptions{path("trace.json"), 3, 4}, 6);
  const Trace trace(content(path("trace.json")));
  expect_nested(trace);
  EXPECT_EQ(trace.named(0, "step").size(), 2u);
  EXPECT_EQ(trace.named(0, "validation").size(), 1u) << "after step 4";
  EXPECT_EQ(trace.named(0, "checkpoint").size(), 1u) << "after step 4";
  EXPECT_TRUE(
      trace.find([](const TracedSpan& span) { return span.bucket >= 0 || span.thread == "communication"; }).empty());
  EXPECT_FALSE(trace::is_on());
}

TEST_F(TracedTrainTest, WritesTraceOfShortRun) {
  run("run", TraceOptions{path("trace.json"), 2, 100}, 3);
  EXPECT_EQ(Trace(content(path("trace.json"))).named(0, "step").size(), 2u);
  EXPECT_FALSE(trace::is_on());
  // The steps of this call count: 4 to 5.
  run("run", TraceOptions{path("later.json"), 1, 2}, 5);
  const std::vector<TracedSpan> steps = Trace(content(path("later.json"))).named(0, "step");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].step, 4);
  // None.
  run("run", TraceOptions{path("none.json"), 3, 6}, 6);
  EXPECT_FALSE(fs::exists(path("none.json")));
  EXPECT_TRUE(partial_files(path("none.json")).empty());
}

// The trace is written last: the run is saved even if that fails.
TEST_F(TracedTrainTest, TraceContainsFinalCheckpoint) {
  TrainOptions options;
  options.trace = TraceOptions{path("trace.json"), 2, 100};
  const TrainResult result =  // too small a learning rate to change a weight
      train(small_settings(store,
                           {"run_directory=" + path("run"), "optimizer.learning_rate=1e-30", "trainer.validate_every=1",
                            "trainer.early_stopping_patience=1", "checkpoint.every=0"}),
            options);
  EXPECT_TRUE(result.stopped_early);
  EXPECT_EQ(result.step, 2);
  const Trace trace(content(path("trace.json")));
  ASSERT_EQ(trace.named(0, "checkpoint").size(), 1u);
  EXPECT_EQ(trace.named(0, "checkpoint")[0].step, 2);
}

TEST_F(TracedTrainTest, WritesNothingWithoutOption) {
  run("run", std::nullopt, 4);
  EXPECT_TRUE(trace::stop().events.empty());
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(path(""))) names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"run", "tokens.h5"}));
}

TEST_F(TracedTrainTest, RejectsUnusablePathBeforeTraining) {
  EXPECT_THAT(message_of<UserError>([&] {
                run("run", TraceOptions{path("missing/trace.json"), 3, 6}, 4);
              }),
              HasSubstr("missing"));
  EXPECT_FALSE(fs::exists(path("run/metrics.jsonl")));
}

}  // namespace
}  // namespace furlong
