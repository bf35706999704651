#include "conversion/mapping.h"

#include <algorithm>

#include "framework/core/error.h"

namespace furlong {
namespace {

/// Calls move(foreign row, our row) for each row of an interleaved part.
template <class Move>
void for_rows(const Part& part, const Move& move) {
  const std::int64_t half = part.d_head / 2;
  for (std::int64_t first = 0; first < part.shape[0]; first += part.d_head) {
    for (std::int64_t i = 0; i < half; ++i) {
      move(first + 2 * i, first + i);
      move(first + 2 * i + 1, first + i + half);
    }
  }
}

void transpose(std::span<const float> from, std::int64_t rows, std::int64_t columns, std::span<float> to) {
  // Works in tiles that fit the L1 cache, because one of the matrices is accessed with a stride of whole rows.
  constexpr std::int64_t tile = 32;
  for (std::int64_t r = 0; r < rows; r += tile) {
    for (std::int64_t c = 0; c < columns; c += tile) {
      for (std::int64_t i = r; i < std::min(rows, r + tile); ++i) {
        for (std::int64_t j = c; j < std::min(columns, c + tile); ++j)
          to[static_cast<std::size_t>(j * rows + i)] = from[static_cast<std::size_t>(i * columns + j)];
      }
    }
  }
}

void copy(const Part& part, std::span<const float> from, std::span<float> to, bool to_ours) {
  require(from.size() == to.size() && static_cast<std::int64_t>(from.size()) == part.elements(),
          "{}: {} and {} elements for {}", part.name, from.size(), to.size(), part.shape.text());
  require(part.layout == Layout::plain || part.unused_rows == 0, "{}: unused rows in another layout", part.name);
  if (part.layout == Layout::transposed) {
    const std::int64_t rows = to_ours ? part.shape[0] : part.shape[1],
                       columns = to_ours ? part.shape[1] : part.shape[0];
    transpose(from, rows, columns, to);
    return;
  }
  if (part.layout == Layout::plain) {
    std::copy(from.begin(), from.end(), to.begin());
    return;
  }
  const std::size_t width = from.size() / static_cast<std::size_t>(part.shape[0]);
  for_rows(part, [&](std::int64_t foreign, std::int64_t ours) {
    const auto source = static_cast<std::size_t>(to_ours ? foreign : ours),
               target = static_cast<std::size_t>(to_ours ? ours : foreign);
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source * width), width,
                to.begin() + static_cast<std::ptrdiff_t>(target * width));
  });
}

}  // namespace

Shape Mapping::shape() const {
  require(!parts.empty(), "mapping of {} has no parts", parameter);
  Shape whole = parts[0].layout == Layout::transposed ? Shape{parts[0].shape[1], parts[0].shape[0]} : parts[0].shape;
  whole[0] -= parts[0].unused_rows;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    require(parts[i].layout != Layout::transposed, "mapping of {}: a transposed part cannot be concatenated by rows",
            parameter);
    whole[0] += parts[i].shape[0] - parts[i].unused_rows;
  }
  return whole;
}

void to_ours(const Part& part, std::span<const float> foreign, std::span<float> ours) {
  copy(part, foreign.subspan(static_cast<std::size_t>(part.unused_elements())), ours, true);
}
void to_foreign(const Part& part, std::span<const float> ours, std::span<float> foreign) {
  copy(part, ours, foreign.subspan(static_cast<std::size_t>(part.unused_elements())), false);
}

}  // namespace furlong
