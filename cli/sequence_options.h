#pragma once
// What furlong embed, furlong score and furlong predict share: the model, and how sequences are read.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "evaluation/sequences/sequence_reader.h"
#include "framework/core/clock.h"
#include "trainers/model/model.h"

namespace furlong::command_line {

struct SequenceOptions {
  std::string model, architecture, device = "auto", weights = "ema";
  std::int64_t threads = 0;
  SequenceInput input;
  Option separator;
};

/// MODEL and INPUT...
void add_model_and_inputs(Command command, SequenceOptions& options);
/// How inputs are read, which weights are taken, where they are computed with.
void add_reading_options(Command command, SequenceOptions& options);

/// Opens a run directory, a checkpoint, or a model of another program (a Hugging Face directory, GGUF) on the device.
/// Throws UserError for a given option that has no effect on the model or the inputs.
Model open_model(const SequenceOptions& options);

/// Throws UserError for an output that is also an input or the checkpoint.
void refuse_input_as_output(const SequenceOptions& options, const std::filesystem::path& output);

/// How far a command has come, on standard error: a line that rewrites itself on a terminal, a log line every 10 s
/// elsewhere.
class SequenceProgress {
 public:
  SequenceProgress(const std::string& command, const std::vector<std::string>& inputs);
  ~SequenceProgress();
  /// Of the inputs.
  void operator()(std::uint64_t bytes, std::uint64_t sequences);
  /// Of other work.
  void operator()(double share);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Logs what of the input was empty or unknown. `empty_are`: what the output has instead of empty sequences.
void report_reading(const ReadSummary& summary, const char* empty_are = "left out");
/// Prints how many sequences of the input `output` has, and the tokens per second since `start`.
void print_throughput(const std::filesystem::path& output, const ReadSummary& summary, Clock::time_point start);

}  // namespace furlong::command_line
