#include "evaluation/score_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "framework/core/json_output.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

std::string quoted(const std::string& text) { return json_line(nlohmann::json(text)); }

/// JSON has no infinities: a probability of 0 is null there.
std::string json_number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

}  // namespace

std::string tsv_number(double value) { return fmt::format("{:.9g}", value); }

double SequenceScore::perplexity() const { return std::exp(-log_likelihood / static_cast<double>(tokens)); }

ScoreFile::ScoreFile(bool json, bool positions, std::function<void(std::string_view)> write)
    : json_(json), positions_(positions), write_(std::move(write)) {}

void ScoreFile::put(std::string_view text) {
  buffer_ += text;
  if (buffer_.size() < 1 << 16) return;
  write_(buffer_);
  buffer_.clear();
}

void ScoreFile::header(const std::string& line) {
  if (!std::exchange(begun_, true)) put(line + "\n");
}

void ScoreFile::open_object() { put(std::exchange(begun_, true) ? ",\n{" : "[\n{"); }

void ScoreFile::begin(const std::string& id) {
  id_ = json_ ? id : foreign::single_line(id, 1 << 16);
  first_position_ = true;
  if (json_) {
    open_object();
    put("\"id\": " + quoted(id));
  } else {
    header(positions_ ? "id\tposition\ttoken\tlog_probability" : "id\ttokens\tlog_likelihood\tperplexity");
  }
}

void ScoreFile::position(std::int64_t position, const std::string& token, double log_probability) {
  if (json_) {
    put(std::exchange(first_position_, false) ? ", \"positions\": [\n  " : ",\n  ");
    put(fmt::format("{{\"position\": {}, \"token\": {}, \"log_probability\": {}}}", position, quoted(token),
                    json_number(log_probability)));
  } else {
    put(fmt::format("{}\t{}\t{}\t{}\n", id_, position, foreign::single_line(token), tsv_number(log_probability)));
  }
}

void ScoreFile::end(const SequenceScore& score) {
  if (json_) {
    if (!first_position_) put("]");
    put(fmt::format(", \"tokens\": {}, \"log_likelihood\": {}, \"perplexity\": {}}}", score.tokens,
                    json_number(score.log_likelihood), json_number(score.perplexity())));
  } else if (!positions_) {
    put(fmt::format("{}\t{}\t{}\t{}\n", id_, score.tokens, tsv_number(score.log_likelihood),
                    tsv_number(score.perplexity())));
  }
}

void ScoreFile::row(const std::string& key, const std::string& name, const std::vector<std::string>& columns,
                    const std::vector<double>& values) {
  if (json_) {
    open_object();
    put(quoted(key) + ": " + quoted(name));
    for (std::size_t i = 0; i < columns.size(); ++i) put(", " + quoted(columns[i]) + ": " + json_number(values[i]));
    put("}");
  } else {
    header(fmt::format("{}\t{}", key, fmt::join(columns, "\t")));
    put(name);
    for (const double value : values) put("\t" + tsv_number(value));
    put("\n");
  }
}

void ScoreFile::finish() {
  if (json_) put(begun_ ? "\n]\n" : "[]\n");
  write_(buffer_);
  buffer_.clear();
}

}  // namespace furlong
