#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace furlong {

/// Extents, or strides in elements, of a tensor with at most six dimensions. All are 64-bit because heads × n × n
/// exceeds 2^31 at n = 64k.
class Shape {
 public:
  static constexpr int max_rank = 6;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);

  /// Number of dimensions; 0 for a scalar.
  int rank() const { return rank_; }
  /// Extent of a dimension; negative ones count from the end (-1: the last). Not checked.
  std::int64_t operator[](int dimension) const { return extents_[dimension < 0 ? rank_ + dimension : dimension]; }
  std::int64_t& operator[](int dimension) { return extents_[dimension < 0 ? rank_ + dimension : dimension]; }
  const std::int64_t* begin() const { return extents_.data(); }
  const std::int64_t* end() const { return extents_.data() + rank_; }
  /// Product of the extents; 1 for rank 0.
  std::int64_t elements() const;
  /// Product of all extents except the last.
  std::int64_t rows() const;
  /// Appends a dimension at the end.
  void push_back(std::int64_t extent);
  /// "[2, 3, 4]"
  std::string text() const;
  bool operator==(const Shape& other) const;

 private:
  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
};

/// Converts an index to the index type of standard containers.
inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Returns row-major strides, in elements.
Shape contiguous_strides(const Shape& shape);

}  // namespace furlong
