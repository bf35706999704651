#include "evaluation/token_rows.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <string>

#include "framework/core/printable.h"
#include "framework/core/shape.h"
#include "framework/io/atomic_file.h"
#include "framework/io/foreign_hdf5.h"
#include "framework/io/text_file.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

std::int32_t token_id(std::int64_t value, std::int64_t vocabulary_size, const std::string& where) {
  if (value < 0 || value >= vocabulary_size)
    throw UserError("{}: found {}; expected a token id from 0 to {}", where, value, vocabulary_size - 1);
  return static_cast<std::int32_t>(value);
}

/// Reads int32, int64 or unsigned integers.
std::vector<std::int64_t> integers_of(const hdf5::ForeignDataset& dataset) {
  const auto count = static_cast<std::size_t>(hdf5::n_elements(dataset.shape()));
  const auto as = [&]<class T>(T) {
    std::vector<T> values(count);
    dataset.read(values.data(), values.size() * sizeof(T));
    return std::vector<std::int64_t>(values.begin(), values.end());
  };
  switch (dataset.type()) {
    case hdf5::Type::u8:
      return as(std::uint8_t{});
    case hdf5::Type::u16:
      return as(std::uint16_t{});
    case hdf5::Type::u32:
      return as(std::uint32_t{});
    case hdf5::Type::u64: {
      std::vector<std::uint64_t> values(count);
      dataset.read(values.data(), values.size() * sizeof(std::uint64_t));
      std::vector<std::int64_t> clamped;
      for (const std::uint64_t value : values)
        clamped.push_back(
            static_cast<std::int64_t>(std::min(value, std::uint64_t{std::numeric_limits<std::int64_t>::max()})));
      return clamped;
    }
    case hdf5::Type::i32:
      return as(std::int32_t{});
    case hdf5::Type::i64:
      return as(std::int64_t{});
    default:
      throw UserError("{}: HDF5 dataset {} has type {}; expected int32, int64 or unsigned integers",
                      dataset.file_name(), dataset.path(), hdf5::name_of(dataset.type()));
  }
}

TokenRows rows_of_hdf5(const fs::path& path, std::int64_t vocabulary_size) {
  const auto file = hdf5::ForeignFile::open(path.string());
  const hdf5::ForeignDataset tokens = file->dataset("tokens");
  if (tokens.shape().size() != 2 || hdf5::n_elements(tokens.shape()) == 0)
    throw UserError("{}: HDF5 dataset tokens: found shape [{}]; expected [rows, n], not empty", path.string(),
                    fmt::join(tokens.shape(), ", "));
  TokenRows rows;
  const auto count = static_cast<std::int64_t>(tokens.shape()[0]);
  rows.n = static_cast<std::int64_t>(tokens.shape()[1]);
  rows.lengths.assign(at(count), rows.n);
  if (file->has("lengths")) {
    rows.lengths = integers_of(file->dataset("lengths"));
    if (rows.rows() != count)
      throw UserError("{}: HDF5 dataset lengths: found {} numbers; expected {}, one for each row of tokens",
                      path.string(), rows.rows(), count);
    const auto wrong = std::find_if(rows.lengths.begin(), rows.lengths.end(),
                                    [&](std::int64_t length) { return length < 1 || length > rows.n; });
    if (wrong != rows.lengths.end())
      throw UserError("{}: HDF5 dataset lengths[{}]: found {}; expected 1 to {}", path.string(),
                      wrong - rows.lengths.begin(), *wrong, rows.n);
  }
  const std::string where = path.string() + ": HDF5 dataset tokens";
  for (const std::int64_t value : integers_of(tokens)) rows.tokens.push_back(token_id(value, vocabulary_size, where));
  if (!file->has("segments")) return rows;
  const hdf5::ForeignDataset segments = file->dataset("segments");
  if (segments.shape() != tokens.shape())
    throw UserError("{}: HDF5 dataset segments: found shape [{}]; expected [{}], the shape of tokens", path.string(),
                    fmt::join(segments.shape(), ", "), fmt::join(tokens.shape(), ", "));
  for (const std::int64_t value : integers_of(segments))
    rows.segments.push_back(token_id(value, 1 << 20, path.string() + ": HDF5 dataset segments"));
  return rows;
}

TokenRows rows_of_text(const fs::path& path, std::int64_t vocabulary_size) {
  constexpr std::uint64_t max_bytes = 1 << 30, max_tokens = 1 << 26;  // with padding
  std::istringstream in(read_text_file(path, max_bytes));
  std::vector<std::vector<std::int32_t>> lines;
  std::string line;
  std::int64_t empty_line = 0;  // empty lines at the end are allowed
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    std::vector<std::int32_t> ids;
    for (const char *next = line.data(), *const end = next + line.size();;) {
      while (next != end && (*next == ' ' || *next == '\t' || *next == '\r' || *next == ',')) ++next;
      if (next == end) break;
      std::int64_t value = 0;
      const auto [last, error] = std::from_chars(next, end, value);
      if (error != std::errc{})
        throw UserError("{}:{}: found '{}'; expected token ids separated by spaces", path.string(), number,
                        foreign::printable(line.substr(at(next - line.data()), 20)));
      ids.push_back(token_id(value, vocabulary_size, fmt::format("{}:{}", path.string(), number)));
      next = last;
    }
    if (ids.empty()) {
      if (empty_line == 0) empty_line = number;
      continue;
    }
    if (empty_line > 0)
      throw UserError("{}:{}: the line is empty; expected token ids, because each row is a line", path.string(),
                      empty_line);
    lines.push_back(std::move(ids));
  }
  if (lines.empty()) throw UserError("{}: no token ids found; expected one row of ids per line", path.string());
  TokenRows rows;
  for (const auto& ids : lines) rows.n = std::max(rows.n, static_cast<std::int64_t>(ids.size()));
  if (lines.size() > max_tokens / at(rows.n))
    throw UserError("{}: {} rows, padded to the longest of {} ids, exceed {} ids; give rows of similar lengths",
                    path.string(), lines.size(), rows.n, max_tokens);
  for (const auto& ids : lines) {
    rows.lengths.push_back(static_cast<std::int64_t>(ids.size()));
    rows.tokens.insert(rows.tokens.end(), ids.begin(), ids.end());
    rows.tokens.resize(rows.lengths.size() * at(rows.n));
  }
  return rows;
}

}  // namespace

TokenRows read_token_rows(const fs::path& path, std::int64_t vocabulary_size) {
  if (path.extension() == ".h5" || path.extension() == ".hdf5") return rows_of_hdf5(path, vocabulary_size);
  return rows_of_text(path, vocabulary_size);
}

}  // namespace furlong
