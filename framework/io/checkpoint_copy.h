#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "framework/core/tensor.h"
#include "framework/io/checkpoint_file.h"

namespace furlong {

/// What a checkpoint is to hold, as it was when it was put here: to be written later, from another thread.
class CheckpointCopy final : public CheckpointSink {
 public:
  /// Throws MachineError where the host's memory has no room for the elements.
  void tensor(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
              const void* data) override;
  void text(const std::string& name, std::string_view value) override;
  void number(const std::string& name, double value) override;
  void integer(const std::string& name, std::int64_t value) override;

  /// Everything, in the order in which it came: the file is the one that would have been written without the copy.
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
