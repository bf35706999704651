#include "conversion/recovery.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "conversion/attention_request.h"
#include "framework/core/arena.h"
#include "framework/core/clock.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/random.h"
#include "layers/attention/mechanism.h"
#include "trainers/model/weights.h"
#include "trainers/train/distillation/teacher.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool all_frozen(const Parameter&) { return true; }

/// Creates the student of `settings` with a checkpoint's weights.
Model student_from(const Settings& settings, const Dataset& data, const Device& device, const fs::path& checkpoint) {
  Model model = make_empty_model(settings, data.vocabulary(), device, std::nullopt, all_frozen);
  initialize_from(CheckpointReader::open(checkpoint), model);
  return model;
}

/// Returns the settings with the linear part alone in every hybrid.
Settings without_windows(Settings settings) {
  settings.model.attention.drops_softmax_window = true;
  return settings;
}

/// Measures a forward pass over random tokens. Repeats short passes and returns the fastest.
MeasuredLength::Pass measure_pass(Model& model, std::int64_t length) {
  constexpr int most_repetitions = 5;
  constexpr double enough_seconds = 1;
  MeasuredLength::Pass pass;
  const layers::ModelConfig& settings = model.settings.model;
  if (settings.position == layers::Position::learned && length > settings.max_sequence_length) {
    pass.failure = fmt::format("the model has {} learned positions", settings.max_sequence_length);
    return pass;
  }
  const Device device = model.store->device();
  const RandomKey key{static_cast<std::uint64_t>(model.settings.seed), 0,
                      random_stream("tokens of a speed measurement")};
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
  const auto symbols = static_cast<std::uint32_t>(std::max<std::int32_t>(model.vocabulary.n_data_symbols(), 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(random_word(key, i) % symbols);
  try {
    const Tensor input = Tensor::from(tokens, {1, length}, device);
    Arena& memory = arena(device);
    const std::int64_t before = memory.counters().bytes_in_use;
    memory.reset_peak();
    double total = 0;
    pass.seconds = HUGE_VAL;
    for (int i = 0; i < most_repetitions && total < enough_seconds; ++i) {
      const auto start = Clock::now();
      Tape tape(model.stream);
      const Tape::NoGradient guard(tape);
      layers::ForwardContext context{tape};
      const Variable hidden =
          model.decoder ? model.decoder->hidden(context, input) : model.encoder->hidden(context, input);
      synchronize(model.stream);
      const double seconds = seconds_since(start);
      pass.seconds = std::min(pass.seconds, seconds);
      total += seconds;
    }
    pass.peak_bytes = memory.counters().peak_bytes - before;
  } catch (const MachineError& error) {
    pass = {};
    pass.failure = error.what();
  }
  return pass;
}

class Measurement {
 public:
  Measurement(const Settings& settings, const fs::path& teacher, const std::function<void(const std::string&)>& report)
      : settings_(settings),
        device_(device_from_name(settings.device)),
        report_(report),
        data_(open_data(settings.data)) {
    split_ = measured_split(*data_);
    settings_.teacher = {};
    settings_.teacher.checkpoint = teacher;
    const Settings theirs =
        from_checkpoint_text(CheckpointReader::open(checkpoint_of(teacher)).text("config"), teacher.string()).settings;
    predicts_ = settings.objective.learns_labels() || has_output_layer(settings);
    comparable_ = predicts_ && !settings.data.stateful && theirs.objective.name == settings.objective.name;
    if (settings.data.stateful) {
      undefined_ = "teachers do not carry a recurrent state between segments (data.stateful)";
      return;
    }
    if (!predicts_) {
      undefined_ = "the models have no output layer";
    } else if (!comparable_) {
      undefined_ = fmt::format("the teacher's objective is {}, not {}", name_of(theirs.objective.name),
                               name_of(settings.objective.name));
    }
    const bool has_layers = !attention_transfer_layers(theirs, settings_).empty();
    settings_.teacher.loss = has_layers ? "attention_transfer" : "distillation";
    if (!has_layers && !comparable_) return;  // the two models cannot be compared
    teacher_.emplace(settings_, data_->vocabulary(), device_, std::nullopt);
    // The teacher is measured on the student's batches, whatever data it was trained on.
    Settings& own = teacher_->model().settings;
    own.seed = settings_.seed;
    own.data = settings_.data;
    if (comparable_) own.objective = settings_.objective;
  }

  std::optional<Recovery> run(const std::vector<Candidate>& students, const StopRequests& stop_requests) {
    Recovery recovery;
    recovery.data = data_->path();
    recovery.objective = name_of(settings_.objective.name);
    recovery.split = split_;
    recovery.sequence_length = settings_.data.sequence_length;
    const DataSettings& data = settings_.data;
    recovery.baseline = {.accuracy = NAN, .loss = NAN};
    if (predicts_)
      recovery.baseline = chance(settings_, model_vocabulary(settings_, data_->vocabulary()), *data_, split_,
                                 data.sequence_length, data.batch_size, settings_.finetune.evaluation_batches);
    recovery.undefined = undefined_;
    std::optional<Evaluation> teachers;
    if (teacher_ && comparable_) {
      report_("evaluating the teacher");
      teachers = evaluate_model(teacher_->model());
      recovery.undefined = undefined_recovery(*teachers, recovery.baseline);
      MeasuredModel teacher;
      teacher.candidate = {"teacher", checkpoint_of(settings_.teacher.checkpoint), 0, 0, 0};
      teacher.found = *teachers;
      recovery.models.push_back(std::move(teacher));
    }
    for (const Candidate& candidate : students) {
      if (stop_requests.received()) return std::nullopt;
      recovery.models.push_back(measure(candidate, teachers, recovery.baseline));
    }
    if (stop_requests.received()) return std::nullopt;
    if (!settings_.finetune.benchmark_lengths.empty()) measure_lengths(students.back(), recovery.lengths);
    return recovery;
  }

 private:
  /// Returns NaN for a model that has hidden states only.
  Evaluation evaluate_model(Model& model) const {
    if (!predicts_) return {.loss = NAN, .accuracy = NAN};
    const DataSettings& data = settings_.data;
    return evaluate(model, *data_, split_, data.sequence_length, data.batch_size,
                    settings_.finetune.evaluation_batches);
  }

  MeasuredModel measure(const Candidate& candidate, const std::optional<Evaluation>& teacher,
                        const UnigramBaseline& baseline) {
    report_(fmt::format("evaluating the student {}",
                        candidate.name == "before" ? "before training" : "after " + candidate.name));
    MeasuredModel measured;
    measured.candidate = candidate;
    Model model = student_from(settings_, *data_, device_, candidate.checkpoint);
    measured.found = evaluate_model(model);
    if (teacher) measured.recovered = recovered(measured.found, *teacher, baseline);
    if (teacher_ && settings_.teacher.is_attention_transfer()) {
      const DataSettings& data = settings_.data;
      measured.layer_errors = teacher_
                                  ->evaluate(model, *data_, split_, data.sequence_length, data.batch_size,
                                             settings_.finetune.evaluation_batches)
                                  .layer_errors;
    }
    if (layers::uses(settings_.model.attention, &layers::MechanismInfo::is_hybrid)) {
      Model linear = student_from(without_windows(settings_), *data_, device_, candidate.checkpoint);
      measured.window_off = evaluate_model(linear);
      if (teacher) measured.window_off_recovered = recovered(*measured.window_off, *teacher, baseline);
    }
    return measured;
  }

  void measure_lengths(const Candidate& last, std::vector<MeasuredLength>& lengths) {
    Model student = student_from(settings_, *data_, device_, last.checkpoint);
    for (const std::string& text : settings_.finetune.benchmark_lengths) {
      MeasuredLength one;
      one.length = std::stoll(text);
      report_(fmt::format("measuring speed and memory at {} tokens", one.length));
      if (teacher_) {
        one.teacher = measure_pass(teacher_->model(), one.length);
      } else {
        one.teacher.failure = "not comparable";
      }
      one.student = measure_pass(student, one.length);
      lengths.push_back(std::move(one));
    }
  }

  Settings settings_;
  Device device_;
  const std::function<void(const std::string&)>& report_;
  std::unique_ptr<Dataset> data_;
  Split split_ = Split::test;
  bool predicts_ = false, comparable_ = false;
  std::string undefined_;  // why the teacher's predictions cannot be compared
  std::optional<Teacher> teacher_;
};

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json to_json(const Evaluation& found, bool tokens) {
  Json object{{"loss", number(found.loss)}};
  if (tokens) object["perplexity"] = number(found.perplexity());
  object["accuracy"] = number(found.accuracy);
  object["targets"] = found.targets;
  return object;
}

Json to_json(const Recovered& share) {
  return {{"accuracy", number(share.accuracy)},
          {"accuracy_standard_error", number(share.accuracy_error)},
          {"loss", number(share.loss)}};
}

Json to_json(const MeasuredLength::Pass& pass, std::int64_t length) {
  if (!pass.failure.empty()) return {{"failure", pass.failure}};
  return {{"tokens_per_second", static_cast<double>(length) / pass.seconds}, {"peak_bytes", pass.peak_bytes}};
}

bool predicts_tokens(const Recovery& recovery) {
  return recovery.objective == "next_token" || recovery.objective == "masked_tokens";
}

double mean_error(const MeasuredModel& model) {
  double sum = 0;
  for (const auto& [layer, error] : model.layer_errors) sum += error;
  return sum / static_cast<double>(model.layer_errors.size());
}

std::string percent(const std::optional<double>& share) { return share ? fmt::format("{:.2f}%", 100 * *share) : "-"; }

/// The columns after loss, perplexity and accuracy.
struct ExtraColumns {
  Recovered recovered;
  std::string error = "-", read = "-", minutes = "-";
};

std::string number_text(double value) { return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-"; }

/// `width`: of the column of names.
std::string row(std::size_t width, const std::string& name, const Evaluation& found, bool tokens,
                const ExtraColumns& extra) {
  const Recovered& share = extra.recovered;
  const std::string recovery =
      percent(share.accuracy) + (share.accuracy_error ? fmt::format(" ±{:.2f}", 100 * *share.accuracy_error) : "");
  return fmt::format("  {:<{}} {:>9} {:>11} {:>9} {:>15} {:>9} {:>9} {:>12} {:>8}\n", name, width,
                     number_text(found.loss), tokens ? number_text(found.perplexity()) : "-",
                     number_text(found.accuracy), recovery, percent(share.loss), extra.error, extra.read,
                     extra.minutes);
}

/// Explains the columns, and why recoveries are missing.
std::string explanations(const Recovery& recovery) {
  const auto has_recovery = [](const MeasuredModel& model) { return model.recovered.accuracy || model.recovered.loss; };
  std::string text;
  if (std::any_of(recovery.models.begin(), recovery.models.end(), has_recovery))
    text +=
        "  recovery: (accuracy - baseline) / (teacher - baseline) ± standard error\n"
        "  of loss: the same, computed from the loss\n";
  if (!recovery.undefined.empty()) text += fmt::format("  recovery undefined (-): {}\n", recovery.undefined);
  return text +
         "  sq. error: |x - t|^2 / |t|^2 of attention outputs x and the teacher's t, mean over layers\n"
         "  tokens and minutes: of each training stage\n";
}

std::string pass_text(const MeasuredLength::Pass& pass, std::int64_t length) {
  if (!pass.failure.empty()) return fmt::format("{:>25}", "- (" + pass.failure + ")");
  return fmt::format("{:>12.0f} {:>9.1f} MB", static_cast<double>(length) / pass.seconds,
                     static_cast<double>(pass.peak_bytes) / 1e6);
}

}  // namespace

std::optional<double> relative_recovery(double student, double teacher, double baseline) {
  if (teacher == baseline) return std::nullopt;
  return (student - baseline) / (teacher - baseline);
}

std::optional<double> recovery_error(const Evaluation& student, double teacher, double baseline) {
  const double p = student.accuracy;
  if (!(teacher > baseline && p > 0 && p < 1) || student.targets == 0) return std::nullopt;
  return std::sqrt(p * (1 - p) / static_cast<double>(student.targets)) / std::abs(teacher - baseline);
}

Recovered recovered(const Evaluation& student, const Evaluation& teacher, const UnigramBaseline& baseline) {
  Recovered share;
  if (teacher.accuracy > baseline.accuracy)
    share.accuracy = relative_recovery(student.accuracy, teacher.accuracy, baseline.accuracy);
  if (teacher.loss < baseline.loss) share.loss = relative_recovery(student.loss, teacher.loss, baseline.loss);
  share.accuracy_error = recovery_error(student, teacher.accuracy, baseline.accuracy);
  return share;
}

std::string undefined_recovery(const Evaluation& teacher, const UnigramBaseline& baseline) {
  std::vector<std::string> reasons;
  if (std::isnan(teacher.accuracy)) {
    reasons.emplace_back("numbers have no accuracy");
  } else if (!(teacher.accuracy > baseline.accuracy)) {
    reasons.emplace_back("the teacher's accuracy is not above the baseline");
  }
  if (!(teacher.loss < baseline.loss)) reasons.emplace_back("the teacher's loss is not below the baseline");
  return config::join(reasons, ", and ");
}

Split measured_split(const Dataset& data) { return data.size(Split::test) >= 2 ? Split::test : Split::validation; }

std::optional<Recovery> measure_recovery(const Settings& settings, const fs::path& teacher,
                                         const std::vector<Candidate>& students, const StopRequests& stop_requests,
                                         const std::function<void(const std::string&)>& report) {
  require(!students.empty(), "measure_recovery without students");
  return Measurement(settings, teacher, report).run(students, stop_requests);
}

Json to_json(const Recovery& recovery) {
  const bool tokens = predicts_tokens(recovery);
  Json object{{"data", recovery.data},
              {"split", name_of(recovery.split)},
              {"objective", recovery.objective},
              {"sequence_length", recovery.sequence_length},
              {"baseline",
               {{"loss", number(recovery.baseline.loss)},
                {"accuracy", number(recovery.baseline.accuracy)},
                {"targets", recovery.baseline.targets}}},
              {"recovery_undefined", recovery.undefined.empty() ? Json() : Json(recovery.undefined)}};
  Json& models = object["models"] = Json::array();
  for (const MeasuredModel& model : recovery.models) {
    const bool is_teacher = model.candidate.name == "teacher";
    Json one{{"name", model.candidate.name}, {"checkpoint", model.candidate.checkpoint.string()}};
    one.update(to_json(model.found, tokens));
    if (!is_teacher) {
      one["recovery"] = to_json(model.recovered);
      one["steps"] = model.candidate.steps;
      one["tokens"] = model.candidate.tokens;
      one["minutes"] = model.candidate.seconds / 60;
    }
    if (!model.layer_errors.empty()) {
      Json& errors = one["squared_attention_error"] = Json::object();
      for (const auto& [layer, error] : model.layer_errors) errors[std::to_string(layer)] = number(error);
    }
    if (model.window_off) {
      one["window_off"] = to_json(*model.window_off, tokens);
      one["window_off"]["recovery"] = to_json(model.window_off_recovered);
    }
    models.push_back(std::move(one));
  }
  Json& lengths = object["lengths"] = Json::array();
  for (const MeasuredLength& one : recovery.lengths)
    lengths.push_back({{"length", one.length},
                       {"teacher", to_json(one.teacher, one.length)},
                       {"student", to_json(one.student, one.length)}});
  return object;
}

std::string to_text(const Recovery& recovery) {
  const bool tokens = predicts_tokens(recovery);
  std::string text = fmt::format("{} split of {}, {}, {} targets, sequences of {}; baseline: loss {}, accuracy {}\n",
                                 name_of(recovery.split), recovery.data, recovery.objective, recovery.baseline.targets,
                                 recovery.sequence_length, number_text(recovery.baseline.loss),
                                 number_text(recovery.baseline.accuracy));
  std::size_t width = 14;
  for (const MeasuredModel& model : recovery.models) width = std::max(width, model.candidate.name.size());
  text += fmt::format("  {:<{}} {:>9} {:>11} {:>9} {:>15} {:>9} {:>9} {:>12} {:>8}\n", "", width, "loss", "perplexity",
                      "accuracy", "recovery", "of loss", "sq. error", "tokens", "minutes");
  for (const MeasuredModel& model : recovery.models) {
    ExtraColumns extra{model.recovered};
    if (!model.layer_errors.empty()) extra.error = fmt::format("{:.4f}", mean_error(model));
    if (model.candidate.steps > 0) {
      extra.read = std::to_string(model.candidate.tokens);
      extra.minutes = fmt::format("{:.1f}", model.candidate.seconds / 60);
    }
    text += row(width, model.candidate.name, model.found, tokens, extra);
    if (model.window_off) text += row(width, "  window off", *model.window_off, tokens, {model.window_off_recovered});
  }
  text += explanations(recovery);
  if (recovery.lengths.empty()) return text;
  text += fmt::format("\n  one forward pass\n  {:>8} {:>25} {:>25}\n", "tokens", "teacher: tokens/s, memory",
                      "student: tokens/s, memory");
  for (const MeasuredLength& one : recovery.lengths)
    text += fmt::format("  {:>8} {} {}\n", one.length, pass_text(one.teacher, one.length),
                        pass_text(one.student, one.length));
  return text;
}

}  // namespace furlong
