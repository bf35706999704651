#include "evaluation/mutations.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>

#include "evaluation/sequences/hidden_states.h"
#include "framework/core/printable.h"
#include "framework/core/shape.h"

namespace furlong {
namespace {

/// Keeps the only sequence of an input.
class OnlySequence : public SequenceWork {
 public:
  void window(const std::vector<Sequence>& sequences, const ShareDone& /*done*/) override {
    if (found_.number > 0 || sequences.size() > 1)
      throw UserError("--mutations: the input has several sequences; expected one, the wild type");
    found_ = sequences.front();
  }
  const Sequence& found() const { return found_; }

 private:
  Sequence found_;
};

/// A substitution in tokens: `place` counts them with the frame.
struct Exchange {
  std::size_t place;
  std::int32_t from, to;
};

/// Finds the substitutions of mutations in a sequence.
class Exchanges {
 public:
  Exchanges(const Model& model, const Sequence& sequence, const SequenceFrame& frame, std::string file)
      : vocabulary_(model.vocabulary), tokens_(sequence.tokens), frame_(frame), file_(std::move(file)) {
    if (vocabulary_.tokenizer()) spelling_ = spelling_of(without_frame(tokens_));
  }

  std::vector<Exchange> of(const Mutation& mutation) const {
    std::vector<Exchange> found;
    const std::string where = fmt::format("{}:{}: {}", file_, mutation.line, mutation.text);
    const std::int64_t length = std::ssize(tokens_) - std::ssize(frame_.front) - std::ssize(frame_.back);
    if (vocabulary_.tokenizer() && !spelling_) throw not_letters(where, "the sequence");
    for (const Substitution& one : mutation.substitutions) {
      if (one.position > length)
        throw UserError("{}: the sequence has {} positions; expected one of them, not {}", where, length, one.position);
      const std::size_t place = frame_.front.size() + at(one.position) - 1;
      const std::int32_t token = tokens_[place], from = id_of(one.from, where), to = id_of(one.to, where);
      if (token != from)
        throw UserError("{}: the sequence has {} at position {}; expected {}", where,
                        foreign::printable(vocabulary_.symbol(token)), one.position, one.from);
      found.push_back({place, from, to});
    }
    check_mutant(mutation, found, where);
    return found;
  }

 private:
  std::span<const std::int32_t> without_frame(std::span<const std::int32_t> tokens) const {
    return tokens.subspan(frame_.front.size(), tokens.size() - frame_.front.size() - frame_.back.size());
  }

  /// A text of letters, with a separator between them.
  struct Spelling {
    std::string letters;
    std::string_view separator;
    std::string text() const {
      std::string joined;
      for (const char letter : letters) (joined += joined.empty() ? "" : separator) += letter;
      return joined;
    }
  };

  /// Returns the text that a tokenizer reads as these tokens, one for each letter; nullopt if there is none.
  std::optional<Spelling> spelling_of(std::span<const std::int32_t> tokens) const {
    std::map<std::int32_t, char> letters;  // also of the token that begins a text, such as "▁M"
    for (const char letter : std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz*-.")) {
      const std::vector<std::int32_t> alone = vocabulary_.encode({&letter, 1});
      if (alone.size() == 1) letters.emplace(alone.front(), letter);
      try {
        letters.emplace(vocabulary_.id_of({&letter, 1}), letter);
      } catch (const UserError&) {  // no such token
      }
    }
    Spelling found;
    for (const std::int32_t token : tokens) {
      const auto letter = letters.find(token);
      if (letter == letters.end()) return std::nullopt;
      found.letters += letter->second;
    }
    for (const char* separator : {"", " "}) {
      found.separator = separator;
      if (std::ranges::equal(vocabulary_.encode(found.text()), tokens)) return found;
    }
    return std::nullopt;
  }

  UserError not_letters(const std::string& where, const char* of) const {
    return UserError(
        "{}: the {} does not read {} as one token for each letter, so tokens have no positions; compare "
        "furlong score of both sequences instead",
        where, vocabulary_.description(), of);
  }

