#include "datasets/tokenizers/train_tokenizer.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <charconv>
#include <memory>
#include <unordered_map>

#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/provenance.h"
#include "framework/core/clock.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"

namespace furlong {
namespace {

constexpr std::size_t longest_line = 1024;  // bytes; a sample of 500,000 lines has at most 512 MB
constexpr std::uint32_t sample_seed = 1;

/// Gives SentencePiece the lines of all inputs, without line ends and empty lines.
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& inputs) : inputs_(inputs) { Next(); }

  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }
  std::uint64_t lines() const { return lines_; }
  std::uint64_t bytes() const { return bytes_; }

  void Next() override {
    do {
      if (!next_line()) {
        done_ = true;
        return;
      }
    } while (line_.empty());
    ++lines_;
  }

 private:
  /// Moves the next line, or the first part of a long one, to line_. Returns false at the end of the last input.
  bool next_line() {
    while (true) {
      const std::string_view near = std::string_view(rest_).substr(begin_, longest_line + 1);
      const std::size_t length = near.find('\n');
      if (length != std::string_view::npos) {
        take(begin_ + length, 1);
        return true;
      }
      if (near.size() > longest_line) {
        take(end_of_part(), 0);
        return true;
      }
      if (!read_more()) break;
    }
    return false;
  }

  void take(std::size_t end, std::size_t separator) {
    line_.assign(rest_, begin_, end - begin_);
    begin_ = end + separator;
  }

  /// A long line is cut before a space, otherwise between two characters.
  std::size_t end_of_part() const {
    const std::size_t space = std::string_view(rest_).substr(begin_, longest_line + 1).rfind(' ');
    if (space != std::string_view::npos && space > 0) return begin_ + space;
    std::size_t end = begin_ + longest_line;
    while (end > begin_ + 1 && (static_cast<unsigned char>(rest_[end]) & 0xC0) == 0x80) --end;
    return end;
  }

  /// Appends a block to rest_, and a line end after each input. Returns false after the last one.
  bool read_more() {
    rest_.erase(0, begin_);
    begin_ = 0;
    if (!source_) {
      if (next_input_ == inputs_.size()) return false;
      source_ = std::make_unique<ByteSource>(inputs_[next_input_++]);
      log_debug("prepare tokenizer: reading {}", source_->name());
    }
    std::vector<char> block(std::size_t{1} << 20);
    const std::size_t count = source_->read(block.data(), block.size());
    rest_.append(block.data(), count);
    bytes_ += count;
    if (count > 0) return true;
    source_.reset();
    rest_ += '\n';
    return true;
  }

  const std::vector<std::string>& inputs_;
  std::size_t next_input_ = 0;
  std::unique_ptr<ByteSource> source_;
  std::string rest_, line_;
  std::size_t begin_ = 0;  // of what is not yet returned, in rest_
  std::uint64_t lines_ = 0, bytes_ = 0;
  bool done_ = false;
};

std::unordered_map<std::string, std::string> trainer_options(const TrainTokenizerOptions& options) {
  return {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(options.vocabulary_size)},
      {"hard_vocab_limit", "false"},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"split_digits", "true"},
      {"input_sentence_size", "500000"},
      {"num_threads", "1"},  // stored in the model
      {"minloglevel", "2"},
  };
}

/// Throws UserError with SentencePiece's reason. A vocabulary too small for the characters of the text is the usual
/// one: "… smaller than required_chars. 300 vs 314. …".
[[noreturn]] void throw_refusal(std::int64_t vocabulary_size, const std::string& reason) {
  const std::size_t place = reason.find("required_chars. "), number = reason.find(" vs ", place);
  std::int64_t least = 0;
  if (place != std::string::npos && number != std::string::npos)
    std::from_chars(reason.data() + number + 4, reason.data() + reason.size(), least);
  if (least > vocabulary_size)
    throw UserError(
        "a vocabulary of {} tokens is too small for this text; expected at least {}, for its characters, the 256 bytes "
        "and 3 special tokens",
        vocabulary_size, least);
  throw UserError("SentencePiece cannot train a vocabulary of {} tokens on this text: {}", vocabulary_size,
                  foreign::single_line(reason));
}

}  // namespace

TrainTokenizerReport train_tokenizer(const TrainTokenizerOptions& options) {
  check_inputs(options.inputs, options.output);
  const auto begin = Clock::now();
  AtomicFile file(options.output, options.force);
  Lines lines(options.inputs);
  if (lines.done()) throw UserError("{}: contains no text to train a tokenizer on", options.inputs.front());
  sentencepiece::SetRandomGeneratorSeed(sample_seed);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(trainer_options(options), &lines, &model);
  if (!status.ok()) throw_refusal(options.vocabulary_size, status.ToString());
  sentencepiece::SentencePieceProcessor processor;
  require(processor.LoadFromSerializedProto(model).ok(), "SentencePiece cannot read the model that it trained");
  file.write(model);
  file.commit_last();
  return {processor.GetPieceSize(), lines.lines(), lines.bytes(), seconds_since(begin)};
}

}  // namespace furlong
