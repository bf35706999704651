#pragma once
// Changes text before it is split: the "normalizer" of a tokenizer.json.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/json_view.h"
#include "datasets/tokenizers/text_growth.h"

namespace furlong {

/// A sequence of steps, each from text to text. Supported types: BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD,
/// Precompiled, Prepend, Replace, Sequence, Strip and StripAccents.
class Normalizer {
 public:
  Normalizer() = default;
  /// Throws UserError, naming the type, if a step is not supported.
  explicit Normalizer(const JsonView& json);

  /// Maps valid UTF-8 to valid UTF-8. Throws UserError if the text grows beyond the limit of TextGrowth.
  std::string apply(std::string text) const;
  /// Whether apply() returns its argument unchanged.
  bool empty() const { return steps_.empty(); }

  /// One step; maps text to text. Const calls are thread-safe.
  class Step {
   public:
    virtual ~Step() = default;
    /// A step that can multiply the length of a text checks `growth` while it runs.
    virtual std::string apply(std::string text, const TextGrowth& growth) const = 0;
  };

 private:
  void add(const JsonView& json);
  std::string name_;
  std::vector<std::shared_ptr<const Step>> steps_;
};

}  // namespace furlong
