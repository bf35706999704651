#include "datasets/prepare/prepare_task.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "datasets/prepare/provenance.h"
#include "framework/core/clock.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/io/atomic_file.h"

namespace furlong {
namespace {

// A block has about this many tokens (64 MiB), so that memory does not depend on the length of samples.
constexpr std::uint64_t tokens_per_block = std::uint64_t{1} << 24;
constexpr std::uint64_t first_block = 16, max_block = 1024;
constexpr double seconds_between_reports = 5;

DatasetWriterOptions task_writer_options(const PrepareTaskOptions& options) {
  const auto total = static_cast<double>(std::accumulate(options.samples.begin(), options.samples.end(), 0.0));
  DatasetWriterOptions made;
  made.split_by = DatasetWriterOptions::SplitBy::count;
  made.split_documents = options.samples;
  made.documents_per_label = 1;
  made.completed = options.completed;
  for (std::size_t split = 0; split < 3; ++split)
    made.shares.share[split] = static_cast<double>(options.samples[split]) / total;
  return made;
}

}  // namespace

void log_progress(const PrepareOptions::Progress& now) {
  log_info("prepare: {}: {:.1f} M tokens, {:.0f} s", now.input, static_cast<double>(now.n_tokens) * 1e-6, now.seconds);
}

nlohmann::ordered_json provenance_options(const LabeledTask& task, const std::array<std::uint64_t, 3>& samples) {
  nlohmann::ordered_json json{{"format", task.name()}};
  json.update(task.options());
  for (const Split split : all_splits)
    json["samples"][std::string(name_of(split))] = samples[static_cast<std::size_t>(split)];
  return json;
}

PrepareReport prepare_task(const LabeledTask& task, const PrepareTaskOptions& options) {
  const auto start = Clock::now();
  auto last_report = start;
  for (const Split split : all_splits) {
    if (options.samples[static_cast<std::size_t>(split)] == 0)
      throw UserError("--samples: the {} split has 0 samples; expected at least 1", name_of(split));
  }
  const Vocabulary vocabulary = task.vocabulary();
  DatasetWriter writer(std::make_unique<AtomicFile>(options.output, options.force), vocabulary,
                       task_writer_options(options));
  std::vector<LabeledSequence> block;
  std::uint64_t block_size = first_block, written = 0;
  for (const Split split : all_splits) {
    const std::uint64_t samples = options.samples[static_cast<std::size_t>(split)];
    for (std::uint64_t first = 0; first < samples; first += block.size()) {
      block.resize(static_cast<std::size_t>(std::min(samples - first, block_size)));
      parallel_tasks(std::ssize(block), [&](std::int64_t i) {
        block[static_cast<std::size_t>(i)] = task.sample(split, first + static_cast<std::uint64_t>(i));
      });
      for (const LabeledSequence& made : block) {
        writer.append(std::span(made.tokens));
        writer.end_document();
        writer.label(made.label);
      }
      written += block.size();
      block_size = std::clamp<std::uint64_t>(tokens_per_block * written / writer.n_tokens(), 1, max_block);
      if (!options.progress || seconds_since(last_report) < seconds_between_reports) continue;
      last_report = Clock::now();
      options.progress({task.name(), 0, writer.n_tokens(), seconds_since(start)});
    }
  }
  PrepareReport report;
  report.output = options.output;
  report.vocabulary = vocabulary.kind_name();
  if (vocabulary.tokenizer()) report.tokenizer = vocabulary.tokenizer()->kind();
  report.vocabulary_size = vocabulary.size();
  report.store = writer.finish(Provenance().text(provenance_options(task, options.samples)), task.labels());
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace furlong
