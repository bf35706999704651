#include "datasets/tasks/recall_task.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <numeric>
#include <utility>

#include "datasets/tasks/copy_task.h"
#include "datasets/tasks/draws.h"
#include "framework/core/enum_names.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

constexpr std::size_t key_digits = 5;

/// The text of the passkey task as tokens.
struct PasskeyText {
  std::vector<std::int32_t> introduction, filler, needle, question;
  std::size_t answer = 0;  // tokens at the end of `question`
  std::size_t fixed() const { return introduction.size() + needle.size() + question.size(); }
};

PasskeyText passkey_text(const Vocabulary& vocabulary, const std::string& key) {
  PasskeyText text;
  text.introduction = vocabulary.encode(
      "There is important information hidden inside a lot of irrelevant text. Find it and memorize it.");
  text.filler =
      vocabulary.encode(" The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.");
  text.needle = vocabulary.encode(fmt::format(" The pass key is {0}. Remember it. {0} is the pass key.", key));
  const std::string question = " What is the pass key? The pass key is";
  text.question = vocabulary.encode(question + " " + key);
  // The tokens of the key are those that the question alone does not have, with the space if that is a token.
  const std::vector<std::int32_t> before = vocabulary.encode(question + " ");
  const auto [differs, ignored] =
      std::mismatch(text.question.begin(), text.question.end(), before.begin(), before.end());
  text.answer = static_cast<std::size_t>(text.question.end() - differs);
  return text;
}

/// One sequence. answers[i]: token i is an answer.
struct RecallSequence {
  std::vector<std::int32_t> tokens;
  std::vector<bool> answers;
};

class RecallTask : public BatchSource {
 public:
  RecallTask(const Vocabulary& vocabulary, const RecallOptions& options)
      : vocabulary_(vocabulary), options_(options), tokens_(recall_tokens(vocabulary, options.start)) {}

  std::uint64_t n_samples() const override {
    return options_.split == Split::train ? std::numeric_limits<std::int64_t>::max() : CopyTask::held_out_samples;
  }
  Batch batch(std::uint64_t first, std::int64_t samples) const override {
    return make_batch(first, samples, first + static_cast<std::uint64_t>(samples));
  }
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override {
    return make_batch(first, samples, n_samples());
  }

 private:
  Batch make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const {
    Batch made;
    made.batch = samples;
    made.n = options_.sequence_length;
    const auto n = static_cast<std::size_t>(made.n);
    made.inputs.assign(static_cast<std::size_t>(samples) * n, 0);
    made.targets.assign(made.inputs.size(), ignored_target);
    for (std::size_t row = 0; row < static_cast<std::size_t>(samples) && first + row < end; ++row) {
      const RecallSequence sequence = make_sequence(first + row);
      std::copy(sequence.tokens.begin(), sequence.tokens.end(),
                made.inputs.begin() + static_cast<std::ptrdiff_t>(row * n));
      for (std::size_t i = 1; i < n; ++i) {
        if (!sequence.answers[i]) continue;
        made.targets[row * n + i - 1] = sequence.tokens[i];
        ++made.n_targets;
      }
    }
    made.n_tokens = made.n_targets;
    return made;
  }

  RecallSequence make_sequence(std::uint64_t index) const {
    // The stream depends on task and split, so that those of one seed differ.
    const std::uint32_t split = static_cast<std::uint32_t>(Split::test) - static_cast<std::uint32_t>(options_.split);
    Draws draws({options_.seed + index * 0x9E3779B97F4A7C15u,
                 static_cast<std::uint32_t>(options_.pairs) + (split << 30), random_stream(name_of(options_.task))});
    const auto n = static_cast<std::size_t>(options_.sequence_length);
    RecallSequence made{std::vector<std::int32_t>(n, tokens_.start), std::vector<bool>(n)};
    switch (options_.task) {
      case Recall::associative:
        associate(draws, made);
        break;
      case Recall::passkey:
        hide_key(draws, made);
        break;
      default:
        induce(draws, made);
    }
    return made;
  }

  std::int32_t random_symbol(Draws& draws) const { return tokens_.symbols[draws.below(tokens_.symbols.size())]; }

