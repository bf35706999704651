#pragma once
#include <array>
#include <cstddef>
#include <string_view>

namespace furlong {

/// The three parts of a tokenized dataset.
enum class Split { train, validation, test };

inline constexpr std::array<Split, 3> all_splits{Split::train, Split::validation, Split::test};

/// Returns "train", "validation" or "test".
std::string_view name_of(Split split);
/// Returns the split of that name. Throws UserError for any other name.
Split split_from_name(std::string_view name);

/// Fraction of the tokens in each split, in the order of the enum. The sum is 1.
struct SplitShares {
  std::array<double, 3> share{0.9, 0.05, 0.05};
  double operator[](Split split) const { return share[static_cast<std::size_t>(split)]; }
};

/// Parses "train:0.9,validation:0.1" (splits not named get nothing) or "0.8,0.1,0.1" (train, validation, test). Throws
/// UserError for any other syntax, a negative fraction, an empty training split, or a sum that differs from 1 by more
/// than 1e-6.
SplitShares parse_split_shares(std::string_view text);

}  // namespace furlong
