#pragma once
// What readers notice in their inputs that is valid, but probably not meant.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/token_table.h"

namespace furlong {

/// Returns whether the whole text is a finite decimal number.
bool is_decimal_number(std::string_view text);

/// Checks whether the first record of a table without named columns is its header. The evidence is that of the inputs
/// together; each can have a header.
class HeaderCheck {
 public:
  /// Starts an input; `name` identifies it in the warning.
  void begin_input(const std::string& name);
  /// Adds a record: its columns, its text, and the id of its class, or -1.
  void add(const std::vector<std::string>& columns, const std::string& text, std::int32_t label);
  /// Returns a warning, or "" if no first record seems to be a header. `labels` are the names of all classes.
  std::string warning(const std::vector<std::string>& labels) const;

 private:
  /// A column whose first value is a word.
  struct Column {
    std::size_t index = 0;
    std::string first;
    std::uint64_t numbers = 0;  // among the other values
  };
  /// Returns why the first record of the current input seems to be a header.
  std::string doubt_of_input() const;
  std::string warning_of(const std::string& doubt) const;

  std::string input_, text_;     // name; text of the first record
  std::vector<Column> words_;    // columns whose other values are numbers so far
  std::uint64_t n_records_ = 0;  // of the current input
  std::string warning_;          // of an earlier input
  std::string first_input_;
  std::vector<std::uint64_t> label_counts_;  // of each class, without the first records of later inputs
};

/// Counts records with the name of an earlier record. Remembers 64-bit hashes of at most 2^20 names, in 16 MiB.
class RepeatedNames {
 public:
  /// Adds the name of a record; `input` and `line` are its place.
  void add(std::string_view name, const std::string& input, std::uint64_t line);
  /// Returns a warning, or "" if all names differ.
  std::string warning() const;

 private:
  /// Adds a hash that is not 0. Returns whether it is known already.
  bool is_known(std::uint64_t hash);

  std::uint64_t seed_ = hash_seed();  // so that a file cannot choose names that collide
  std::vector<std::uint64_t> slots_;  // open addressing; 0: free; at most half are in use
  std::uint64_t n_names_ = 0, n_repeated_ = 0;
  std::string first_, place_;  // of the first repeated name
};

}  // namespace furlong
