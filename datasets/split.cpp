#include "datasets/split.h"

#include <charconv>
#include <cmath>
#include <string>

#include "framework/core/error.h"

namespace furlong {

std::string_view name_of(Split split) {
  constexpr std::array<std::string_view, 3> names{"train", "validation", "test"};
  return names[static_cast<std::size_t>(split)];
}

Split split_from_name(std::string_view name) {
  for (const Split split : all_splits) {
    if (name_of(split) == name) return split;
  }
  throw UserError("unknown split '{}'; expected train, validation or test", name);
}

SplitShares parse_split_shares(std::string_view text) {
  const auto refuse = [&](const std::string& why) {
    throw UserError("--split {}: {}; expected for example train:0.9,validation:0.05,test:0.05 or 0.9,0.05,0.05", text,
                    why);
  };
  SplitShares shares{{0, 0, 0}};
  std::array<bool, 3> given{};
  const bool named = text.find(':') != std::string_view::npos;
  std::size_t place = 0;
  double sum = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    std::size_t index = place++;
    if (named) {
      const std::size_t colon = part.find(':');
      if (colon == std::string_view::npos) refuse(fmt::format("'{}' names no split", part));
      index = static_cast<std::size_t>(split_from_name(part.substr(0, colon)));
      part = part.substr(colon + 1);
    }
    if (index >= 3) refuse("more than three fractions");
    if (given[index]) refuse(fmt::format("{} is given twice", name_of(all_splits[index])));
    given[index] = true;
    double value = 0;
    const auto [last, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc{} || last != part.data() + part.size() || !(value >= 0 && value <= 1)) {
      refuse(fmt::format("'{}' is not a number from 0 to 1", part));
    }
    shares.share[index] = value;
    sum += value;
  }
  if (std::abs(sum - 1) > 1e-6) refuse(fmt::format("the fractions add up to {:.6g}, not 1", sum));
  if (shares[Split::train] == 0) refuse("the training split is empty");
  return shares;
}

}  // namespace furlong
