#include "trainers/train/recording/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/core/error.h"
#include "framework/core/json_output.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

// Appends all of `data` or nothing: a partial write on a full disk is undone.
void append_whole(int descriptor, const fs::path& path, std::string_view data) {
  require(descriptor >= 0, "{}: not open", path.string());
  const off_t start = ::lseek(descriptor, 0, SEEK_END);
  if (start < 0) throw_file_error(path, "append", errno);
  while (!data.empty()) {
    const ssize_t done = ::write(descriptor, data.data(), data.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      const int error = done < 0 ? errno : ENOSPC;
      if (::ftruncate(descriptor, start) != 0)
        log_warn("{}: the last line is torn: {}", path.string(), std::generic_category().message(errno));
      throw_file_error(path, "append", error);
    }
    data.remove_prefix(static_cast<std::size_t>(done));
  }
}

// Truncates the file after its last newline. Reads backwards, because the file can be large and its last line is short.
void remove_torn_line(int descriptor, const fs::path& path) {
  const off_t size = ::lseek(descriptor, 0, SEEK_END);
  if (size < 0) throw_file_error(path, "read", errno);
  off_t keep = size;
  for (std::array<char, 4096> block; keep > 0;) {
    const off_t begin = std::max<off_t>(0, keep - static_cast<off_t>(block.size()));
    const ssize_t count = ::pread(descriptor, block.data(), static_cast<std::size_t>(keep - begin), begin);
    if (count < 0 && errno == EINTR) continue;
    if (count != keep - begin) throw_file_error(path, "read", count < 0 ? errno : EIO);
    const std::size_t newline = std::string_view(block.data(), static_cast<std::size_t>(count)).rfind('\n');
    if (newline != std::string_view::npos) {
      keep = begin + static_cast<off_t>(newline) + 1;
      break;
    }
    keep = begin;
  }
  if (keep == size) return;
  if (::ftruncate(descriptor, keep) != 0) throw_file_error(path, "remove the torn last line", errno);
  log_info("{}: removed a torn last line of {} bytes", path.string(), size - keep);
}

// Returns whether the file exists. Throws UserError unless it is a regular file: reading a pipe could wait forever.
bool is_readable(const fs::path& path) {
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (status.type() == fs::file_type::not_found) return false;
  if (failure) throw_file_error(path, "read", failure.value());
  if (!fs::is_regular_file(status))
    throw UserError("{}: found a directory, device, pipe or socket, expected a file; remove it", path.string());
  return true;
}

constexpr std::size_t max_line_bytes = 1 << 16;  // as in the report

// Returns the step of a line of metrics.jsonl, or nullopt for other lines.
std::optional<std::int64_t> step_of(const std::string& line) {
  if (line.size() > max_line_bytes) return std::nullopt;
  const auto object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<std::int64_t>();
}

// --- The part of Protocol Buffers and TFRecord that scalars need. Field numbers: tensorflow/core/util/event.proto,
// summary.proto.

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

template <class Unsigned>
void put_fixed(std::string& out, Unsigned value) {
  for (std::size_t byte = 0; byte < sizeof(Unsigned); ++byte) out.push_back(static_cast<char>(value >> (8 * byte)));
}

enum WireType : std::uint64_t { wire_varint = 0, wire_fixed64 = 1, wire_bytes = 2, wire_fixed32 = 5 };

void put_tag(std::string& out, std::uint64_t field, WireType type) { put_varint(out, field << 3 | type); }

void put_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  put_tag(out, field, wire_bytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

// Event { double wall_time = 1; int64 step = 2; ... }: seconds since 1970, and the step.
std::string event_head(std::int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put_tag(event, 1, wire_fixed64);
  put_fixed(event, std::bit_cast<std::uint64_t>(now.count()));
  put_tag(event, 2, wire_varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

// Summary { repeated Value value = 1; } with Value { string tag = 1; float simple_value = 2; }
void put_scalar(std::string& summary, std::string_view tag, double scalar) {
  std::string value;
  put_bytes(value, 1, tag);
  put_tag(value, 2, wire_fixed32);
  put_fixed(value, std::bit_cast<std::uint32_t>(static_cast<float>(scalar)));
  put_bytes(summary, 1, value);
}

constexpr std::array<std::uint32_t, 256> crc32c_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) ? 0x82F63B78u : 0u);
    table[byte] = remainder;
  }
  return table;
}();

// The CRC of data that contain their own CRC is weak; TFRecord therefore rotates it and adds a constant.
std::uint32_t masked_crc32c(std::string_view data) { return std::rotr(crc32c(data), 15) + 0xA282EAD8u; }

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t remainder = ~0u;
  for (const char byte : data)
    remainder = crc32c_table[(remainder ^ static_cast<std::uint8_t>(byte)) & 0xFF] ^ (remainder >> 8);
  return ~remainder;
}

std::string to_json_line(const MetricsRecord& record) {
  nlohmann::ordered_json line;
  line["step"] = record.step;
  line["split"] = record.split;
  line["loss"] = record.loss;  // JSON has no NaN: null
  line["tokens"] = record.tokens;
  line["tokens_per_second"] = record.tokens_per_second;
  line["learning_rate"] = record.learning_rate;
  line["gradient_norm"] = record.gradient_norm;
  line["memory_bytes"] = record.memory_bytes;
  for (const auto& [key, value] : record.more) {
    require(!line.contains(key), "metrics: key '{}' given twice", key);
    line[key] = value;
  }
  return json_line(line);
}

