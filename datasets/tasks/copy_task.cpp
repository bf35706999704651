#include "datasets/tasks/copy_task.h"

#include <limits>
#include <numeric>

#include "framework/core/error.h"
#include "framework/core/random.h"

namespace furlong {

CopyTask::CopyTask(const CopyTaskOptions& options) : options_(options) {
  const std::int64_t n = options.sequence_length, longest = n / 2 - 1;
  if (n < 4 || n % 2 != 0)
    throw UserError(
        "data.sequence_length: found {}, expected an even number of at least 4 for the copy task (marker, symbols, "
        "separator, symbols); use {}",
        n, n < 4 ? 4 : n + 1);
  if (options.min_copy_symbols < 0 || options.min_copy_symbols > longest)
    throw UserError("data.task_min_symbols: found {}; data.sequence_length: {} fits copies of 1 to {} symbols",
                    options.min_copy_symbols, n, longest);
  require(options.n_symbols >= 1 && (options.ids.empty() || std::ssize(options.ids) == options.n_symbols + 2),
          "a copy task over {} symbols with {} ids", options.n_symbols, options.ids.size());
}

std::uint64_t CopyTask::n_samples() const {
  return options_.split == Split::train ? std::numeric_limits<std::int64_t>::max() : held_out_samples;
}

void CopyTask::make_sample(std::uint64_t index, Batch& batch, std::int64_t row) const {
  const RandomKey key{options_.seed, static_cast<std::uint32_t>(options_.split), random_stream("copy task")};
  const auto longest = static_cast<std::uint64_t>(options_.sequence_length / 2 - 1);
  const auto symbols = static_cast<std::uint64_t>(options_.n_symbols);
  // Random word 0 of a sample determines its length, the others its symbols. The high half of a product is uniform up
  // to a bias of 2^-26.
  const std::uint64_t first_word = index * (longest + 1);
  const auto uniform = [&](std::uint64_t word, std::uint64_t below) {
    return random_word(key, first_word + word) * below >> 32;
  };
  const auto shortest = static_cast<std::uint64_t>(options_.min_copy_symbols);
  const std::uint64_t k = shortest == 0 ? longest : shortest + uniform(0, longest - shortest + 1);

  const auto id = [&](std::uint64_t number) {
    return options_.ids.empty() ? static_cast<std::int32_t>(number) : options_.ids[number];
  };
  const std::int32_t marker = id(symbols), separator = id(symbols + 1);
  const std::int64_t begin = row * options_.sequence_length;
  std::int32_t *inputs = batch.inputs.data() + begin, *targets = batch.targets.data() + begin;
  std::fill_n(inputs, options_.sequence_length, marker);
  inputs[k + 1] = separator;
  for (std::uint64_t i = 0; i < k; ++i) {
    const std::int32_t symbol = id(uniform(i + 1, symbols));
    inputs[1 + i] = symbol;
    inputs[k + 2 + i] = options_.hidden_as.value_or(symbol);
    targets[options_.hidden_as ? k + 2 + i : k + 1 + i] = symbol;
  }
  batch.n_targets += static_cast<std::int64_t>(k);
  batch.lengths[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(2 * k + 2);
}

Batch CopyTask::make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const {
  require(samples > 0, "a batch of {}", samples);
  Batch made;
  made.batch = samples;
  made.n = options_.sequence_length;
  const auto size = static_cast<std::size_t>(samples * made.n);
  made.inputs.assign(size, 0);
  made.targets.assign(size, ignored_target);
  made.lengths.assign(static_cast<std::size_t>(samples), 0);
  for (std::int64_t row = 0; row < samples && first + static_cast<std::uint64_t>(row) < end; ++row)
    make_sample(first + static_cast<std::uint64_t>(row), made, row);
  made.n_tokens =
      options_.hidden_as ? std::accumulate(made.lengths.begin(), made.lengths.end(), std::int64_t{0}) : made.n_targets;
  return made;
}

Batch CopyTask::batch(std::uint64_t first, std::int64_t samples) const {
  return make_batch(first, samples, std::numeric_limits<std::uint64_t>::max());
}
Batch CopyTask::single_pass_batch(std::uint64_t first, std::int64_t samples) const {
  return make_batch(first, samples, n_samples());
}

}  // namespace furlong
