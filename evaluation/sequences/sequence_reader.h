#pragma once
// Sequences out of text, FASTA, tables and JSON lines, as a model wants them: what furlong embed, furlong score
// and furlong predict read.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "datasets/prepare/document_readers.h"
#include "datasets/vocabulary.h"

namespace furlong {

struct SequenceInput {
  enum class Format { automatic, text, fasta, tsv, csv, jsonl };
  std::vector<std::string> paths = {};  ///< plain, gzip, xz or zstd; "-" is standard input
  Format format = Format::automatic;    ///< automatic: by the name of each input, text where it names no format
  DocumentSeparator separator = DocumentSeparator::line;  ///< of text
  std::string text_field = {};                            ///< of tables and JSON lines; empty: column 1, key "text"
  std::string id_field = {};                              ///< of tables and JSON lines; empty: none
  bool map_unknown = false;  ///< a letter that the alphabet lacks is read as the unknown one
};

/// Returns how an input is read: its name decides if the format is automatic.
SequenceInput::Format format_of_input(const SequenceInput& input, const std::string& path);

/// The tokens that stand around each sequence, and are no part of it.
struct SequenceFrame {
  std::vector<std::int32_t> front, back;
};

/// One sequence, with its frame.
struct Sequence {
  std::uint64_t number = 0;  ///< from 1, over all inputs, empty sequences counted
  std::string id;            ///< of FASTA the first word of the header, of records the id field; else the number
  std::vector<std::int32_t> tokens;
  std::size_t n_back = 0;  ///< tokens of the frame at its end; fewer than of others if it is cut (cut_tokens)
};

/// Called as work proceeds, with the share of it that is done, 0 to 1.
using ShareDone = std::function<void(double)>;

/// What is computed from sequences. They come in the order of the input, a window of them at a time.
class SequenceWork {
 public:
  virtual ~SequenceWork() = default;
  /// Calls `done` after each batch.
  virtual void window(const std::vector<Sequence>& sequences, const ShareDone& done) = 0;
  /// One long sequence in pieces, each of `long_tokens` tokens but the last, which may have more or fewer; only where
  /// ReadOptions::long_tokens is not 0.
  virtual void begin_long(const Sequence& /*without_tokens*/) {}
  virtual void extend_long(std::span<const std::int32_t> /*tokens*/) {}
  virtual void end_long() {}
};

struct ReadOptions {
  std::int64_t window_tokens = 1 << 17;  ///< sequences are collected up to this sum of tokens
  std::int64_t long_tokens = 0;          ///< a sequence that becomes longer goes through in pieces; 0: never
  std::int64_t max_tokens = 0;           ///< a sequence that becomes longer, its frame included, is an error; 0: any
  std::int64_t cut_tokens = 0;           ///< only the first ones of a longer sequence, with its frame, are kept; 0: all
  std::int64_t trained_tokens = 0;       ///< longer sequences, frame included, are counted as `longer`; 0: none
  bool keep_empty = false;               ///< empty sequences are in their window, without tokens
  SequenceFrame frame;                   ///< stands around each sequence; a tokenizer's own frame is put there once
  /// Called as blocks of input are read and as windows are computed. bytes: of all inputs, compressed as they are,
  /// whose sequences are done, about; sequences: those done, about.
  std::function<void(std::uint64_t bytes, std::uint64_t sequences)> progress;
};

struct ReadSummary {
  std::uint64_t sequences = 0;   ///< without the empty ones
  std::uint64_t empty = 0;       ///< empty sequences, which are left out
  std::uint64_t tokens = 0;      ///< frames included
  std::uint64_t mapped = 0;      ///< letters that were read as the unknown one
  std::uint64_t unknown = 0;     ///< unknown tokens of a tokenizer
  TextCount ignored;             ///< characters that a tokenizer leaves out
  TextCount untrained;           ///< scored tokens that training left out of its loss; only score() counts them
  std::uint64_t not_finite = 0;  ///< sequences with results that are no finite numbers
  std::uint64_t not_finite_mutations = 0;  ///< likewise, in score_mutations()
  std::uint64_t untrained_mutations = 0;   ///< from or to such tokens; only score_mutations() counts them
  std::uint64_t cut = 0;                   ///< sequences of which only the first `cut_tokens` were kept
  std::int64_t cut_tokens = 0;             ///< of ReadOptions
  std::uint64_t longer = 0;                ///< sequences of more than `trained_tokens`
  std::uint64_t first_mutations = 0;       ///< of a first token without probability; only score_mutations() counts them
};

/// Reads all inputs in memory that their length does not change, and gives their sequences to `work`. Throws UserError
/// naming file, line and column of what is no letter of the vocabulary, the sequence that is too long, and inputs
/// without a sequence.
ReadSummary read_sequences(const SequenceInput& input, const Vocabulary& vocabulary, const ReadOptions& options,
                           SequenceWork& work);

/// Indices of sequences in batches: of similar length, each with at most `batch_tokens` tokens, padding included, or
/// with one sequence.
std::vector<std::vector<std::size_t>> batches_by_length(const std::vector<std::int64_t>& lengths,
                                                        std::int64_t batch_tokens);

/// Reports the share of the tokens of several sequences that batches have gone through.
class BatchProgress {
 public:
  BatchProgress(const std::vector<std::int64_t>& lengths, ShareDone done);
  void add(std::int64_t tokens);

 private:
  ShareDone done_;
  std::int64_t total_, passed_ = 0;
};

}  // namespace furlong
