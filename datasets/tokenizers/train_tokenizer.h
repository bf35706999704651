#pragma once
// Trains a tokenizer on the user's own text.
#include <cstdint>
#include <string>
#include <vector>

namespace furlong {

struct TrainTokenizerOptions {
  std::vector<std::string> inputs;  ///< plain, gzip, xz or zstd; "-" is standard input
  std::string output;               ///< the SentencePiece model to write
  std::int64_t vocabulary_size = 4096;
  bool force = false;  ///< replace an existing output
};

struct TrainTokenizerReport {
  std::int64_t vocabulary_size = 0;  ///< less than asked for if the text has no more pairs to merge
  std::uint64_t lines = 0, bytes = 0;
  double seconds = 0;
};

/// Trains byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) with SentencePiece (arXiv:1808.06226). Valid
/// UTF-8 decodes to itself, except U+2581, which becomes a space: there is no normalization, and characters outside the
/// vocabulary become bytes. Tokens do not cross line ends. Of more than 500,000 lines, a random sample of that size is
/// used, always the same; longer lines than 1 KiB count as several. Throws UserError if there is no text, or if the
/// vocabulary is too small for the text's characters; then no output is written.
TrainTokenizerReport train_tokenizer(const TrainTokenizerOptions& options);

}  // namespace furlong
