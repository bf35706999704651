#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "framework/core/tensor.h"
#include "framework/io/checkpoint_file.h"

namespace furlong {

/// Copies of the entries of a checkpoint in host memory, to be written later from another thread.
class CheckpointCopy final : public CheckpointSink {
 public:
  /// Copies the elements. Throws MachineError if host memory is exhausted.
  void tensor(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
              const void* data) override;
  void text(const std::string& name, std::string_view value) override;
  void number(const std::string& name, double value) override;
  void integer(const std::string& name, std::int64_t value) override;

  /// Writes all entries in the order of their calls. The file equals one written without the copy.
  void write(CheckpointSink& file) const;

 private:
  struct Elements {
    std::string dtype;
    std::vector<std::int64_t> shape;
    Tensor bytes;
  };
  struct Entry {
    std::string name;
    std::variant<Elements, std::string, double, std::int64_t> value;
  };
  std::vector<Entry> entries_;
};

}  // namespace furlong
