#pragma once
// Masked language modeling (Devlin et al. 2019, "BERT", section 3.1): some tokens are selected, hidden and predicted.
#include <memory>
#include <string>
#include <vector>

#include "datasets/samplers/sampler.h"

namespace furlong {

/// Options of a MaskedSource.
struct MaskingOptions {
  double probability = 0.15;         ///< probability that a token is selected, independently of the others
  double mask_token_fraction = 0.8;  ///< fraction of selected tokens that are replaced by <mask>
  /// Fraction of selected tokens that are replaced by a random data symbol. The rest stay unchanged.
  double random_token_fraction = 0.1;
  std::uint64_t seed = 0;
  std::string stream = "masking";  ///< name of the random stream
  /// Symbols that are never selected. <document> and a tokenizer's special tokens never are.
  std::vector<std::string> ignore_tokens;
};

/// The rows of another source with some tokens hidden. The target of a selected token is the token itself; all other
/// targets are ignored. The mask depends only on (seed, stream, sample, position). Training samples have ever-growing
/// indices, so no training row is masked the same way twice. Each pass over an evaluation split has the same masks.
class MaskedSource : public BatchSource {
 public:
  /// `vocabulary` is the model's and must have <mask>; it is not referred to afterwards. Throws UserError if it lacks a
  /// symbol of ignore_tokens.
  MaskedSource(std::shared_ptr<const RowSource> rows, const Vocabulary& vocabulary, const MaskingOptions& options);
  /// The same for the windows of a Sampler.
  MaskedSource(Sampler windows, const Vocabulary& vocabulary, const MaskingOptions& options);

  // See BatchSource; `targets` are the hidden tokens.
  std::uint64_t n_samples() const override { return rows_->n_samples(); }
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override;
  std::string note() const override { return rows_->note(); }

 private:
  Batch masked(Batch rows, std::uint64_t first, std::uint64_t end) const;

  std::shared_ptr<const RowSource> rows_;
  MaskingOptions options_;
  std::int32_t mask_id_;
  std::vector<bool> excluded_;              // by token id
  std::vector<std::int32_t> data_symbols_;  // candidates for a random token
};

}  // namespace furlong
