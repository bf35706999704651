#include "evaluation/measures/token_labels.h"

namespace furlong {

LabelDecisions TokenLabelCounts::decisions(std::size_t label) const {
  LabelDecisions of;
  of.true_positives = counts_[label * n_ + label];
  for (std::size_t other = 0; other < n_; ++other) {
    if (other == label) continue;
    of.false_positives += counts_[other * n_ + label];
    of.false_negatives += counts_[label * n_ + other];
  }
  return of;
}

double TokenLabelCounts::f1_macro() const {
  double sum = 0, occurring = 0;
  for (std::size_t label = 0; label < n_; ++label) {
    const LabelDecisions of = decisions(label);
    if (of.true_positives + of.false_positives + of.false_negatives == 0) continue;
    sum += of.f1();
    ++occurring;
  }
  return occurring > 0 ? sum / occurring : 0;
}

}  // namespace furlong
