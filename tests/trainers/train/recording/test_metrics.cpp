#include "trainers/train/recording/metrics.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "tests/temporary_folder.h"
#include "tests/trainers/training.h"
#include "trainers/train/train.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MetricsTest : public testing::WithTemporaryFolder {
 protected:
  static void put(const fs::path& file, std::string_view text) { std::ofstream(file, std::ios::binary) << text; }
  static std::vector<std::int64_t> steps(const std::string& text) {
    std::vector<std::int64_t> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      found.push_back(json::parse(line).at("step").get<std::int64_t>());
    return found;
  }
  static MetricsRecord record(std::int64_t step, const std::string& split = "train") {
    MetricsRecord r;
    r.step = step;
    r.split = split;
    r.loss = 5.0 / static_cast<double>(step + 1);
    r.tokens = step * 4096;
    return r;
  }
  const fs::path path_ = folder_ / "metrics.jsonl";
};

TEST_F(MetricsTest, KeysAreOrderedAndUnmeasuredValuesNull) {
  MetricsRecord r;
  r.step = 7;
  r.split = "validation";
  r.loss = 0.1;
  r.tokens = 5'000'000'000;
  r.gradient_norm = std::numeric_limits<double>::infinity();
  r.more = {{"bits_per_byte", 2.5}, {"not finite", std::nan("")}};
  EXPECT_EQ(
      to_json_line(r),
      R"({"step":7,"split":"validation","loss":0.1,"tokens":5000000000,"tokens_per_second":null,"learning_rate":null,)"
      R"("gradient_norm":null,"memory_bytes":0,"bits_per_byte":2.5,"not finite":null})");
  r.more = {{"loss", 1.0}};
  EXPECT_THROW(to_json_line(r), ContractError);
}

TEST_F(MetricsTest, DoublesRoundTripBitwise) {
  std::mt19937_64 random(1);
  std::vector<double> values = {0.0, -0.0, 1.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2};
  while (values.size() < 2000) {
    if (const double value = std::bit_cast<double>(random()); std::isfinite(value)) values.push_back(value);
  }
  for (const double value : values) {
    MetricsRecord r;
    r.loss = value;
    const double back = json::parse(to_json_line(r)).at("loss").get<double>();
    ASSERT_EQ(std::bit_cast<std::uint64_t>(back), std::bit_cast<std::uint64_t>(value)) << value;
  }
}

TEST_F(MetricsTest, WritesLinesImmediatelyAndAppendsAfterReopening) {
  {
    MetricsWriter writer(path_);
    writer.write(record(1));
    EXPECT_EQ(content(path_), to_json_line(record(1)) + "\n");
    writer.write(record(2));
    writer.flush();
    EXPECT_THAT(steps(content(path_)), ElementsAre(1, 2));
  }
  MetricsWriter writer(path_);
  writer.write(record(3));
  EXPECT_THAT(steps(content(path_)), ElementsAre(1, 2, 3));
}

TEST_F(MetricsTest, CutBackPreservesBytesOfKeptLines) {
  std::string expected;
  {
    MetricsWriter writer(path_);
    for (std::int64_t step = 1; step <= 10; ++step) {
      writer.write(record(step));
      if (step <= 6) expected += to_json_line(record(step)) + "\n";
      if (step % 3 == 0) {
        writer.write(record(step, "validation"));
        if (step <= 6) expected += to_json_line(record(step, "validation")) + "\n";
      }
    }
  }
  EXPECT_EQ(last_step(path_), 10);
  EXPECT_EQ(cut_back(path_, 6), 5);  // steps 7, 8, 9, 10 and the validation of 9
  EXPECT_EQ(content(path_), expected);
  EXPECT_EQ(cut_back(path_, 6), 0);
  EXPECT_EQ(content(path_), expected);
  EXPECT_EQ(last_step(path_), 6);
  EXPECT_EQ(cut_back(folder_ / "missing.jsonl", 3), 0);
  EXPECT_EQ(last_step(folder_ / "missing.jsonl"), 0);
  EXPECT_FALSE(fs::exists(folder_ / "missing.jsonl"));
  EXPECT_EQ(cut_back(path_, -1), 8);
  EXPECT_EQ(content(path_), "");
}

TEST_F(MetricsTest, TrainingSecondsAreTokensDividedByRate) {
  const fs::path file = folder_ / "time.jsonl";
  EXPECT_EQ(training_seconds(file, 10), 0);
  {
    MetricsWriter writer(file);
    const auto line = [&](std::int64_t step, const char* split, std::int64_t tokens, double rate) {
      MetricsRecord record;
      record.step = step;
      record.split = split;
      record.tokens = tokens;
      record.tokens_per_second = rate;
      writer.write(record);
    };
    line(1, "train", 100, 50);            // 2 s
    line(2, "validation", 7000, 10);      // not training
    line(4, "train", 400, 100);           // 3 s
    line(5, "train", 450, std::nan(""));  // a time that nobody measured
    line(9, "train", 1050, 200);          // 3 s
  }
  EXPECT_DOUBLE_EQ(training_seconds(file, 1), 2);
  EXPECT_DOUBLE_EQ(training_seconds(file, 8), 5);
  EXPECT_DOUBLE_EQ(training_seconds(file, 9), 8);
}

