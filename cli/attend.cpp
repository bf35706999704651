// furlong attend: runs one attention mechanism on tensors from a file.
#include "evaluation/attend/attend.h"

#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/attention_options.h"
#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/held_output.h"
#include "cli/json_output.h"
#include "framework/core/device.h"
#include "framework/core/parallel.h"
#include "layers/attention/linear/random_projection.h"

namespace furlong::command_line {
namespace {

struct AttendArguments {
  AttendOptions attend;
  std::string dtype = "float32", mode = "parallel", device = "auto";
  AttentionOptionValues attention;
  std::int64_t threads = 0;
  bool json = false;
};

void print_text(const AttendArguments& options, const AttendReport& report) {
  const layers::AttentionConfig& config = options.attend.config;
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  std::string what = mechanism.name;
  if (mechanism.has_features) what += fmt::format(", {} with {} features", config.feature_map, report.features);
  fmt::print("{}: output {}, {} ({}, {}, {})\n", options.attend.output.string(), report.output.text(), what,
             config.causal ? "causal" : "bidirectional", options.dtype, options.mode);
  fmt::print("  {:.6f} s forward", report.forward_seconds);
  if (options.attend.gradients) fmt::print(", {:.6f} s backward", report.backward_seconds);
  fmt::print("; {:.2f} MiB of memory in addition to the inputs; read {}\n",
             static_cast<double>(report.peak_bytes) / (1 << 20), fmt::join(report.read, ", "));
  const ops::DenominatorReport& rows = report.denominators;
  const ops::FeatureMapInfo& map = ops::feature_map_info(config.feature_map);
  const bool may_vanish = mechanism.has_features &&
                          (ops::can_be_negative(map.map, config.map_options) || map.can_vanish || rows.guarded > 0);
  if (report.has_denominators && may_vanish) {
    fmt::print(
        "  denominators: minimum {:.3g} of the sum of |φ(q)| |φ(k)|; {} of {} rows guarded, their output is zero\n",
        rows.least, rows.guarded, rows.rows);
  }
}

void print_as_json(const AttendArguments& options, const AttendReport& report) {
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
  if (report.has_denominators) {
    object["rows"] = report.denominators.rows;
    object["guarded_rows"] = report.denominators.guarded;
    object["least_denominator"] = report.denominators.least;
  }
  print_json(object);
}

void run(AttendArguments& options) {
  set_thread_count(static_cast<int>(options.threads));
  AttendOptions& attend_options = options.attend;
  options.attention.settle(attend_options.config);
  attend_options.dtype = dtype_from_name(options.dtype);
  attend_options.recurrent = options.mode == "recurrent";
  attend_options.device = device_from_name(options.device);
  refuse_replacing_data(attend_options.output);
  const AttendReport report = attend(attend_options);
  options.json ? print_as_json(options, report) : print_text(options, report);
}

constexpr const char* attend_footer =
    "--input holds query [batch, heads, n, d], key [batch, heads, n_key, d] and value [batch, heads, n_key, d_value]. "
    "key and value may have fewer heads than query (grouped-query attention).\n"
    "Optional datasets, read if the mechanism uses them:\n"
    "  mask                  [batch, n_key], 1: attend to this key\n"
    "  documents             [batch, n], ids; each run of equal ids is a document; a query attends to its own\n"
    "  random_projection     [rows, d] or [heads, rows, d]\n"
    "  oprf_a                [heads]\n"
    "  scaling, query_center, key_center  [heads, d]\n"
    "  gate                  [heads], windowed\n"
    "  key_projection, value_projection  linformer\n"
    "  d_output              the gradient of output, for --gradients\n"
    "--output gets output [batch, heads, n, d_value] and the random projection. With --gradients it also gets d_query, "
    "d_key, d_value, and d_gate, d_key_projection and d_value_projection if the input has the parameter. Times, peak "
    "memory and settings are attributes of the file. See docs/file_formats.md.";

}  // namespace

void add_attend(Command program, int& /*status*/) {
  const Command command = program.add_subcommand("attend", "Run an attention mechanism on tensors of an HDF5 file");
  command.footer(attend_footer);
  command.examples({
      "furlong attend --input qkv.h5 --output out.h5 --causal",
      "furlong attend --input qkv.h5 --output out.h5 --mechanism linear --feature-map favor_positive --features 256 "
      "--gradients --json",
  });
  const auto options = std::make_shared<AttendArguments>();
  AttendOptions& attend_options = options->attend;
  command.add_option("--input", attend_options.input, "HDF5 file with query, key and value")
      .required()
      .value_name("FILE");
  command.add_option("-o,--output", attend_options.output, "HDF5 file to write; replaced only when complete")
      .required()
      .value_name("FILE");
  command.add_option("--mechanism", attend_options.config.mechanism, mechanism_help())
      .shows_default()
      .one_of(mechanism_names())
      .value_name("NAME");
  command.add_flag("--causal", attend_options.config.causal,
                   "A query attends to itself and earlier tokens (otherwise to all)");
  const Option features =
      command
          .add_option("--features", attend_options.features,
                      "Number m of random features (default: that of the file's random projection, or 2d)")
          .range(1, 1 << 24)
          .value_name("M");
  command.add_flag("--gradients", attend_options.gradients, "Also run backward, from the dataset d_output");
  options->attention.add(command, attend_options.config);
  const Option kind = command
                          .add_option("--random-projection", attend_options.projection_kind,
                                      "Distribution of the random projection, if the file has none")
                          .shows_default("orthogonal")
                          .one_of(names_of_all<layers::RandomProjectionKind>())
                          .value_name("KIND");
  const Option seed =
      command.add_option("--seed", attend_options.seed, "Seed of the random projection").shows_default("0");
  const Option rows =
      command
          .add_option("--projected-length", attend_options.projected_length,
                      "Required with --mechanism linformer --projection mean: number of rows that keys and values are "
                      "pooled into. Other projections take it from the file")
          .range(1, 1 << 30)
          .value_name("R");
  command.add_option("--dtype", options->dtype, "Storage type of query, key and value; sums of bfloat16 are float32")
      .shows_default()
      .one_of({"float32", "bfloat16", "float64"});
  command
      .add_option("--mode", options->mode,
                  "parallel: all tokens at once; recurrent: one token at a time, with a recurrent state")
      .shows_default()
      .one_of({"parallel", "recurrent"});
  command
      .add_option(
          "--prefill", attend_options.prefill,
          "With --mode recurrent: process the first TOKENS tokens at once, then the others one by one (default: "
          "all tokens one by one)")
      .range(1, 1 << 30)
      .value_name("TOKENS");
  add_device(command, options->device);
  add_threads(command, options->threads);
  add_json(command, options->json);
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
          "--chunk has no effect with --mode recurrent, which processes one token at a time; remove it, or add "
          "--prefill");
    run(*options);
  });
}

}  // namespace furlong::command_line
