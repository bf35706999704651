// furlong attend: one attention on tensors from a file.
#include "evaluation/attend/attend.h"

#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/attention_options.h"
#include "cli/command_line.h"
#include "framework/core/device.h"
#include "framework/core/parallel.h"
#include "layers/attention/linear/directions.h"

namespace furlong::command_line {
namespace {

struct Options {
  AttendOptions attend;
  std::string dtype = "float32", mode = "parallel", device = "auto";
  AttentionOptionValues attention;
  std::int64_t threads = 0;
  bool json = false;
};

void print_text(const Options& options, const AttendReport& report) {
  const layers::AttentionConfig& config = options.attend.config;
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  std::string what = mechanism.name;
  if (mechanism.has_features) what += fmt::format(", {} with {} features", config.feature_map, report.features);
  fmt::print("{}: output {}, {} ({}, {}, {})\n", options.attend.output.string(), report.output.text(), what,
             config.causal ? "causal" : "bidirectional", options.dtype, options.mode);
  fmt::print("  {:.6f} s forward", report.forward_seconds);
  if (options.attend.gradients) fmt::print(", {:.6f} s backward", report.backward_seconds);
  fmt::print("; {:.2f} MiB beyond the inputs; read {}\n", static_cast<double>(report.peak_bytes) / (1 << 20),
             fmt::join(report.read, ", "));
  const ops::DenominatorReport& rows = report.denominators;
  const ops::FeatureMapInfo& map = ops::feature_map_info(config.feature_map);
  const bool may_vanish = mechanism.has_features &&
                          (ops::can_be_negative(map.map, config.map_options) || map.can_vanish || rows.guarded > 0);
  if (report.denominators_told && may_vanish) {
    fmt::print(
        "  denominators: the least is {:.3g} of the sum of |φ(q)| |φ(k)|; {} of {} rows guarded, their output is "
        "zero\n",
        rows.least, rows.guarded, rows.rows);
  }
}

void print_json(const Options& options, const AttendReport& report) {
  const layers::AttentionConfig& config = options.attend.config;
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  nlohmann::ordered_json object{{"output", options.attend.output.string()},
                                {"shape", std::vector<std::int64_t>(report.output.begin(), report.output.end())},
                                {"mechanism", mechanism.name},
                                {"causal", config.causal},
                                {"dtype", options.dtype},
                                {"mode", options.mode},
                                {"read", report.read},
                                {"forward_seconds", report.forward_seconds},
                                {"seconds", report.forward_seconds + report.backward_seconds},
                                {"peak_bytes", report.peak_bytes}};
  if (options.attend.gradients) object["backward_seconds"] = report.backward_seconds;
  if (mechanism.has_features) {
    object["feature_map"] = config.feature_map;
    object["m"] = report.features;
  }
  if (report.denominators_told) {
    object["rows"] = report.denominators.rows;
    object["guarded_rows"] = report.denominators.guarded;
    object["least_denominator"] = report.denominators.least;
  }
  fmt::print("{}\n", object.dump(2));
}

void run(Options& options) {
  set_thread_count(static_cast<int>(options.threads));
  AttendOptions& attend_options = options.attend;
  options.attention.settle(attend_options.config);
  attend_options.dtype = dtype_from_name(options.dtype);
  attend_options.recurrent = options.mode == "recurrent";
  attend_options.device = device_from_name(options.device);
  const AttendReport report = attend(attend_options);
  options.json ? print_json(options, report) : print_text(options, report);
}

constexpr const char* footer =
    "INPUT holds query [batch, heads, n, d], key [batch, heads, n_key, d] and value [batch, heads, n_key, d_value]; "
    "key and value may\n"
    "have fewer heads, each serving as many of query's. Read where there and of use: mask [batch, n_key] (1 = keep), "
    "documents\n"
    "[batch, n] (ids), directions [n_directions, d] or [heads, n_directions, d], oprf_a [heads], scaling, query_center "
    "and key_center\n"
    "[heads, d], gate [heads] (windowed), key_projection and value_projection (linformer), d_output (--gradients).\n"
    "OUTPUT gets output [batch, heads, n, d_value], the directions used, and with --gradients d_query, d_key, d_value, "
    "and d_gate,\n"
    "d_key_projection, d_value_projection for those given; seconds, peak_bytes and the settings are attributes of the "
    "file.\n"
    "docs/file_formats.md has the details.";

}  // namespace

void add_attend(Command program, int& /*status*/) {
  const Command command =
      program.add_subcommand("attend", "Run one attention on tensors from an HDF5 file; writes output and gradients");
  command.footer(footer);
  const auto options = std::make_shared<Options>();
  AttendOptions& attend_options = options->attend;
  command.add_option("--input", attend_options.input, "The HDF5 file with query, key and value")
      .required()
      .value_name("FILE");
  command
      .add_option("--output", attend_options.output,
                  "The HDF5 file to write; replaced if it exists, and only by a whole one")
      .required()
      .value_name("FILE");
  command.add_option("--mechanism", attend_options.config.mechanism, mechanism_help())
      .shows_default()
      .one_of(mechanism_names())
      .value_name("NAME");
  command.add_flag("--causal", attend_options.config.causal, "A query sees no later key (default: it sees all)");
  options->attention.add(command, attend_options.config);
  const Option features =
      command
          .add_option("--features", attend_options.features,
                      "Random features m (default: as many as the file's directions give, or twice d)")
          .range(1, 1 << 24);
  const Option kind = command
                          .add_option("--directions-kind", attend_options.directions_kind,
                                      "How directions are drawn where the file has none")
                          .shows_default("orthogonal")
                          .one_of(names_of_all<layers::DirectionsKind>())
                          .value_name("KIND");
  const Option seed =
      command.add_option("--seed", attend_options.seed, "The same seed draws the same directions").shows_default("0");
  const Option rows = command
                          .add_option("--projected-length", attend_options.projected_length,
                                      "Rows that --projection mean pools the keys into")
                          .range(1, 1 << 30)
                          .value_name("R");
  command.add_flag("--gradients", attend_options.gradients, "Go backward from d_output too");
  command
      .add_option("--dtype", options->dtype, "What query, key and value are stored as; bfloat16 is computed in float32")
      .shows_default()
      .one_of({"float32", "bfloat16", "float64"});
  command
      .add_option("--mode", options->mode,
                  "parallel: all tokens at once; recurrent: one by one from the state that the earlier left")
      .shows_default()
      .one_of({"parallel", "recurrent"});
  command
      .add_option("--prefill", attend_options.prefill,
                  "With --mode recurrent: so many tokens at once before the others one by one")
      .range(1, 1 << 30)
      .value_name("TOKENS");
  command.add_option("--device", options->device, "auto, cpu, cuda or cuda:N").shows_default();
  command.add_option("--threads", options->threads, "Threads; 0: all cores").shows_default().range(0, 4096);
  command.add_flag("--json", options->json, "Print JSON");
  command.action([=, &attend_options] {
    const layers::AttentionConfig& config = attend_options.config;
    const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
    for (const Option& option : {features, kind, seed})
      refuse_unless(mechanism.has_features, option, mechanisms_with(&layers::MechanismInfo::has_features));
    refuse_unless(mechanism.projects_sequence && options->attention.projection == "mean", rows,
                  mechanisms_with(&layers::MechanismInfo::projects_sequence) + " --projection mean");
    options->attention.check({config.mechanism}, {config.feature_map});
    if (options->mode == "recurrent" && attend_options.prefill == 0 && command.option("--chunk").is_given())
      throw UserError(
          "--chunk: --mode recurrent takes tokens one by one; give a --prefill too, which has tiles, or leave it out");
    run(*options);
  });
}

}  // namespace furlong::command_line
