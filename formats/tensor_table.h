#pragma once
// Shared by all readers of foreign checkpoints: a sorted list of tensors with their places in a file.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/tensor_file.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong::foreign {

/// Throws the UserError for a tensor that `file` does not have; suggests the nearest name.
[[noreturn]] void throw_missing_tensor(const TensorFile& file, std::string_view name);

/// Appends an extent. Throws UserError beyond six dimensions or 2^63 elements.
void append_extent(const std::string& path, std::string_view tensor, Shape& shape, std::uint64_t extent);

/// Implements the listing of tensors for `Base` (TensorFile or GgufFile). `Place` locates a tensor's elements.
template <class Base, class Place>
class TensorTable : public Base {
 public:
  const std::string& path() const override { return path_; }
  const std::vector<ForeignTensor>& tensors() const override { return tensors_; }

 protected:
  explicit TensorTable(std::string path) : path_(std::move(path)) {}

  /// Stores the tensors sorted by name. Throws UserError for a duplicate name.
  void set_tensors(std::vector<std::pair<ForeignTensor, Place>> found) {
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
    for (auto& [tensor, place] : found) {
      if (!tensors_.empty() && tensors_.back().name == tensor.name) {
        throw UserError("{}: damaged: tensor '{}' is listed twice", path_, printable(tensor.name));
      }
      tensors_.push_back(std::move(tensor));
      places_.push_back(std::move(place));
    }
  }

  /// Returns a tensor and its place. Throws UserError if the tensor does not exist.
  std::pair<const ForeignTensor&, const Place&> locate(std::string_view name) const {
    const ForeignTensor* tensor = this->find(name);
    if (tensor == nullptr) throw_missing_tensor(*this, name);
    return {*tensor, places_[static_cast<std::size_t>(tensor - tensors_.data())]};
  }
  std::pair<const ForeignTensor&, const Place&> locate(std::string_view name, std::span<const float> values) const {
    const auto found = locate(name);
    require(static_cast<std::int64_t>(values.size()) == found.first.shape.elements(),
            "{}: tensor '{}' {} is read into {} values", path_, printable(name), found.first.shape.text(),
            values.size());
    return found;
  }

 private:
  std::string path_;
  std::vector<ForeignTensor> tensors_;
  std::vector<Place> places_;
};

}  // namespace furlong::foreign
