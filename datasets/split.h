#pragma once
#include <array>
#include <cstddef>
#include <string_view>

namespace furlong {

/// The three parts of a token store.
enum class Split { train, validation, test };

inline constexpr std::array<Split, 3> all_splits{Split::train, Split::validation, Split::test};

/// "train", "validation", "test".
std::string_view name_of(Split split);
/// Throws UserError on another name.
Split split_from_name(std::string_view name);

/// What part of the tokens each split gets, in the order of the enum; the sum is 1.
struct SplitShares {
  std::array<double, 3> share{0.9, 0.05, 0.05};
  double operator[](Split split) const { return share[static_cast<std::size_t>(split)]; }
};

/// Reads "train:0.9,validation:0.1" (what is left out gets nothing) or "0.8,0.1,0.1" (train, validation, test). Throws
/// UserError on anything else, a negative share, an empty training split, or a sum that is not 1 within 1e-6.
SplitShares parse_split_shares(std::string_view text);

}  // namespace furlong
