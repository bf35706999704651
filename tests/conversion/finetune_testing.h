#pragma once
// A teacher that trains within seconds, and the config of a student.
#include "conversion/finetune.h"
#include "tests/trainers/training.h"
#include "trainers/train/train.h"

namespace furlong::testing {

/// Letters a to h: each follows from the one before it with probability 3/4, so a small model learns it within seconds.
inline std::string easy_text(std::size_t length) {
  std::string text = "a";
  for (std::size_t i = 1; i < length; ++i) {
    const std::uint32_t word = random_word({1, 0, random_stream("easy text")}, i);
    text.push_back(static_cast<char>(
        'a' + ((word & 3u) != 0 ? (3 * (text[i - 1] - 'a') + 1) % 8 : static_cast<int>(word >> 8) % 8)));
  }
  return text;
}

class FinetuneTest : public WithTemporaryFolder {
 protected:
  FinetuneTest() : store(write_store(path("tokens.h5"), easy_text(6000))) {
    LoadedSettings teacher = small_settings(store, {"run_directory=" + path("teacher"), "trainer.max_steps=150",
                                                    "model.norm=rmsnorm", "model.initializer_range=0.3"});
    train(teacher, {});
  }

  std::string config(const std::string& attention, const std::string& more = "") const {
    return file("student.yaml", "run_directory: " + path("run") +
                                    "\n"
                                    "device: cpu\n"
                                    "model:\n  attention: " +
                                    attention +
                                    "\n"
                                    "data: {dataset: " +
                                    store +
                                    ", sequence_length: 32, batch_size: 4}\n"
                                    "optimizer: {learning_rate: 0.003, weight_decay: 0}\n"
                                    "schedule: {warmup_steps: 3}\n"
                                    "trainer: {validate_every: 10, validation_batches: 3}\n"
                                    "log: {level: error, progress: none}\n"
                                    "finetune:\n"
                                    "  source: " +
                                    path("teacher") +
                                    "\n"
                                    "  stages: [attention_transfer, distillation, task]\n"
                                    "  lengths: [64, 128]\n"
                                    "  transfer: {max_steps: 30, learning_rate: 0.005}\n"
                                    "  distillation: {max_steps: 30, batch_size: 2}\n"
                                    "  task: {max_steps: 10, warmup_steps: 1, sequence_length: 64}\n" +
                                    more);
  }
  FinetuneOptions options(const std::string& file, std::vector<std::string> overrides = {}) const {
    FinetuneOptions result;
    result.config = file;
    result.overrides = std::move(overrides);
    return result;
  }

  static std::vector<float> floats(const CheckpointReader& checkpoint, const std::string& name) {
    std::vector<float> values(checkpoint.info(name).bytes / sizeof(float));
    checkpoint.read(name, values.data(), checkpoint.info(name).bytes);
    return values;
  }

  std::string store;
};

inline constexpr const char* performer_attention = "{mechanism: linear, feature_map: favor_positive, n_features: 16}";

}  // namespace furlong::testing