  /// start, key value key value ..., random symbols with `key value` among them.
  void associate(Draws& draws, RecallSequence& made) const {
    const auto pairs = static_cast<std::size_t>(options_.pairs), n = made.tokens.size(), begin = 1 + 2 * pairs;
    std::vector<std::int32_t> symbols = tokens_.symbols;
    draws.shuffle(symbols, pairs);  // the first are the keys; the others are values and random symbols
    const auto other = [&] { return symbols[pairs + draws.below(symbols.size() - pairs)]; };
    std::vector<std::int32_t> values(pairs);
    for (std::size_t i = 0; i < pairs; ++i) {
      values[i] = other();
      made.tokens[1 + 2 * i] = symbols[i];
      made.tokens[2 + 2 * i] = values[i];
    }
    for (std::size_t i = begin; i < n; ++i) made.tokens[i] = other();
    std::vector<std::size_t> gaps(pairs), order(pairs);  // random symbols before each query
    for (std::size_t& gap : gaps) gap = draws.below(n - begin - 2 * pairs + 1);
    std::sort(gaps.begin(), gaps.end());
    std::iota(order.begin(), order.end(), std::size_t{0});
    draws.shuffle(order, pairs);
    for (std::size_t i = 0; i < pairs; ++i) {
      const std::size_t place = begin + gaps[i] + 2 * i;
      made.tokens[place] = symbols[order[i]];
      made.tokens[place + 1] = values[order[i]];
      made.answers[place + 1] = true;
    }
  }

  /// start, introduction, filler, needle, filler, question with its answer.
  void hide_key(Draws& draws, RecallSequence& made) const {
    std::string key;
    for (std::size_t i = 0; i < key_digits; ++i) key += static_cast<char>('0' + draws.below(10));
    const PasskeyText text = passkey_text(vocabulary_, key);
    const std::size_t n = made.tokens.size();
    require(text.fixed() < n, "a passkey of {} tokens in {}", text.fixed(), n);
    // The filler is cut at its start, so that it ends with a sentence before the question.
    const std::size_t filler = n - 1 - text.fixed(), period = text.filler.size(), cut = filler % period;
    const std::size_t depth = cut + period * draws.below(filler / period + 1);
    auto out = made.tokens.begin() + 1;
    const auto put = [&](const std::vector<std::int32_t>& ids) { out = std::copy(ids.begin(), ids.end(), out); };
    put(text.introduction);
    for (std::size_t i = 0; i <= filler; ++i) {
      if (i == depth) put(text.needle);
      if (i < filler) *out++ = text.filler[(i + period - cut) % period];
    }
    put(text.question);
    std::fill(made.answers.end() - static_cast<std::ptrdiff_t>(text.answer), made.answers.end(), true);
  }

  /// start, random symbols, some of them again, and the answer: the symbol that followed them.
  void induce(Draws& draws, RecallSequence& made) const {
    const std::size_t n = made.tokens.size(), length = trigger_length(n), body = n - 1 - length;  // end of the body
    for (std::size_t i = 1; i < body; ++i) made.tokens[i] = random_symbol(draws);
    const auto begin = made.tokens.begin();
    const auto at = [&](std::size_t i) { return begin + static_cast<std::ptrdiff_t>(i); };
    // Most places hold symbols that occur once; look for one of those.
    for (int attempt = 0; attempt < 100; ++attempt) {
      const std::size_t place = 1 + draws.below(body - 1 - length);
      std::copy(at(place), at(place + length), at(body));
      const auto first = std::search(at(1), made.tokens.end() - 1, at(place), at(place + length));
      const auto second = std::search(first + 1, made.tokens.end() - 1, at(place), at(place + length));
      made.tokens[n - 1] = made.tokens[place + length];
      if (first == at(place) && second == at(body)) break;
    }
    made.answers[n - 1] = true;
  }

  /// Returns the number of symbols that rarely occur twice by chance in n.
  std::size_t trigger_length(std::size_t n) const {
    std::size_t length = 1;
    for (double kinds = static_cast<double>(tokens_.symbols.size());
         kinds < 16.0 * static_cast<double>(n) && length < n / 4; kinds *= static_cast<double>(tokens_.symbols.size()))
      ++length;
    return length;
  }

  const Vocabulary& vocabulary_;
  RecallOptions options_;
  RecallTokens tokens_;
};

