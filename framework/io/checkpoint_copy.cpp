#include "framework/io/checkpoint_copy.h"

#include <cstring>

#include "framework/core/dtype.h"

namespace furlong {
namespace {

/// int64 is a dtype of checkpoints only, not a DType.
std::int64_t bytes_of(std::string_view dtype) {
  return dtype == "int64" ? 8 : size_of(dtype_from_name(std::string(dtype)));
}

}  // namespace

void CheckpointCopy::tensor(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
                            const void* data) {
  std::int64_t bytes = bytes_of(dtype);
  for (const std::int64_t extent : shape) bytes *= extent;
  const Tensor copy = Tensor::empty({bytes}, DType::uint8);
  if (bytes > 0) std::memcpy(copy.address(), data, static_cast<std::size_t>(bytes));
  entries_.push_back({name, Elements{std::string(dtype), {shape.begin(), shape.end()}, copy}});
}

void CheckpointCopy::text(const std::string& name, std::string_view value) {
  entries_.push_back({name, std::string(value)});
}
void CheckpointCopy::number(const std::string& name, double value) { entries_.push_back({name, value}); }
void CheckpointCopy::integer(const std::string& name, std::int64_t value) { entries_.push_back({name, value}); }

void CheckpointCopy::write(CheckpointSink& file) const {
  for (const auto& [name, value] : entries_) {
    if (const auto* elements = std::get_if<Elements>(&value)) {
      file.tensor(name, elements->dtype, elements->shape, elements->bytes.address());
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      file.text(name, *text);
    } else if (const auto* number = std::get_if<double>(&value)) {
      file.number(name, *number);
    } else {
      file.integer(name, std::get<std::int64_t>(value));
    }
  }
}

}  // namespace furlong
