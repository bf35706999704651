// An HDF5 input of `furlong attend` or `furlong logits`. The last byte chooses the command. The confined child process
// reads the file, so its coverage is invisible; its errors guide the mutations instead.
#include <pthread.h>

#include <cctype>

#include "evaluation/token_rows.h"
#include "framework/io/foreign_hdf5.h"
#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;

#ifdef FURLONG_FUZZ
#include <sanitizer/common_interface_defs.h>
/// A crash of the child is expected, and no finding.
[[maybe_unused]] static const int at_fork =
    pthread_atfork(nullptr, nullptr, [] { __sanitizer_set_death_callback(nullptr); });
#endif

namespace {

/// libFuzzer counts a change of these bytes as new coverage.
[[gnu::section("__libfuzzer_extra_counters")]] std::uint8_t outcomes[4096];

/// Counts an error by its text without numbers.
void count(std::string_view message) {
  std::size_t hash = 0;
  for (const char letter : message) {
    if (std::isdigit(static_cast<unsigned char>(letter)) == 0) hash = hash * 31 + static_cast<unsigned char>(letter);
  }
  outcomes[hash % std::size(outcomes)] = 1;
}

/// Reads every dataset, as `furlong attend` does with those that it knows.
void read_datasets(const std::string& path) {
  const auto file = furlong::hdf5::ForeignFile::open(path);
  for (const furlong::hdf5::Group::Member& member : file->members()) {
    fuzzing::succeeds([&] {
      try {
        const furlong::hdf5::ForeignDataset dataset = file->dataset(member.name);
        std::vector<char> values(furlong::hdf5::n_elements(dataset.shape()) * furlong::hdf5::size_of(dataset.type()));
        dataset.read(values.data(), values.size());
      } catch (const furlong::UserError& failure) {
        count(failure.what());
        throw;
      }
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool is_logits = data[size - 1] % 2 == 1;
  const std::string path = fuzzing::write_input("in.h5", fuzzing::text_of(data, size - 1));
  fuzzing::succeeds([&] {
    try {
      if (!is_logits) return read_datasets(path);
      const furlong::TokenRows rows = furlong::read_token_rows(path, 100);
      fuzzing::expect(static_cast<std::int64_t>(rows.tokens.size()) == rows.rows() * rows.n, "wrong number of tokens");
    } catch (const furlong::UserError& error) {
      count(error.what());
      throw;
    }
  });
  return 0;
}