// Reading a pipe waits for its writer, so this one ends by itself.
TEST_F(MetricsTest, RejectsPipe) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] {
    const int open_end = open(pipe.c_str(), O_RDWR | O_CLOEXEC);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    close(open_end);
  });
  const auto is_refusal = HasSubstr("pipe: found a directory, device, pipe or socket, expected a file");
  EXPECT_THAT(testing::message_of<UserError>([&] { training_seconds(pipe, 1); }), is_refusal);
  EXPECT_THAT(testing::message_of<UserError>([&] { cut_back(pipe, 1); }), is_refusal);
  writer.join();
}

// A kill leaves a prefix of the file, of any length. For each length, resuming from each step gives the metrics of an
// undisturbed run.
TEST_F(MetricsTest, CutBackRepairsAnyPrefix) {
  std::string whole;
  std::vector<std::size_t> ends;
  for (std::int64_t step = 1; step <= 6; ++step) {
    whole += to_json_line(record(step)) + "\n";
    ends.push_back(whole.size());
  }
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    const std::string prefix = whole.substr(0, length);
    std::size_t whole_lines = 0;
    while (whole_lines < ends.size() && ends[whole_lines] <= length) ++whole_lines;

    put(path_, prefix);
    cut_back(path_, 4);
    const std::size_t kept = std::min<std::size_t>(whole_lines, 4);
    ASSERT_EQ(content(path_), whole.substr(0, kept == 0 ? 0 : ends[kept - 1])) << "length " << length;

    put(path_, prefix);
    { MetricsWriter writer(path_); }
    ASSERT_EQ(content(path_), whole.substr(0, whole_lines == 0 ? 0 : ends[whole_lines - 1])) << "length " << length;
  }
}

TEST_F(MetricsTest, DropsInvalidLines) {
  const std::string good = to_json_line(record(1)) + "\n";
  put(path_, good + std::string("\0\0\0\0\n", 5) + "[1]\n{\"step\":\"two\"}\n\n" + good);
  EXPECT_EQ(cut_back(path_, 1), 4);
  EXPECT_EQ(content(path_), good + good);
}

TEST_F(MetricsTest, FullDiskLeavesCompleteLines) {
  const std::string line = to_json_line(record(1)) + "\n";
  MetricsWriter writer(path_);
  writer.write(record(1));
  const auto previous_handler = signal(SIGXFSZ, SIG_IGN);
  rlimit previous{};
  getrlimit(RLIMIT_FSIZE, &previous);
  rlimit limit = previous;
  limit.rlim_cur = line.size() + 10;
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_THROW(writer.write(record(2)), MachineError);
  setrlimit(RLIMIT_FSIZE, &previous);
  signal(SIGXFSZ, previous_handler);
  EXPECT_EQ(content(path_), line);
  writer.write(record(3));
  EXPECT_THAT(steps(content(path_)), ElementsAre(1, 3));
}

TEST_F(MetricsTest, ReportsUnusablePathsAsUserErrors) {
  EXPECT_THROW(MetricsWriter(folder_ / "missing" / "metrics.jsonl"), UserError);
  EXPECT_THROW(MetricsWriter{folder_}, UserError);
  put(path_, "");
  EXPECT_THROW(TensorboardWriter{path_}, UserError);
}

// --- A reader of TensorBoard event files, written from the format alone: bitwise CRC, generic protobuf fields.

std::uint32_t bitwise_crc32c(std::string_view data) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = (crc & 1) ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
  }
  return crc ^ 0xFFFFFFFFu;
}

template <class T>
T take(std::string_view& in) {
  T value{};
  if (in.size() < sizeof(T)) throw std::runtime_error("ends early");
  std::memcpy(&value, in.data(), sizeof(T));
  in.remove_prefix(sizeof(T));
  return value;
}

std::uint64_t take_varint(std::string_view& in) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<std::uint8_t>(in);
    value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
}

std::string_view take_bytes(std::string_view& in, std::size_t size) {
  if (in.size() < size) throw std::runtime_error("ends early");
  const std::string_view taken = in.substr(0, size);
  in.remove_prefix(size);
  return taken;
}

std::multimap<int, std::string> fields(std::string_view message) {
  std::multimap<int, std::string> found;
  while (!message.empty()) {
    const std::uint64_t tag = take_varint(message);
    const int field = static_cast<int>(tag >> 3);
    std::string raw;
    switch (tag & 7) {
      case 0: {
        const std::uint64_t value = take_varint(message);
        raw.assign(reinterpret_cast<const char*>(&value), 8);
        break;
      }
      case 1:
        raw = take_bytes(message, 8);
        break;
      case 2:
        raw = take_bytes(message, take_varint(message));
        break;
      case 5:
        raw = take_bytes(message, 4);
        break;
      default:
        throw std::runtime_error("unknown wire type");
    }
    found.emplace(field, raw);
  }
  return found;
}

