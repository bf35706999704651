#pragma once
// Scores as TSV or JSON.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

struct SequenceScore {
  std::int64_t tokens = 0;  ///< that were scored
  double log_likelihood = 0;
  double perplexity() const;
};

/// Returns a number with 9 significant digits, as many as a float32 needs.
std::string tsv_number(double value);

/// Text of scores, written as they come to `write`.
/// TSV: a header and a line for each sequence: id, tokens, log_likelihood, perplexity. With positions a line for each
/// token instead: id, position (from 1), token, log_probability.
/// JSON: a list of objects with the keys of a sequence; with positions also `positions`, a list of objects with those
/// of a token.
class ScoreFile {
 public:
  ScoreFile(bool json, bool positions, std::function<void(std::string_view)> write);
  void begin(const std::string& id);
  /// One token; only with positions.
  void position(std::int64_t position, const std::string& token, double log_probability);
  void end(const SequenceScore& score);
  /// Mutations: one line, or object, with a number for each column. `columns` is the same in each call.
  void row(const std::string& key, const std::string& name, const std::vector<std::string>& columns,
           const std::vector<double>& values);
  void finish();

 private:
  void put(std::string_view text);
  void header(const std::string& line);
  void open_object();

  bool json_, positions_, begun_ = false, first_position_ = true;
  std::function<void(std::string_view)> write_;
  std::string id_, buffer_;
};

}  // namespace furlong
