#pragma once
// Masked language modelling (Devlin et al. 2019, "BERT", section 3.1): some tokens of a window are chosen, hidden, and
// to be predicted.
#include <memory>
#include <string>
#include <vector>

#include "datasets/samplers/sampler.h"

namespace furlong {

struct MaskingOptions {
  double probability = 0.15;      ///< of a token to be chosen, each by itself and as a whole
  double mask_token_share = 0.8;  ///< of those chosen: shown as <mask>
  double random_token_share =
      0.1;  ///< of those chosen: shown as any symbol of the data; the others are shown as they are
  std::uint64_t seed = 0;
  std::string stream = "masking";  ///< names the random numbers
  std::vector<std::string>
      ignore_tokens;  ///< symbols that are never chosen, as <document> and a tokenizer's special tokens never are
};

/// Rows of a source with some tokens hidden; targets are what stood there, all others ignored. What happens to a token
/// is drawn from (seed, stream, sample, position) alone. As sample numbers of training only grow, no row is ever masked
/// the same way twice; those of a pass over a split are the same in every pass, whose masks are so too.
class MaskedSource : public BatchSource {
 public:
  /// `vocabulary` is the model's, with <mask>. Throws UserError for an ignored symbol that is not in it.
  MaskedSource(std::shared_ptr<const RowSource> rows, const Vocabulary& vocabulary, const MaskingOptions& options);
  MaskedSource(Sampler windows, const Vocabulary& vocabulary, const MaskingOptions& options);

  std::uint64_t n_samples() const override { return rows_->n_samples(); }
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  Batch batch_of_one_pass(std::uint64_t first, std::int64_t samples) const override;
  std::string note() const override { return rows_->note(); }

 private:
  Batch masked(Batch rows, std::uint64_t first, std::uint64_t end) const;

  std::shared_ptr<const RowSource> rows_;
  MaskingOptions options_;
  std::int32_t mask_id_;
  std::vector<bool> never_;                 // by token id
  std::vector<std::int32_t> data_symbols_;  // that a random token is one of
};

}  // namespace furlong
