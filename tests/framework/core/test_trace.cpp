// Recorded spans and the JSON that viewers read.
#include "framework/core/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "framework/autodiff/tape.h"
#include "framework/core/error.h"

namespace furlong::trace {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

/// Parses comma-separated events.
Json parsed(const Recording& recording, const Process& process = {0, "rank 0", 0}) {
  return Json::parse("[" + to_json(recording, process) + "]");
}

std::vector<Json> of_phase(const Json& events, const char* phase) {
  std::vector<Json> found;
  for (const Json& event : events)
    if (event["ph"] == phase) found.push_back(event);
  return found;
}

Event event(Event::Kind kind, const char* name, const char* scope, std::int64_t begin, std::int64_t end,
            int thread = 0) {
  return {kind, "test", name, scope, begin, end, thread, {}};
}

TEST(Trace, RecordsNothingWhileOff) {
  const std::string scope = "a.";
  const Span span("test", "span", {.bytes = 3});
  node("test", scope, "node");
  EXPECT_EQ(start_flow().flow, 0u);
  EXPECT_FALSE(is_on());
  const Recording recording = stop();
  EXPECT_TRUE(recording.events.empty());
  EXPECT_TRUE(recording.threads.empty());
  EXPECT_EQ(recording.dropped, 0);
}

TEST(Trace, RecordsSpansAndDetailsOfEveryThread) {
  const std::int64_t before = now();
  start();
  EXPECT_TRUE(is_on());
  EXPECT_THROW(start(), ContractError);
  Details handed;
  {
    const Span outer("test", "outer", {.step = 7});
    const Span inner("test", "inner", {.bytes = 12, .bucket = 3});
    handed = start_flow();
  }
  EXPECT_EQ(handed.bucket, 3);
  EXPECT_EQ(handed.bytes, 12);
  EXPECT_GT(handed.flow, 0u);
  std::thread([&] {
    name_thread("another");
    const Span span("other", "goes on", handed);
  }).join();
  const Recording recording = stop();
  const std::int64_t after = now();

  ASSERT_EQ(recording.events.size(), 4u);
  EXPECT_THAT(recording.threads, ElementsAre("main", "another"));
  const Event &departure = recording.events[0], &inner = recording.events[1], &outer = recording.events[2],
              &other = recording.events[3];
  EXPECT_EQ(departure.kind, Event::Kind::departure);
  EXPECT_EQ(inner.name, "inner");
  EXPECT_EQ(outer.name, "outer");
  EXPECT_EQ(outer.details.step, 7);
  EXPECT_EQ(other.thread, 1);
  EXPECT_EQ(other.details.flow, departure.details.flow);
  EXPECT_EQ(other.details.bucket, 3);
  EXPECT_LE(before, outer.begin);
  EXPECT_LE(outer.begin, inner.begin);
  EXPECT_LE(inner.begin, departure.begin);
  EXPECT_LE(departure.begin, inner.end);
  EXPECT_LE(inner.end, outer.end);
  EXPECT_LE(outer.end, other.begin);
  EXPECT_LE(other.end, after);
}

TEST(Trace, StartsANodeWhereTheLatestSpanStartedOrEnded) {
  const std::string scope = "blocks.0.";
  node("test", scope, "before");
  start();
  {
    const Span outer("test", "outer");
    node("test", scope, "first");
    { const Span inner("test", "inner"); }
    node("test", scope, "second");
  }
  const std::vector<Event> events = stop().events;
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].begin, events[3].begin) << "the first node starts with the enclosing span";
  EXPECT_EQ(events[0].scope, scope);
  EXPECT_LE(events[0].end, events[1].begin);
  EXPECT_EQ(events[2].begin, events[1].end) << "the second node starts where the previous span ended";
}

TEST(Trace, OmitsSpansThatCrossStartOrStop) {
  {
    const Span off("test", "begun before");
    start();
  }
  {
    auto late = std::make_unique<Span>("test", "ended after");
    EXPECT_TRUE(stop().events.empty());
    start();
    late.reset();  // a recording to which it does not belong
  }
  { const Span whole("test", "whole"); }
  const Recording recording = stop();
  ASSERT_EQ(recording.events.size(), 1u);
  EXPECT_EQ(recording.events[0].name, "whole");
}

TEST(Trace, LimitsEventsAndCountsDroppedOnes) {
  start(10);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      for (int k = 0; k < 25; ++k) const Span span("test", "span");
    });
  for (std::thread& thread : threads) thread.join();
  const Recording recording = stop();
  EXPECT_EQ(recording.events.size(), 10u);
  EXPECT_EQ(recording.dropped, 90);
}

