#pragma once
// Small checkpoint files, and changes of them with valid checksums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/error.h"
#include "framework/io/checkpoint_file.h"
#include "tests/temporary_folder.h"

namespace furlong::testing {

namespace fs = std::filesystem;
using Shape = std::vector<std::int64_t>;

class WithCheckpointFile : public WithTemporaryFolder {
 protected:
  static void put(const fs::path& file, std::string_view bytes) { std::ofstream(file, std::ios::binary) << bytes; }

  // Writes a file whose checksum and length are those of its contents.
  static void put_sealed(const fs::path& file, std::string bytes) {
    const std::uint64_t checksum = XXH3_64bits(bytes.data() + 512, bytes.size() - 512), size = bytes.size();
    std::memcpy(&bytes[16], &checksum, sizeof checksum);
    std::memcpy(&bytes[24], &size, sizeof size);
    put(file, bytes);
  }

  void write_small() const { write_small(path_); }
  static void write_small(const fs::path& file) {
    CheckpointWriter writer(file);
    const std::vector<float> weight = {1.5f, -2.0f, 0.0f, std::nanf(""), 1e-40f, 3.0f};
    writer.tensor("parameters/blocks.0.attention.query.weight", "float32", Shape{2, 3}, weight.data());
    const std::vector<std::uint16_t> halves = {0x3f80, 0xbf80};
    writer.tensor("parameters/embedding.weight", "bfloat16", Shape{2}, halves.data());
    writer.text("config", "model:\n  n_layers: 2\n");
    writer.integer("trainer/step", 1234);
    writer.number("trainer/validation_loss", 0.1);
    writer.finish();
  }
  // Returns the message of the UserError that opening throws. Fails the test if there is none, or if it is not one line
  // that names the file.
  static std::string refusal(const fs::path& file) {
    const std::string message = message_of<UserError>([&] { CheckpointReader::open(file); });
    EXPECT_THAT(message, ::testing::StartsWith(file.string() + ": "));
    return message;
  }
  const fs::path path_ = folder_ / "step_00000001.h5";
};

}  // namespace furlong::testing
