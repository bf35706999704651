#pragma once
// ListOps: nested operations on lists of digits (Nangia & Bowman 2018, arXiv:1804.06028), with the operators and sizes
// of Long Range Arena (Tay et al. 2020, arXiv:2011.04006).
#include <array>

#include "datasets/tasks/labeled_task.h"

namespace furlong {

/// Options of ListOps. The defaults are those of Long Range Arena.
struct ListOpsOptions {
  /// An expression has more than min_length and fewer than max_length tokens.
  std::int64_t min_length = 500, max_length = 2000;
  std::int64_t max_depth = 10;      ///< of nested expressions, digits included
  std::int64_t max_arguments = 10;  ///< of an operator; it has at least 2
  std::uint64_t seed = 1;
};

/// Expressions such as "[MAX 2 9 [MIN 4 7 ] 0 ]". The label is the value of the expression, a digit. An operator with
/// its bracket is one token, "]" is one, and each digit is one.
///
/// expression = digit | operator expression expression ... "]"
///
/// MIN and MAX are the least and the greatest argument, MED is the median (for an even number of arguments the mean of
/// the two middle ones, rounded down), SM the sum modulo 10. Above the greatest depth an expression is an operator with
/// probability 1/4; digits, operators and the number of arguments are uniform. Expressions of other lengths are drawn
/// again.
class ListOps : public LabeledTask {
 public:
  /// Samples of train, validation and test in Long Range Arena.
  static constexpr std::array<std::uint64_t, 3> published_samples{96000, 2000, 2000};
  /// Ids of tokens; digits have their own value.
  enum Token : std::int32_t { minimum = 10, maximum, median, sum_modulo, end, n_tokens };

  /// Throws UserError if no expression has such a length.
  explicit ListOps(const ListOpsOptions& options);

  std::string name() const override { return "listops"; }
  /// A word-level tokenizer: the tokens in the order of their ids, then [UNK].
  Vocabulary vocabulary() const override;
  std::vector<std::string> labels() const override;
  LabeledSequence sample(Split split, std::uint64_t index) const override;
  nlohmann::ordered_json options() const override;

 private:
  std::int32_t append_expression(Draws& draws, std::int64_t depth, std::vector<std::int32_t>& tokens) const;

  ListOpsOptions options_;
};

}  // namespace furlong
