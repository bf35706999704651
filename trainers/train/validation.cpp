#include "trainers/train/validation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>

#include "framework/core/clock.h"
#include "framework/core/trace.h"
#include "trainers/model/objective.h"
#include "trainers/model/recurrent_state.h"

namespace furlong {
namespace {

UserError no_targets(const Settings& settings, const Dataset& data, Split split, std::int64_t max_batches) {
  const char* which = settings.objective.learns_labels() ? "" : "the first ";
  const std::string part = max_batches > 0 ? fmt::format("{}{} batches of ", which, max_batches) : "";
  std::string hint = "prepare more data for it";
  if (!settings.data.ignore_tokens.empty()) {
    hint = fmt::format("data.ignore_tokens: [{}] excludes all of them; ignore fewer symbols",
                       config::join(settings.data.ignore_tokens, ", "));
  } else if (settings.objective.name == Objective::masked_tokens && settings.data.task == "none") {
    hint = fmt::format("objective.mask_probability: {} masks none of its tokens; raise it",
                       settings.objective.mask_probability);
  }
  return UserError("{}: no targets in {}the {} split, so there is no loss; {}", data.path(), part, name_of(split),
                   hint);
}

}  // namespace

double Evaluation::perplexity() const { return std::exp(loss); }
double Evaluation::bits_per_token() const { return loss / std::numbers::ln2; }

std::string validation_rows(const Settings& settings) {
  return settings.data.sampler == "sequential" ? "random" : settings.data.sampler;
}

std::vector<std::string> changed_targets(const Settings& before, const Settings& now) {
  std::vector<std::string> keys;
  const auto compare = [&](const char* key, const auto& value_of) {
    if (value_of(before) != value_of(now)) keys.emplace_back(key);
  };
  // A window has targets also in the first tokens of documents.
  if (!before.objective.learns_labels() && !now.objective.learns_labels())
    compare("data.sampler", [](const Settings& one) { return validation_rows(one) == "random"; });
  compare("data.packing", [](const Settings& one) { return one.data.packing; });
  compare("data.stateful", [](const Settings& one) { return one.data.stateful; });
  compare("data.ignore_tokens", [](const Settings& one) { return one.data.ignore_tokens; });
  compare("data.task", [](const Settings& one) { return one.data.task; });
  if (before.data.task != "none" && now.data.task != "none") {
    compare("data.task_pairs", [](const Settings& one) { return one.data.task_pairs; });
    compare("data.task_symbols", [](const Settings& one) { return one.data.task_symbols; });
    compare("data.task_min_symbols", [](const Settings& one) { return one.data.task_min_symbols; });
    compare("data.sequence_length", [](const Settings& one) { return one.data.sequence_length; });
  }
  // Masks are drawn for each row and position in it. Those of windows of any length are the same.
  const auto masks_documents = [](const Settings& one) {
    return one.objective.name == Objective::masked_tokens && validation_rows(one) != "random";
  };
  if (masks_documents(before) && masks_documents(now))
    compare("data.sequence_length", [](const Settings& one) { return one.data.sequence_length; });
  // Of a document, only the tokens before the cut have labels.
  const auto labels_tokens = [](const Settings& one) {
    return one.objective.learns_labels() && one.objective.label_kind() == LabelKind::tokens;
  };
  if (labels_tokens(before) && labels_tokens(now))
    compare("data.sequence_length", [](const Settings& one) { return one.data.sequence_length; });
  compare("objective.name", [](const Settings& one) { return one.objective.name; });
  compare("objective.mask_probability", [](const Settings& one) { return one.objective.mask_probability; });
  compare("objective.mask_token_fraction", [](const Settings& one) { return one.objective.mask_token_fraction; });
  compare("objective.random_token_fraction", [](const Settings& one) { return one.objective.random_token_fraction; });
  // Errors of attention are means over batches, of the layers' inputs in this model or in the teacher.
  const auto transfers = [](const Settings& one) { return one.teacher.is_attention_transfer(); };
  compare("teacher.input", [&](const Settings& one) { return transfers(one) ? one.teacher.input : ""; });
  compare("data.batch_size", [&](const Settings& one) { return transfers(one) ? one.data.batch_size : 0; });
  return keys;
}

void check_targets(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, Split split,
                   std::int64_t max_batches) {
  const auto source = evaluation_source(settings, vocabulary, data, split, settings.data.sequence_length,
                                        settings.data.batch_size, max_batches);
  // Reads at most as many samples as exist; the memory of a full batch is checked elsewhere.
  const std::int64_t samples =
      settings.data.sampler == "stream" ? settings.data.batch_size : source->rows_of_one_pass(settings.data.batch_size);
  std::int64_t batches = 0;
  for (std::uint64_t first = 0; first < source->n_samples() && (max_batches == 0 || batches < max_batches);
       first += static_cast<std::uint64_t>(samples), ++batches) {
    if (source->single_pass_batch(first, samples).n_targets > 0) return;
  }
  throw no_targets(settings, data, split, max_batches);
}

Tensor token_tensor(const std::vector<std::int32_t>& tokens, std::int64_t batch, const Device& device) {
  return Tensor::from(tokens, {batch, static_cast<std::int64_t>(tokens.size()) / batch}, device);
}

Evaluation evaluate(Model& model, const BatchSource& source, const EvaluationPass& pass) {
  const WorkShare alone;
  const WorkShare& share = pass.share ? *pass.share : alone;
  require(!pass.observe || !share.group(), "an observer of batches needs a single process");
  // Rows beyond the split are padding. Ranks share the rows of the whole batch; streams need all of them.
  std::int64_t batch_size = pass.batch_size;
  if (!share.group() && model.settings.data.sampler != "stream") batch_size = source.rows_of_one_pass(batch_size);
  std::optional<RecurrentState> carried;
  if (pass.stateful) carried.emplace(*model.decoder, batch_size);
  const SampleShare samples = share.samples(batch_size);
  require(!carried || samples.samples == batch_size, "stateful training needs a single process");

  Tape tape(model.stream);
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  ops::CrossEntropyOptions options;
  options.count_correct = true;
  options.normalizer = 1.0;  // sums: batches have different numbers of targets
  options.keep_row_losses = static_cast<bool>(pass.observe);

  Evaluation result;
  double correct = 0;
  const auto start = Clock::now();
  std::int64_t batches = 0;
  for (std::uint64_t first = 0; first < source.n_samples() && (pass.max_batches == 0 || batches < pass.max_batches);
       first += static_cast<std::uint64_t>(batch_size), ++batches) {
    const Batch batch =
        share.cut(source.single_pass_batch(first + static_cast<std::uint64_t>(samples.first), samples.samples),
                  model.settings.objective.name == Objective::next_token);
    result.tokens += batch.n_tokens;
    if (batch.n_targets == 0 && !carried && !share.group())
      continue;  // with several ranks, others may have targets in segments of the same rows
    share.put_into(context, batch);
    layers::GenerationState* past = carried ? &carried->begin(context, batch) : nullptr;
    const DeviceBatch input = on_device(batch, model.store->device());
    const trace::Span span("compute", "forward");
    const auto step =
        pass.loss ? pass.loss(context, batch, input, options) : loss_of(model, context, input, options, past);
    result.loss +=
        static_cast<double>(step.loss.value().dtype() == DType::float64 ? step.loss.value().to_vector<double>()[0]
                                                                        : step.loss.value().to_vector<float>()[0]);
    const auto counts = step.counts.to_vector<std::int32_t>();
    result.targets += counts[0];
    correct += counts[1];
    if (pass.observe) pass.observe(first, batch, step);
  }
  result.seconds = seconds_since(start);
  if (share.group()) {
    std::array<double, 4> sums{result.loss, static_cast<double>(result.targets), static_cast<double>(result.tokens),
                               correct};
    share.group()->sum(sums);
    result.loss = sums[0];
    result.targets = static_cast<std::int64_t>(sums[1]);
    result.tokens = static_cast<std::int64_t>(sums[2]);
    correct = sums[3];
  }
  result.loss /= static_cast<double>(result.targets);
  const bool has_accuracy = model.settings.objective.label_kind() != LabelKind::numbers;
  result.accuracy = has_accuracy ? correct / static_cast<double>(result.targets) : std::nan("");
  return result;
}

Evaluation evaluate(Model& model, const Dataset& data, Split split, std::int64_t sequence_length,
                    std::int64_t batch_size, std::int64_t max_batches, const BatchLoss& loss, const WorkShare& share,
                    const BatchObserver& observe) {
  const auto source =
      evaluation_source(model.settings, model.vocabulary, data, split, sequence_length, batch_size, max_batches);
  const Evaluation result = evaluate(model, *source,
                                     {.batch_size = batch_size,
                                      .max_batches = max_batches,
                                      .stateful = model.settings.data.stateful,
                                      .loss = loss,
                                      .share = &share,
                                      .observe = observe});
  if (result.targets == 0) throw no_targets(model.settings, data, split, max_batches);
  return result;
}

Evaluation validate(Model& model, const Dataset& data, const WorkShare& share) {
  const Settings& settings = model.settings;
  return evaluate(model, data, Split::validation, settings.data.sequence_length, settings.data.batch_size,
                  settings.trainer.validation_batches, {}, share);
}

}  // namespace furlong
