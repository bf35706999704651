#include "datasets/tasks/listops.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "datasets/tokenizers/tokenizer.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

constexpr double operator_probability = 0.25;
constexpr std::array listops_tokens{"0", "1", "2",    "3",    "4",    "5",   "6", "7",
                                    "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};
static_assert(listops_tokens.size() == ListOps::n_tokens);

/// Returns the value of an operator.
std::int32_t operator_value(std::int32_t operation, std::vector<std::int32_t>& values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  switch (operation) {
    case ListOps::minimum:
      return values.front();
    case ListOps::maximum:
      return values.back();
    case ListOps::median:
      return (values[(n - 1) / 2] + values[n / 2]) / 2;
    default:
      return std::accumulate(values.begin(), values.end(), 0) % 10;
  }
}

/// Returns the length of the longest expression, at most `enough`.
std::int64_t longest_expression(std::int64_t depth, std::int64_t arguments, std::int64_t enough) {
  std::int64_t length = 1;
  for (std::int64_t level = 1; level < depth && length < enough; ++level) length = 2 + arguments * length;
  return std::min(length, enough);
}

}  // namespace

ListOps::ListOps(const ListOpsOptions& options) : options_(options) {
  require(
      options.max_depth >= 1 && options.max_arguments >= 2 && options.max_arguments <= 1000 && options.min_length >= 0,
      "ListOps of depth {} with {} arguments", options.max_depth, options.max_arguments);
  if (options.max_length < options.min_length + 2)
    throw UserError("--max-length {}: expected at least {}, 2 more than --min-length {}; lengths are between them",
                    options.max_length, options.min_length + 2, options.min_length);
  const std::int64_t longest = longest_expression(options.max_depth, options.max_arguments, options.min_length + 1);
  if (longest <= options.min_length)
    throw UserError(
        "--min-length {}: expressions of --max-depth {} and --max-arguments {} have at most {} tokens; lower it, or "
        "raise the others",
        options.min_length, options.max_depth, options.max_arguments, longest);
}

Vocabulary ListOps::vocabulary() const {
  nlohmann::ordered_json ids;
  for (const char* token : listops_tokens) ids[token] = ids.size();
  ids["[UNK]"] = ids.size();
  const nlohmann::ordered_json tokenizer{{"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                                         {"model", {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", ids}}}};
  const nlohmann::ordered_json json{
      {"kind", "wordpiece"}, {"special", {{"unknown", n_tokens}}}, {"tokenizer", tokenizer}};
  return Vocabulary::of_tokenizer(tokenizer_from_json(json.dump(), "ListOps"));
}

std::vector<std::string> ListOps::labels() const { return {listops_tokens.begin(), listops_tokens.begin() + 10}; }

LabeledSequence ListOps::sample(Split split, std::uint64_t index) const {
  Draws draws = this->draws(options_.seed, split, index);
  constexpr int max_attempts = 100000;
  constexpr std::int64_t max_tokens = std::int64_t{1} << 28;  // of all attempts: bounds the time of long expressions
  LabeledSequence made;
  int attempts = 0;
  for (std::int64_t drawn = 0; attempts < max_attempts && drawn < max_tokens; ++attempts) {
    made.tokens.clear();
    made.label = append_expression(draws, 1, made.tokens);
    const std::int64_t length = std::ssize(made.tokens);
    if (length > options_.min_length && length < options_.max_length) return made;
    drawn += length;
  }
  throw UserError(
      "--min-length {} --max-length {}: none of {} random expressions has such a length; choose a wider range, or "
      "change --max-depth and --max-arguments: smaller values make shorter expressions",
      options_.min_length, options_.max_length, attempts);
}

/// Returns the value of the expression. An expression that is already too long stays incomplete.
std::int32_t ListOps::append_expression(Draws& draws, std::int64_t depth, std::vector<std::int32_t>& tokens) const {
  if (std::ssize(tokens) >= options_.max_length) return 0;
  if (depth >= options_.max_depth || draws.uniform() >= operator_probability) {
    tokens.push_back(static_cast<std::int32_t>(draws.below(10)));
    return tokens.back();
  }
  const auto operation = static_cast<std::int32_t>(minimum + draws.below(end - minimum));
  tokens.push_back(operation);
  std::vector<std::int32_t> values(2 + draws.below(static_cast<std::size_t>(options_.max_arguments) - 1));
  for (std::int32_t& value : values) value = append_expression(draws, depth + 1, tokens);
  tokens.push_back(end);
  return operator_value(operation, values);
}

nlohmann::ordered_json ListOps::options() const {
  return {{"min_length", options_.min_length},
          {"max_length", options_.max_length},
          {"max_depth", options_.max_depth},
          {"max_arguments", options_.max_arguments},
          {"seed", options_.seed}};
}

}  // namespace furlong