/// Returns whether a token of a tokenizer is a word of ASCII letters, after any spaces.
bool is_word_token(const Vocabulary& vocabulary, std::int32_t id) {
  const std::string text = vocabulary.decode({&id, 1});
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return text.size() - begin >= 2 &&
         std::all_of(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(),
                     [](unsigned char letter) { return letter < 128 && std::isalpha(letter); });
}

void choose_tokenizer_symbols(const Vocabulary& vocabulary, RecallTokens& found) {
  std::vector<std::int32_t> words;
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.is_data_symbol(id)) continue;
    found.symbols.push_back(id);
    if (is_word_token(vocabulary, id)) words.push_back(id);
  }
  if (words.size() >= 256) found.symbols = words;
  const std::vector<std::int32_t> line_end = vocabulary.encode("\n");
  found.separator = line_end.size() == 1 ? line_end[0] : vocabulary.document_id().value_or(found.symbols.back());
  std::erase(found.symbols, found.separator);
}

}  // namespace

RecallTokens recall_tokens(const Vocabulary& vocabulary, std::optional<std::int32_t> start) {
  RecallTokens found;
  const auto add = [&](std::int32_t first, std::int32_t end) {
    for (std::int32_t id = first; id < end; ++id) found.symbols.push_back(id);
  };
  switch (vocabulary.kind()) {
    case Vocabulary::Kind::tokenizer:
      choose_tokenizer_symbols(vocabulary, found);
      break;
    case Vocabulary::Kind::bytes:
      add('!', '~' + 1);
      found.separator = '\n';
      break;
    case Vocabulary::Kind::copy:
      add(0, vocabulary.n_data_symbols() - 2);
      found.separator = vocabulary.n_data_symbols() - 1;
      if (!start) start = vocabulary.n_data_symbols() - 2;  // the marker
      break;
    default:  // alphabets begin with their bases or residues
      add(0, vocabulary.kind() == Vocabulary::Kind::protein ? 20 : 4);
      found.separator = *vocabulary.unknown_id();
  }
  found.start = start.value_or(found.separator);
  std::erase(found.symbols, found.start);
  return found;
}

std::string recall_obstacle(const Vocabulary& vocabulary, const RecallOptions& options) {
  const std::int64_t n = options.sequence_length;
  if (n < 16 || n % 2 != 0) return fmt::format("a length of {}; expected an even number of at least 16", n);
  const std::int64_t symbols = std::ssize(recall_tokens(vocabulary, options.start).symbols);
  if (symbols < 2) return fmt::format("the vocabulary has {} symbols", symbols);
  if (options.task == Recall::associative) {
    if (options.pairs < 1) return "no pairs";
    if (symbols < 2 * options.pairs)
      return fmt::format("{} pairs need {} symbols; the vocabulary has {}", options.pairs, 2 * options.pairs, symbols);
    if (n < 1 + 4 * options.pairs) return fmt::format("{} pairs need {} tokens", options.pairs, 1 + 4 * options.pairs);
  }
  if (options.task == Recall::passkey) {
    if (!vocabulary.tokenizer() && vocabulary.kind() != Vocabulary::Kind::bytes)
      return fmt::format("the {} vocabulary has no text", vocabulary.kind_name());
    std::size_t needed = 0;  // keys of other digits can have other tokens
    for (const char digit : std::string_view("0123456789"))
      needed = std::max(needed, passkey_text(vocabulary, std::string(key_digits, digit)).fixed());
    needed += 1 + 3 * key_digits;
    if (n < static_cast<std::int64_t>(needed)) return fmt::format("the text needs {} tokens", needed);
  }
  return "";
}

std::unique_ptr<BatchSource> make_recall_task(const Vocabulary& vocabulary, const RecallOptions& options) {
  if (const std::string obstacle = recall_obstacle(vocabulary, options); !obstacle.empty())
    throw UserError("{}: {}", name_of(options.task), obstacle);
  if (options.task != Recall::copy) return std::make_unique<RecallTask>(vocabulary, options);
  const RecallTokens tokens = recall_tokens(vocabulary, options.start);
  std::vector<std::int32_t> ids = tokens.symbols;
  ids.insert(ids.end(), {tokens.start, tokens.separator});
  return std::make_unique<CopyTask>(CopyTaskOptions{.n_symbols = std::ssize(tokens.symbols),
                                                    .sequence_length = options.sequence_length,
                                                    .ids = std::move(ids),
                                                    .seed = options.seed,
                                                    .split = Split::test});
}

}  // namespace furlong