  /// Throws UserError if a tokenizer reads the mutant as other tokens than those with the exchange: a new letter may
  /// merge with its neighbors.
  void check_mutant(const Mutation& mutation, const std::vector<Exchange>& exchanges, const std::string& where) const {
    if (!spelling_) return;
    Spelling mutant = *spelling_;
    std::vector<std::int32_t> tokens = tokens_;
    for (const Substitution& one : mutation.substitutions) mutant.letters[at(one.position) - 1] = one.to[0];
    for (const Exchange& one : exchanges) tokens[one.place] = one.to;
    if (!std::ranges::equal(vocabulary_.encode(mutant.text()), without_frame(tokens)))
      throw not_letters(where, "the mutant");
  }

  std::int32_t id_of(const std::string& letter, const std::string& where) const {
    if (const int id = vocabulary_.id_of_byte(static_cast<unsigned char>(letter[0])); id >= 0) return id;
    try {
      return vocabulary_.id_of(letter);
    } catch (const UserError&) {
      throw UserError("{}: '{}' is no token of the model's vocabulary ({}); expected a letter that it has", where,
                      letter, vocabulary_.description());
    }
  }

  const Vocabulary& vocabulary_;
  const std::vector<std::int32_t>& tokens_;
  const SequenceFrame& frame_;
  std::string file_;
  std::optional<Spelling> spelling_;  // of the sequence, with a tokenizer
};

/// log p of a token at a place of the sequence.
using Marginals = std::map<std::pair<std::size_t, std::int32_t>, double>;

/// The tokens that are asked for at each place.
std::map<std::size_t, std::set<std::int32_t>> wanted_tokens(const std::vector<std::vector<Exchange>>& mutations) {
  std::map<std::size_t, std::set<std::int32_t>> wanted;
  for (const auto& mutation : mutations)
    for (const Exchange& one : mutation) wanted[one.place].insert({one.from, one.to});
  return wanted;
}

Marginals marginals(Model& model, const std::vector<std::int32_t>& tokens,
                    const std::map<std::size_t, std::set<std::int32_t>>& wanted, bool masked, std::int64_t batch_tokens,
                    const ShareDone& done) {
  Marginals result;
  const std::int64_t n = std::ssize(tokens);
  // One row for all places, or one for each.
  const std::size_t rows_at_once = at(std::max<std::int64_t>(1, batch_tokens / n));
  BatchProgress progress(std::vector<std::int64_t>(masked ? wanted.size() : 1, n), done);
  for (auto next = wanted.begin(); next != wanted.end();) {
    std::vector<std::vector<std::int32_t>> copies;
    std::vector<std::pair<std::size_t, std::int32_t>> asked;
    std::vector<std::int32_t> places, targets;
    for (; next != wanted.end() && (!masked || copies.size() < rows_at_once); ++next) {
      if (masked || copies.empty()) copies.push_back(tokens);
      if (masked) copies.back()[next->first] = *model.vocabulary.mask_id();
      for (const std::int32_t token : next->second) {
        asked.emplace_back(next->first, token);
        places.push_back(static_cast<std::int32_t>((std::ssize(copies) - 1) * n + std::int64_t(next->first)));
        targets.push_back(token);
      }
    }
    ForwardPass pass(model);
    const std::vector<std::span<const std::int32_t>> rows(copies.begin(), copies.end());
    const std::vector<double> found = pass.log_probabilities(pass.gather(pass.hidden(rows), places), targets);
    for (std::size_t i = 0; i < found.size(); ++i) result[asked[i]] = found[i];
    progress.add(std::ssize(copies) * n);
  }
  return result;
}

double sum_of(const Marginals& marginals, const std::vector<Exchange>& mutation) {
  double sum = 0;
  for (const Exchange& one : mutation) sum += marginals.at({one.place, one.to}) - marginals.at({one.place, one.from});
  return sum;
}

/// Returns the number of mutations whose scores are not finite.
std::uint64_t score_masked_mutations(Model& model, const Sequence& sequence, const std::vector<Mutation>& mutations,
                                     const std::vector<std::vector<Exchange>>& exchanges, ScoreFile& output,
                                     std::int64_t batch_tokens, const ShareDone& done) {
  const auto wanted = wanted_tokens(exchanges);
  const Marginals hidden = marginals(model, sequence.tokens, wanted, true, batch_tokens, done),
                  seen = marginals(model, sequence.tokens, wanted, false, batch_tokens, {});
  std::uint64_t not_finite = 0;
  for (std::size_t i = 0; i < mutations.size(); ++i) {
    const double masked = sum_of(hidden, exchanges[i]), wild_type = sum_of(seen, exchanges[i]);
    not_finite += !std::isfinite(masked) || !std::isfinite(wild_type);
    output.row("mutation", mutations[i].text, {"masked_marginal", "wild_type_marginal"}, {masked, wild_type});
  }
  return not_finite;
}

/// Returns the number of mutations whose scores are not finite.
std::uint64_t score_causal_mutations(Model& model, const Sequence& sequence, const std::vector<Mutation>& mutations,
                                     const std::vector<std::vector<Exchange>>& exchanges, const SequenceFrame& frame,
                                     ScoreFile& output, std::int64_t batch_tokens, const ShareDone& done) {
  const auto log_likelihoods = [&](const std::vector<Sequence>& sequences, const ShareDone& share_done) {
    std::vector<double> sums;
    for (const auto& tokens : token_log_probabilities(model, sequences, frame, batch_tokens, share_done))
      sums.push_back(std::accumulate(tokens.begin(), tokens.end(), 0.0));
    return sums;
  };
  std::uint64_t not_finite = 0;
  const double wild_type = log_likelihoods({sequence}, {}).front();
  const std::size_t at_once = at(std::max<std::int64_t>(1, 16 * batch_tokens / std::ssize(sequence.tokens)));
  for (std::size_t begin = 0; begin < mutations.size(); begin += at_once) {
    std::vector<Sequence> mutants;
    for (std::size_t i = begin; i < std::min(begin + at_once, mutations.size()); ++i) {
      mutants.push_back(sequence);
      for (const Exchange& one : exchanges[i]) mutants.back().tokens[one.place] = one.to;
    }
    const std::vector<double> sums = log_likelihoods(mutants, [&](double share) {
      const double scored = static_cast<double>(begin) + share * static_cast<double>(mutants.size());
      if (done) done(scored / static_cast<double>(mutations.size()));
    });
    for (std::size_t i = 0; i < sums.size(); ++i) {
      not_finite += !std::isfinite(sums[i] - wild_type);
      output.row("mutation", mutations[begin + i].text, {"log_likelihood_ratio"}, {sums[i] - wild_type});
    }
  }
  return not_finite;
}

/// The number of mutations from or to tokens that training left out of its loss.
std::uint64_t count_untrained(const Model& model, const std::vector<std::vector<Exchange>>& mutations) {
  std::set<std::int32_t> untrained;
  for (const std::string& symbol : model.settings.data.ignore_tokens) untrained.insert(model.vocabulary.id_of(symbol));
  const auto count = std::count_if(mutations.begin(), mutations.end(), [&](const std::vector<Exchange>& mutation) {
    return std::any_of(mutation.begin(), mutation.end(),
                       [&](const Exchange& one) { return untrained.contains(one.from) || untrained.contains(one.to); });
  });
  return static_cast<std::uint64_t>(count);
}

}  // namespace

ReadSummary score_mutations(Model& model, const SequenceInput& input, const std::filesystem::path& path,
                            ScoreFile& output, const ScoreOptions& options, const ShareDone& done) {
  const SequenceFrame frame = scoring_frame(model, options.start);
  const std::vector<Mutation> mutations = read_mutations(path);
  OnlySequence only;
  ReadOptions read;
  read.max_tokens = longest_sequence(model);
  read.trained_tokens = longest_trained(model);
  read.frame = frame;
  ReadSummary summary = read_sequences(input, model.vocabulary, read, only);
  const Exchanges exchanges(model, only.found(), frame, path.string());
  std::vector<std::vector<Exchange>> found;
  for (const Mutation& mutation : mutations) found.push_back(exchanges.of(mutation));
  summary.untrained_mutations = count_untrained(model, found);
  if (model.decoder && frame.front.empty()) {
    if (only.found().tokens.size() < 2)
      throw UserError(
          "--mutations: the sequence has one token with nothing before it, so no token is predicted; add "
          "--start TOKEN, or give a longer sequence");
    summary.first_mutations = static_cast<std::uint64_t>(std::count_if(found.begin(), found.end(), [](const auto& one) {
      return std::any_of(one.begin(), one.end(), [](const Exchange& exchange) { return exchange.place == 0; });
    }));
  }
  summary.not_finite_mutations =
      model.decoder
          ? score_causal_mutations(model, only.found(), mutations, found, frame, output, options.batch_tokens, done)
          : score_masked_mutations(model, only.found(), mutations, found, output, options.batch_tokens, done);
  output.finish();
  return summary;
}

}  // namespace furlong
