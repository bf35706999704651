#pragma once
// What a tokenizer does to text before it splits it: the "normalizer" of a tokenizer.json.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/json_view.h"
#include "datasets/tokenizers/text_growth.h"

namespace furlong {

/// A row of steps, each text to text. Those read are BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, StripAccents,
/// Strip, Replace, Prepend and Sequence.
class Normalizer {
 public:
  Normalizer() = default;
  /// Throws UserError naming what is not supported.
  explicit Normalizer(const JsonView& json);

  /// Valid UTF-8 to valid UTF-8. Throws UserError where that grows beyond TextGrowth.
  std::string apply(std::string text) const;
  /// Whether apply() gives back what it is given.
  bool empty() const { return steps_.empty(); }

  class Step {
   public:
    virtual ~Step() = default;
    /// One that may make much more of a text checks on the way.
    virtual std::string apply(std::string text, const TextGrowth& growth) const = 0;
  };

 private:
  void add(const JsonView& json);
  std::string name_;
  std::vector<std::shared_ptr<const Step>> steps_;
};

}  // namespace furlong