template <class T>
T as(const std::string& raw) {
  T value{};
  EXPECT_EQ(raw.size(), sizeof(T));
  std::memcpy(&value, raw.data(), sizeof(T));
  return value;
}

std::vector<std::string> frames(std::string_view file) {
  std::vector<std::string> events;
  const auto unmask = [](std::uint32_t masked) {
    const std::uint32_t rotated = masked - 0xa282ead8u;
    return (rotated >> 17) | (rotated << 15);
  };
  while (!file.empty()) {
    const std::string_view length_bytes = file.substr(0, 8);
    const auto length = take<std::uint64_t>(file);
    if (unmask(take<std::uint32_t>(file)) != bitwise_crc32c(length_bytes)) throw std::runtime_error("length checksum");
    const std::string_view data = take_bytes(file, length);
    if (unmask(take<std::uint32_t>(file)) != bitwise_crc32c(data)) throw std::runtime_error("data checksum");
    events.emplace_back(data);
  }
  return events;
}

std::map<std::string, float> scalars(const std::multimap<int, std::string>& event) {
  std::map<std::string, float> found;
  for (const auto& [number, value] : fields(event.find(5)->second)) {
    EXPECT_EQ(number, 1);
    const auto parts = fields(value);
    found[parts.find(1)->second] = as<float>(parts.find(2)->second);
  }
  return found;
}

TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  std::mt19937 random(2);
  std::string data;
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(crc32c(data), bitwise_crc32c(data));
    data.push_back(static_cast<char>(random()));
  }
}

TEST_F(MetricsTest, TensorboardEventsReadBack) {
  MetricsRecord r = record(300);
  r.learning_rate = 3e-4;
  r.tokens_per_second = 12345.5;
  r.more = {{"bits_per_byte", 2.25}};
  TensorboardWriter writer(folder_ / "tensorboard");
  writer.write(r);
  writer.scalar("validation/loss", 5'000'000'000, std::nan(""));

  const std::vector<std::string> events = frames(content(writer.path()));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(fields(events[0]).find(3)->second, "brain.Event:2");
  const auto now = static_cast<double>(::time(nullptr));
  const auto event = fields(events[1]);
  EXPECT_NEAR(as<double>(event.find(1)->second), now, 60.0);
  EXPECT_EQ(as<std::int64_t>(event.find(2)->second), 300);
  const std::map<std::string, float> expected = {{"train/loss", static_cast<float>(r.loss)},
                                                 {"train/tokens", 300.0f * 4096.0f},
                                                 {"train/tokens_per_second", 12345.5f},
                                                 {"train/learning_rate", 3e-4f},
                                                 {"train/memory_bytes", 0.0f},
                                                 {"train/bits_per_byte", 2.25f}};
  EXPECT_EQ(scalars(event), expected);
  const auto last = fields(events[2]);
  EXPECT_EQ(as<std::int64_t>(last.find(2)->second), 5'000'000'000);
  EXPECT_TRUE(std::isnan(scalars(last).at("validation/loss")));
}

TEST_F(MetricsTest, TensorboardFileMarksResume) {
  TensorboardWriter first(folder_);
  TensorboardWriter second(folder_, 40);
  EXPECT_NE(first.path(), second.path());
  EXPECT_THAT(second.path().filename().string(), HasSubstr("events.out.tfevents."));
  const std::vector<std::string> events = frames(content(second.path()));
  ASSERT_EQ(events.size(), 2u);
  const auto start = fields(events[1]);
  EXPECT_EQ(as<std::int64_t>(start.find(2)->second), 41);
  EXPECT_EQ(as<std::int64_t>(fields(start.find(7)->second).find(1)->second), 1);  // SessionLog.START
}

// A run that was killed before its first checkpoint starts anew.
TEST_F(MetricsTest, TensorboardHasNoEventsOfALostStart) {
  const LoadedSettings settings =
      testing::small_settings(testing::write_store((folder_ / "tokens.h5").string(), testing::synthetic_text(2000)),
                              {"trainer.max_steps=6", "run_directory=" + (folder_ / "run").string()});
  train(settings, {});
  fs::remove_all(folder_ / "run/checkpoints");
  train(settings, {});
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "run/tensorboard"), fs::directory_iterator{}), 1);
}

// The reader above must detect a damaged file; otherwise the tests that use it prove nothing.
TEST_F(MetricsTest, TestReaderDetectsDamage) {
  TensorboardWriter writer(folder_);
  writer.scalar("a", 1, 2.0);
  const std::string whole = content(writer.path());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_THROW(frames(damaged), std::runtime_error) << i;
  }
}

}  // namespace
}  // namespace furlong
