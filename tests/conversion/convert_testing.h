#pragma once
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "conversion/convert.h"
#include "datasets/prepare/dataset_writer.h"
#include "datasets/tokenizers/tokenizer.h"
#include "tests/conversion/tiny_models.h"
#include "tests/temporary_folder.h"

namespace furlong::testing {

/// Converts tiny models in a folder of its own.
class ConvertTest : public WithTemporaryFolder {
 protected:
  /// Returns options for a model, written to the test's folder.
  ConvertOptions from(const TinyModel& model) {
    ConvertOptions options;
    options.source = model.write(folder_ / "source");
    options.destination = path("out.h5");
    options.overwrite = true;
    return options;
  }
  /// Writes random letters in documents of 11 tokens, with the tokenizer of every tiny model.
  ObservedBatches store() {
    const Vocabulary vocabulary = Vocabulary::of_tokenizer(load_tokenizer(letters_tokenizer(folder_ / "letters")));
    DatasetWriter writer(path("store.h5"), vocabulary, {});
    std::mt19937 random(5);
    for (int document = 0; document < 60; ++document) {
      std::vector<std::int32_t> ids{2};
      for (int i = 0; i < 9; ++i) ids.push_back(5 + static_cast<std::int32_t>(random() % 20));
      writer.append(std::span<const std::int32_t>(ids));
      writer.end_document();
    }
    writer.finish("{}");
    ObservedBatches batches;
    batches.store = path("store.h5");
    batches.split = Split::train;
    batches.batch_size = 4;
    batches.batches = 2;
    batches.sequence_length = 11;
    return batches;
  }
  std::string refused(const ConvertOptions& options) {
    const std::string message = message_of<UserError>([&] { convert(options); });
    EXPECT_FALSE(std::filesystem::exists(options.destination)) << message;
    return message;
  }
  Settings settings_of_result() { return open_source_model(path("out.h5")).model.settings; }
};

}  // namespace furlong::testing
