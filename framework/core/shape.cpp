#include "framework/core/shape.h"

#include <algorithm>

#include "framework/core/error.h"

namespace furlong {

Shape::Shape(std::initializer_list<std::int64_t> extents) {
  for (std::int64_t extent : extents) push_back(extent);
}

void Shape::push_back(std::int64_t extent) {
  require(rank_ < max_rank, "a shape has at most {} dimensions", max_rank);
  extents_[rank_++] = extent;
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (std::int64_t extent : *this) {
    require(!__builtin_mul_overflow(product, extent, &product), "shape {} has more elements than 64 bits can count",
            text());
  }
  return product;
}

std::int64_t Shape::rows() const {
  std::int64_t product = 1;
  for (int i = 0; i + 1 < rank_; ++i) product *= extents_[i];
  return product;
}

std::string Shape::text() const {
  std::string result = "[";
  for (int i = 0; i < rank_; ++i) result += (i ? ", " : "") + std::to_string(extents_[i]);
  return result + "]";
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ && std::equal(begin(), end(), other.begin());
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

}  // namespace furlong
