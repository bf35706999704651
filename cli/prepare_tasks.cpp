// furlong prepare listops and pathfinder: generated datasets of Long Range Arena.
#include "cli/prepare_tasks.h"

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>

#include "cli/common_options.h"
#include "datasets/prepare/prepare_task.h"
#include "datasets/tasks/listops.h"
#include "datasets/tasks/pathfinder.h"
#include "framework/core/error.h"
#include "framework/core/parallel.h"
#include "framework/io/atomic_file.h"
#include "framework/io/interrupted_writes.h"
#include "framework/io/new_directories.h"

namespace furlong::command_line {
namespace {

struct TaskArguments {
  PrepareTaskOptions options;
  ListOpsOptions listops;
  std::vector<std::int64_t> samples;
  std::int64_t size = 32, threads = 0;
  std::uint64_t seed = 1;
  std::string pictures;
  std::int64_t n_pictures = 16;
  bool json = false;
};

void add_task_options(Command command, TaskArguments& arguments) {
  command.add_option("-o,--output", arguments.options.output, "Dataset to write (HDF5); appears only when complete")
      .required()
      .value_name("DATASET");
  command.add_option("--samples", arguments.samples, "Samples of train, validation and test")
      .shows_default()
      .separated_by(',')
      .value_name("N,N,N");
  command.add_option("--seed", arguments.seed, "Seed of the samples").shows_default();
  command.add_flag("--force", arguments.options.force, "Overwrite an existing output");
  add_threads(command, arguments.threads);
  add_json(command, arguments.json, "Print the report as one JSON object");
}

/// Calls `completed` when the dataset has its name.
void write_dataset(const LabeledTask& task, TaskArguments& arguments, const std::function<void()>& completed) {
  set_thread_count(static_cast<int>(arguments.threads));
  arguments.options.samples = samples_of_splits(arguments.samples);
  arguments.options.progress = log_progress;
  arguments.options.completed = [&] {
    try {
      completed();
    } catch (...) {  // without --force a failed command leaves nothing, so that it can be repeated
      std::error_code ignored;
      if (!arguments.options.force) std::filesystem::remove(arguments.options.output, ignored);
      throw;
    }
    output_is_complete();
  };
  const PrepareReport report = prepare_task(task, arguments.options);
  const std::string text = arguments.json ? to_json(report) : to_text(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

/// The first training images as PGM files, named by index and label.
class Pictures {
 public:
  static constexpr std::int64_t max_count = 32;  // all are open at once

  /// Writes them under temporary names.
  Pictures(const Pathfinder& task, const std::filesystem::path& folder, std::int64_t count, bool overwrite)
      : overwrite_(overwrite) {
    created_.create(folder);
    const std::int64_t size = task.shape().size;
    for (std::int64_t i = 0; i < count; ++i) {
      const LabeledSequence made = task.sample(Split::train, static_cast<std::uint64_t>(i));
      std::string text = fmt::format("P5\n{} {}\n255\n", size, size);
      for (const std::int32_t pixel : made.tokens) text += static_cast<char>(pixel);
      const std::string name = fmt::format("{:04}_{}.pgm", i, task.labels()[static_cast<std::size_t>(made.label)]);
      files_.push_back(std::make_unique<AtomicFile>(folder / name, overwrite));
      files_.back()->write(text);
      files_.back()->flush();
    }
  }
  /// Gives them their names. After a throw without `overwrite` there are none.
  void commit() {
    std::size_t done = 0;
    try {
      for (; done < files_.size(); ++done) files_[done]->commit();
    } catch (...) {
      std::error_code ignored;
      for (std::size_t i = 0; i < done && !overwrite_; ++i) std::filesystem::remove(files_[i]->path(), ignored);
      throw;
    }
  }

 private:
  bool overwrite_;
  NewDirectories created_;
  std::vector<std::unique_ptr<AtomicFile>> files_;
};

void add_listops(Command prepare_command) {
  const Command command = prepare_command.add_subcommand(
      "listops", "Generated expressions such as [MAX 2 9 [MIN 4 7 ] 0 ], labeled with their value, a digit");
  const auto arguments = std::make_shared<TaskArguments>();
  ListOpsOptions& listops = arguments->listops;
  arguments->samples.assign(ListOps::published_samples.begin(), ListOps::published_samples.end());
  add_task_options(command, *arguments);
  command.add_option("--min-length", listops.min_length, "Expressions have more tokens than this")
      .shows_default()
      .range(0, 1000000);
  command.add_option("--max-length", listops.max_length, "Expressions have fewer tokens than this")
      .shows_default()
      .range(1, 1000000);
  command.add_option("--max-depth", listops.max_depth, "Greatest depth of nested expressions")
      .shows_default()
      .range(1, 1000);
  command.add_option("--max-arguments", listops.max_arguments, "Most arguments of an operator")
      .shows_default()
      .range(2, 1000);
  command.footer(
      "Operators are MIN, MAX, MED (median, rounded down) and SM (sum modulo 10). An operator with its bracket is one "
      "token, as are ] and each digit. Defaults are those of Long Range Arena. docs/lra.md describes the task.");
  command.examples({
      "furlong prepare listops --output listops.h5",
      "furlong prepare listops --samples 2000,200,200 --min-length 10 --max-length 100 --output short.h5",
  });
  command.action([arguments] {
    arguments->listops.seed = arguments->seed;
    write_dataset(ListOps(arguments->listops), *arguments, [] {});
  });
}

void add_pathfinder(Command prepare_command) {
  const Command command = prepare_command.add_subcommand(
      "pathfinder", "Generated images with two dots, labeled by whether the dots are ends of one dashed path");
  const auto arguments = std::make_shared<TaskArguments>();
  arguments->samples.assign(Pathfinder::published_samples.begin(), Pathfinder::published_samples.end());
  add_task_options(command, *arguments);
  command.add_option("--size", arguments->size, "Width and height: 32, 64 or 128 (Path-X) pixels").shows_default();
  const Option pictures = command
                              .add_option("--pictures", arguments->pictures,
                                          "Also write the first training images to this folder, as PGM files named by "
                                          "number and label")
                              .value_name("DIR");
  command.add_option("--n-pictures", arguments->n_pictures, "Number of --pictures")
      .shows_default()
      .range(1, Pictures::max_count)
      .needs(pictures);
  command.footer(
      "An image is a sequence of gray values, row by row: 1,024 tokens at 32 x 32, 16,384 at 128 x 128. docs/lra.md "
      "describes the images.");
  command.examples({
      "furlong prepare pathfinder --output pathfinder.h5",
      "furlong prepare pathfinder --size 128 --samples 2000,200,200 --pictures pictures --output pathx.h5",
  });
  command.action([arguments] {
    const Pathfinder task(arguments->size, arguments->seed);
    samples_of_splits(arguments->samples);
    refuse_existing(arguments->options.output, arguments->options.force);
    std::optional<Pictures> made;  // first: a wrong folder fails before the work on the dataset
    if (!arguments->pictures.empty())
      made.emplace(task, arguments->pictures, arguments->n_pictures, arguments->options.force);
    write_dataset(task, *arguments, [&] {
      if (made) made->commit();
    });
  });
}

}  // namespace

std::array<std::uint64_t, 3> samples_of_splits(const std::vector<std::int64_t>& values) {
  if (values.size() != 3)
    throw UserError("--samples: found {} numbers; expected 3, for train, validation and test", values.size());
  std::array<std::uint64_t, 3> samples{};
  for (std::size_t split = 0; split < 3; ++split) {
    if (values[split] < 1 || values[split] > std::int64_t{1} << 32)
      throw UserError("--samples: found {} for {}; expected 1 to 2^32", values[split], name_of(all_splits[split]));
    samples[split] = static_cast<std::uint64_t>(values[split]);
  }
  return samples;
}

void add_prepare_tasks(Command prepare_command) {
  add_listops(prepare_command);
  add_pathfinder(prepare_command);
}

}  // namespace furlong::command_line
