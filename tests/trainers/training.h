#pragma once
// Helpers for tests of training: small datasets, small settings, and comparison of checkpoints.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "framework/core/random.h"
#include "framework/io/checkpoint_file.h"
#include "tests/datasets/small_datasets.h"
#include "tests/temporary_folder.h"
#include "trainers/settings/settings.h"

namespace furlong::testing {

/// Letters a to h: each follows from the two before it with probability 3/4, so that there is something to learn.
inline std::string synthetic_text(std::size_t length, std::uint64_t seed = 1) {
  const RandomKey key{seed, 0, random_stream("synthetic text")};
  std::string text = "ab";
  for (std::size_t i = 2; i < length; ++i) {
    const std::uint32_t word = random_word(key, i);
    const int expected = (3 * (text[i - 2] - 'a') + 5 * (text[i - 1] - 'a') + 1) % 8;
    text.push_back(static_cast<char>('a' + ((word & 3u) != 0 ? expected : static_cast<int>(word >> 8) % 8)));
  }
  return text;
}

/// Writes a dataset of one document of bytes and returns its path.
inline std::string write_store(const std::string& path, std::string_view text,
                               const std::string& shares = "0.8,0.1,0.1") {
  return write_texts(path, {std::string(text)}, shares);
}

inline std::vector<std::string> with(std::vector<std::string> some, const std::vector<std::string>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

/// Settings of two narrow layers on windows of 32 tokens, changed by `overrides`.
inline LoadedSettings small_settings(const std::string& store, const std::vector<std::string>& overrides = {}) {
  const std::vector<std::string> defaults{"data.sequence_length=32",
                                          "data.batch_size=2",
                                          "model.n_layers=2",
                                          "model.d_model=16",
                                          "model.n_heads=2",
                                          "schedule.warmup_steps=4",
                                          "trainer.max_steps=24",
                                          "trainer.validate_every=0",
                                          "optimizer.learning_rate=0.01",
                                          "log.level=error",
                                          "log.progress=none",
                                          "device=cpu",
                                          "trainer.validation_batches=3"};
  return from_yaml_text("data:\n  dataset: " + store + "\n", "settings of the test", with(defaults, overrides));
}

/// Fails for each tensor that differs in any bit between two checkpoints, or that only one of them has.
inline void expect_equal_tensors(const std::filesystem::path& a, const std::filesystem::path& b) {
  const CheckpointReader first = CheckpointReader::open(a), second = CheckpointReader::open(b);
  const std::vector<TensorInfo> tensors = first.tensors();
  ASSERT_EQ(tensors.size(), second.tensors().size());
  ASSERT_GT(tensors.size(), 10u);
  for (const TensorInfo& info : tensors) {
    ASSERT_TRUE(second.has(info.name)) << info.name;
    ASSERT_EQ(info.bytes, second.info(info.name).bytes) << info.name;
    std::vector<char> of_first(info.bytes), of_second(info.bytes);
    first.read(info.name, of_first.data(), info.bytes);
    second.read(info.name, of_second.data(), info.bytes);
    EXPECT_EQ(of_first, of_second) << info.name;
  }
}

/// All tensors below `prefix`, one after another.
inline std::vector<float> floats_of(const std::filesystem::path& path, std::string_view prefix) {
  const CheckpointReader file = CheckpointReader::open(path);
  std::vector<float> all;
  for (const TensorInfo& info : file.tensors(prefix)) {
    const std::size_t begin = all.size();
    all.resize(begin + info.bytes / sizeof(float));
    file.read(info.name, all.data() + begin, info.bytes);
  }
  return all;
}

}  // namespace furlong::testing