TEST(TraceText, WritesNamesTimesAndDetails) {
  Recording recording;
  recording.threads = {"main", "communication \"1\""};
  recording.events.push_back(event(Event::Kind::span, "run", "", 2500, 2501, 1));
  recording.events[0].details.bytes = 0;
  recording.events[0].details.bucket = 4;
  recording.events[0].details.flow = 9;
  recording.events.push_back(event(Event::Kind::departure, "operation", "", 2000, 2000));
  recording.events[1].details.flow = 9;
  const Json all = parsed(recording, {3, "rank 3 on node\n07", -1'000'000'600});

  const std::vector<Json> spans = of_phase(all, "X");
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0]["pid"], 3);
  EXPECT_EQ(spans[0]["tid"], 1);
  EXPECT_DOUBLE_EQ(spans[0]["ts"].get<double>(), 2.5 - 1'000'000.6) << "microseconds of the trace's clock";
  EXPECT_DOUBLE_EQ(spans[0]["dur"].get<double>(), 0.001);
  EXPECT_EQ(spans[0]["args"], Json({{"bucket", 4}, {"bytes", 0}}));
  ASSERT_EQ(of_phase(all, "s").size(), 1u);
  ASSERT_EQ(of_phase(all, "f").size(), 1u);
  EXPECT_EQ(of_phase(all, "s")[0]["id"], of_phase(all, "f")[0]["id"]);
  EXPECT_EQ(of_phase(all, "s")[0]["id"], (std::int64_t{3} << 32) + 9) << "unique to this process";
  std::vector<std::string> names;
  for (const Json& named : of_phase(all, "M"))
    if (named["args"].contains("name")) names.push_back(named["args"]["name"]);
  EXPECT_THAT(names, ElementsAre("rank 3 on node\n07", "main", "communication \"1\""));
}

TEST(TraceText, GroupsNodesBySharedScopes) {
  const auto node = [](const char* name, const char* scope, std::int64_t begin, std::int64_t end) {
    return event(Event::Kind::node, name, scope, begin, end);
  };
  Recording recording;
  recording.threads = {"main"};
  recording.events = {node("lookup", "embedding.", 0, 10), node("norm", "blocks.0.", 10, 20),
                      node("linear", "blocks.0.attention.", 20, 30),
                      // A rematerialized segment, in its node's own scope.
                      node("linear", "blocks.0.attention.", 31, 39), node("recompute", "blocks.0.", 30, 40),
                      node("linear", "blocks.1.", 40, 50), event(Event::Kind::span, "forward", "", 0, 50),
                      node("linear", "blocks.1.", 50, 60), event(Event::Kind::span, "backward", "", 50, 60)};
  std::vector<std::string> found;
  const auto nanoseconds = [](const Json& time) { return std::lround(time.get<double>() * 1000); };
  for (const Json& span : of_phase(parsed(recording), "X"))
    found.push_back(fmt::format("{} {} {}-{}", span["cat"].get<std::string>(), span["name"].get<std::string>(),
                                nanoseconds(span["ts"]), nanoseconds(span["ts"]) + nanoseconds(span["dur"])));
  // Outer spans come first at equal times, as viewers require.
  EXPECT_THAT(found,
              ElementsAre("test forward 0-50", "scope embedding 0-10", "test lookup 0-10", "scope blocks 10-50",
                          "scope blocks.0 10-40", "test norm 10-20", "scope blocks.0.attention 20-30",
                          "test linear 20-30", "test recompute 30-40", "scope blocks.0.attention 31-39",
                          "test linear 31-39", "scope blocks.1 40-50", "test linear 40-50", "test backward 50-60",
                          "scope blocks 50-60", "scope blocks.1 50-60", "test linear 50-60"));
}

TEST(TraceText, RecordsTheNodesOfATape) {
  const Variable x = Variable::leaf(Tensor::zeros({}, DType::float32));
  const auto use = [](Tape& tape, const Variable& input) {
    const Tape::Scope scope(tape, "blocks.0");
    return tape.record_one("halve", {input}, Tensor::zeros({}, DType::float32), {}, [](BackwardContext& context) {
      if (context.wants(0)) context.pass(0, context.d_output());
    });
  };
  start();
  Tape tape{Stream{}};
  const std::vector<Variable> again = tape.recompute(
      "again", {x},
      [&](Tape& inner, const std::vector<Variable>& inputs) { return std::vector<Variable>{use(inner, inputs[0])}; });
  tape.backward(use(tape, again[0]));
  const Recording recording = stop();
  std::vector<std::string> found;
  for (const Event& event : recording.events)
    found.push_back(fmt::format("{} {}{}", event.category, event.scope, event.name));
  EXPECT_THAT(found, ElementsAre("forward blocks.0.halve", "forward blocks.0.halve", "backward blocks.0.halve",
                                 "forward blocks.0.halve", "backward blocks.0.halve", "backward again"));
}

}  // namespace
}  // namespace furlong::trace
