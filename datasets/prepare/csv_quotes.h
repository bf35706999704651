#pragma once

namespace furlong {

/// The quotes of one record of CSV (RFC 4180), byte by byte. A quote opens at the start of a field only; elsewhere in a
/// field without quotes it is text. Inside quotes, two quotes stand for one. Text after a closing quote is stray.
class CsvQuotes {
 public:
  enum class Part { text, separator, quote, stray };
  Part take(char byte) {
    if (state_ == State::quoted) {
      if (byte != '"') return Part::text;
      state_ = State::quote_in_quotes;
      return Part::quote;
    }
    if (byte == '"' && state_ == State::quote_in_quotes) {
      state_ = State::quoted;
      return Part::text;
    }
    if (byte == '"' && state_ == State::field_start) {
      state_ = State::quoted;
      return Part::quote;
    }
    const bool stray = state_ == State::quote_in_quotes && byte != ',';
    state_ = byte == ',' ? State::field_start : State::plain;
    return stray ? Part::stray : byte == ',' ? Part::separator : Part::text;
  }
  /// Whether a line break here is part of the text.
  bool is_open() const { return state_ == State::quoted; }

 private:
  enum class State { field_start, plain, quoted, quote_in_quotes };
  State state_ = State::field_start;
};

}  // namespace furlong