MetricsWriter::MetricsWriter(fs::path path) : path_(std::move(path)) {
  is_readable(path_);  // throws for what is not a file
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_file_error(path_, "write", errno);
  try {
    remove_torn_line(descriptor_, path_);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

MetricsWriter::~MetricsWriter() { ::close(descriptor_); }

void MetricsWriter::write(const MetricsRecord& record) {
  append_whole(descriptor_, path_, to_json_line(record) + '\n');
}

void MetricsWriter::flush() {
  const int error = flush_descriptor(descriptor_);
  if (error != 0 && error != EINVAL) throw_file_error(path_, "flush", error);
}

std::int64_t cut_back(const fs::path& path, std::int64_t step) {
  if (!is_readable(path)) return 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) throw_file_error(path, "read", errno);
  AtomicFile out(path);
  std::int64_t removed = 0;
  std::int64_t number = 0;
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const bool torn = in.eof();  // the last line, without its newline
    const std::optional<std::int64_t> line_step = torn ? std::nullopt : step_of(line);
    if (line_step && *line_step <= step) {
      kept += line;
      kept += '\n';
    } else {
      if (!torn && !line_step) log_warn("{}:{}: not a line of metrics; removed", path.string(), number);
      ++removed;
    }
    if (kept.size() > (1u << 20)) {
      out.write(kept);
      kept.clear();
    }
  }
  if (in.bad()) throw MachineError("{}: cannot read: input/output error", path.string());
  if (removed == 0) return 0;
  out.write(kept);
  out.commit();
  return removed;
}

std::int64_t last_step(const fs::path& path) {
  std::int64_t last = 0;
  if (!is_readable(path)) return last;
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line);) last = std::max(last, step_of(line).value_or(0));
  return last;
}

double training_seconds(const fs::path& path, std::int64_t step) {
  if (!is_readable(path)) return 0;
  std::ifstream in(path, std::ios::binary);
  double seconds = 0;
  std::int64_t before = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.size() > max_line_bytes) continue;
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) continue;
    const auto split = record.find("split"), at = record.find("step");
    if (split == record.end() || *split != "train" || at == record.end() || !at->is_number_integer() ||
        at->get<std::int64_t>() > step)
      continue;
    const auto rate = record.find("tokens_per_second"), tokens = record.find("tokens");
    if (rate == record.end() || tokens == record.end() || !tokens->is_number_integer()) continue;
    const auto now = tokens->get<std::int64_t>();
    const double per_second = rate->is_number() ? rate->get<double>() : 0;
    if (per_second > 0) seconds += static_cast<double>(now - before) / per_second;
    before = now;
  }
  return seconds;
}

TensorboardWriter::TensorboardWriter(fs::path directory, std::optional<std::int64_t> resumed_from_step) {
  std::error_code failure;
  fs::create_directories(directory, failure);
  if (failure) throw_file_error(directory, "create the directory", failure.value());
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {'h', 'o', 's', 't'};
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (int n = 0; descriptor_ < 0; ++n) {
    path_ = directory / fmt::format("events.out.tfevents.{:010d}.{}.{}.{}", seconds, host.data(), ::getpid(), n);
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) throw_file_error(path_, "write", errno);
  }
  try {
    std::string version = event_head(0);
    put_bytes(version, 3, "brain.Event:2");  // file_version, which TensorBoard expects first
    write_event(version);
    if (resumed_from_step) {
      std::string start = event_head(*resumed_from_step + 1);
      std::string session;  // SessionLog { SessionStatus status = 1; } with START = 1
      put_tag(session, 1, wire_varint);
      put_varint(session, 1);
      put_bytes(start, 7, session);
      write_event(start);
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

TensorboardWriter::~TensorboardWriter() { ::close(descriptor_); }

void TensorboardWriter::write_event(std::string_view event) {
  std::string frame;
  put_fixed(frame, static_cast<std::uint64_t>(event.size()));
  put_fixed(frame, masked_crc32c(frame));
  frame += event;
  put_fixed(frame, masked_crc32c(event));
  append_whole(descriptor_, path_, frame);
}

void TensorboardWriter::write(const MetricsRecord& record) {
  std::string summary;
  const auto put = [&](std::string_view key, double value) {
    // A NaN loss is written; other values that were not measured are omitted.
    if (!std::isnan(value) || key == "loss") put_scalar(summary, fmt::format("{}/{}", record.split, key), value);
  };
  put("loss", record.loss);
  put("tokens", static_cast<double>(record.tokens));
  put("tokens_per_second", record.tokens_per_second);
  put("learning_rate", record.learning_rate);
  put("gradient_norm", record.gradient_norm);
  put("memory_bytes", static_cast<double>(record.memory_bytes));
  for (const auto& [key, value] : record.more) put(key, value);
  std::string event = event_head(record.step);
  put_bytes(event, 5, summary);
  write_event(event);
}

void TensorboardWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  std::string summary;
  put_scalar(summary, tag, value);
  std::string event = event_head(step);
  put_bytes(event, 5, summary);
  write_event(event);
}

}  // namespace furlong
