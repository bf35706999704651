#include "datasets/samplers/reverse_complement.h"

#include <algorithm>
#include <string>

#include "framework/core/error.h"
#include "framework/core/random.h"

namespace furlong {

ReverseComplement::ReverseComplement(const Vocabulary& vocabulary, std::uint64_t seed) : seed_(seed) {
  const bool rna = vocabulary.kind() == Vocabulary::Kind::rna;
  if (!rna && vocabulary.kind() != Vocabulary::Kind::dna)
    throw UserError("data.reverse_complement: the dataset has the vocabulary {}; expected dna or rna; set it to false",
                    vocabulary.description());
  // IUPAC codes and their complements: the code for the complements of all bases that it stands for.
  constexpr std::string_view letters = "ACGTRYSWKMBDHVN", opposite = "TGCAYRSWMKVHDBN";
  complements_.assign(static_cast<std::size_t>(vocabulary.size()), -1);
  const auto id = [&](char letter) {
    return vocabulary.id_of(std::string(1, rna && letter == 'T' ? 'U' : letter));
  };
  for (std::size_t i = 0; i < letters.size(); ++i)
    complements_[static_cast<std::size_t>(id(letters[i]))] = id(opposite[i]);
}

void ReverseComplement::apply(std::uint64_t index, std::span<std::int32_t> tokens,
                              std::span<const std::uint64_t> breaks, std::uint64_t origin) const {
  if (philox({seed_, 0, random_stream("reverse complement")}, index)[0] & 1) return;
  const auto complement = [&](std::size_t i) { return complements_[static_cast<std::size_t>(tokens[i])]; };
  auto next_break = breaks.begin();
  for (std::size_t begin = 0; begin < tokens.size();) {
    while (next_break != breaks.end() && *next_break <= origin + begin) ++next_break;
    const std::size_t limit =
        next_break == breaks.end() ? tokens.size() : std::min<std::size_t>(tokens.size(), *next_break - origin);
    std::size_t end = begin;
    for (; end < limit && complement(end) >= 0; ++end) tokens[end] = complement(end);
    std::ranges::reverse(tokens.subspan(begin, end - begin));
    begin = std::max(end, begin + 1);
  }
}

}  // namespace furlong
