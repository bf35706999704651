#include "evaluation/plan/plan_device.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "framework/config/nearest.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

/// Numbers that the vendor publishes, converted to dense rates and to one direction.
struct DataSheet {
  const char* name;
  const char* source;
  double bfloat16, tf32, float32;
  double memory, bandwidth, link, network;
  bool network_is_assumed;
};

constexpr double giga = 1e9, tera = 1e12;

// Data sheets give rates with sparsity, twice the dense rates, and the sum of both directions of NVLink and PCIe. The
// network is that of the vendor's reference system, with one adapter per GPU.
const std::vector<DataSheet>& data_sheets() {
  static const std::vector<DataSheet> sheets{
      {"a100",
       "NVIDIA A100 Tensor Core GPU data sheet (SXM, 80 GB); DGX A100 data sheet (HDR InfiniBand, 200 Gb/s per GPU)",
       312 * tera, 156 * tera, 19.5 * tera, 80 * giga, 2.039 * tera, 300 * giga, 25 * giga, false},
      {"h100", "NVIDIA H100 Tensor Core GPU data sheet (SXM); DGX H100 data sheet (ConnectX-7, 400 Gb/s per GPU)",
       989.4 * tera, 494.7 * tera, 67 * tera, 80 * giga, 3.35 * tera, 450 * giga, 50 * giga, false},
      {"h200", "NVIDIA H200 Tensor Core GPU data sheet (SXM); DGX H200 data sheet (ConnectX-7, 400 Gb/s per GPU)",
       989.4 * tera, 494.7 * tera, 67 * tera, 141 * giga, 4.8 * tera, 450 * giga, 50 * giga, false},
      {"b200",
       "NVIDIA HGX B200 specifications (an eighth of the board of 8); DGX B200 data sheet (ConnectX-7, 400 Gb/s per "
       "GPU)",
       2250 * tera, 1125 * tera, 75 * tera, 180 * giga, 7.7 * tera, 900 * giga, 50 * giga, false},
      {"l40s", "NVIDIA L40S data sheet (PCIe Gen4 x16, no NVLink)", 362.05 * tera, 183 * tera, 91.6 * tera, 48 * giga,
       864 * giga, 32 * giga, 12.5 * giga, true},
  };
  return sheets;
}

struct Key {
  const char* name;
  double PlanDevice::*number;
  bool is_share;  // in [0, 1]; utilization and reached not 0
  bool may_be_zero;
};

const std::vector<Key>& keys() {
  static const std::vector<Key> all{{"flops", &PlanDevice::flops, false, false},
                                    {"attention_flops", &PlanDevice::attention_flops, false, false},
                                    {"memory", &PlanDevice::memory, false, false},
                                    {"reserve", &PlanDevice::reserve, false, true},
                                    {"bandwidth", &PlanDevice::bandwidth, false, false},
                                    {"link", &PlanDevice::link, false, false},
                                    {"link_latency", &PlanDevice::link_latency, false, true},
                                    {"network", &PlanDevice::network, false, false},
                                    {"network_latency", &PlanDevice::network_latency, false, true},
                                    {"reached", &PlanDevice::reached, true, false},
                                    {"utilization", &PlanDevice::utilization, true, false},
                                    {"overlap", &PlanDevice::overlap, true, true}};
  return all;
}

/// Returns nothing if `text` is not a number.
std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

const Key& key_named(const std::string& name) {
  if (name == "utilisation") return key_named("utilization");  // the British spelling
  std::vector<std::string> known;
  for (const Key& key : keys()) {
    if (key.name == name) return key;
    known.emplace_back(key.name);
  }
  const std::string near = config::nearest(name, known);
  throw UserError("--device: unknown key '{}'{}; expected {}", name,
                  near.empty() ? "" : " (did you mean " + near + "?)", fmt::join(known, ", "));
}

void set_number(PlanDevice& device, const std::string& word) {
  const std::size_t sign = word.find('=');
  if (sign == std::string::npos)
    throw UserError("--device: '{}' is not KEY=NUMBER; only the first word can be a device's name", word);
  const Key& key = key_named(word.substr(0, sign));
  const std::string text = word.substr(sign + 1);
  const std::optional<double> value = number_in(text);
  if (!value || *value < 0 || (*value == 0 && !key.may_be_zero) || (key.is_share && *value > 1)) {
    throw UserError("--device: {}={}: expected a number {}{}", key.name, text,
                    key.may_be_zero ? "of at least 0" : "above 0",
                    key.is_share ? " and at most 1" : ", in operations, bytes or seconds, for example 3.35e12");
  }
  device.*key.number = *value;
  std::erase(device.assumed, key.name);
}

}  // namespace

PlanCluster plan_cluster(const std::string& text) {
  constexpr int most = 1 << 20;
  const auto count = [](const std::string& digits) {
    int value = 0;
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return failure == std::errc() && end == digits.data() + digits.size() ? value : 0;
  };
  const std::size_t cross = text.find('x');
  PlanCluster cluster;
  if (cross != std::string::npos) cluster.hosts = count(text.substr(0, cross));
  cluster.per_host = count(cross == std::string::npos ? text : text.substr(cross + 1));
  if (cluster.hosts < 1 || cluster.per_host < 1 || cluster.hosts > most / cluster.per_host)
    throw UserError(
        "--devices {}: expected a number of devices, or hosts x devices per host, for example 8 or 4x8; at most {} in "
        "total",
        text, most);
  return cluster;
}

std::vector<std::string> plan_device_names() {
  std::vector<std::string> names;
  for (const DataSheet& sheet : data_sheets()) names.emplace_back(sheet.name);
  return names;
}

PlanDevice plan_device(const std::string& name, DType dtype, bool tf32) {
  const auto& sheets = data_sheets();
  const auto found =
      std::find_if(sheets.begin(), sheets.end(), [&](const DataSheet& sheet) { return sheet.name == name; });
  if (found == sheets.end()) {
    std::vector<std::string> known = plan_device_names();
    known.emplace_back("cpu");
    const std::string near = config::nearest(name, known);
    throw UserError(
        "--device {}: unknown device{}; expected {}, or numbers such as flops=1e15,memory=80e9,bandwidth=3e12", name,
        near.empty() ? "" : " (did you mean " + near + "?)", fmt::join(known, ", "));
  }
  PlanDevice device;
  device.name = name;
  device.kind = PlanDeviceKind::gpu;
  device.source = found->source;
  device.flops = dtype == DType::bfloat16 ? found->bfloat16 : tf32 ? found->tf32 : found->float32;
  // TF32 applies to the library's matrix products; float32 attention has separate kernels.
  device.attention_flops = dtype == DType::bfloat16 ? found->bfloat16 : found->float32;
  device.memory = found->memory;
  device.reserve = 2 * giga;
  device.bandwidth = found->bandwidth;
  device.link = found->link;
  device.link_latency = 5e-6;
  device.network = found->network;
  device.network_latency = 20e-6;
  device.assumed = {"reserve", "link_latency", "network_latency", "reached", "utilization", "overlap"};
  if (found->network_is_assumed) device.assumed.emplace_back("network");
  return device;
}

void set_plan_numbers(PlanDevice& device, const std::string& text) {
  bool sets_flops = false, sets_attention = false;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    set_number(device, word);
    sets_flops = sets_flops || word.starts_with("flops=");
    sets_attention = sets_attention || word.starts_with("attention_flops=");
    begin = end + 1;
  }
  if (sets_flops && !sets_attention) device.attention_flops = device.flops;
}

void check_plan_device(const PlanDevice& device, const PlanCluster& cluster) {
  std::vector<std::string> missing;
  const auto need = [&](const char* key, double number) {
    if (number == 0) missing.emplace_back(key);
  };
  need("flops", device.flops);
  need("memory", device.memory);
  need("bandwidth", device.bandwidth);
  if (cluster.per_host > 1) need("link", device.link);
  if (cluster.hosts > 1) need("network", device.network);
  if (!missing.empty()) {
    std::vector<std::string> added;
    for (const std::string& key : missing)
      added.push_back(key + (key == "flops"    ? "=OPERATIONS_PER_SECOND"
                             : key == "memory" ? "=BYTES"
                                               : "=BYTES_PER_SECOND"));
    throw UserError("--device: {} {} missing, but required to plan {} host{} with {} device{} each; add {}",
                    fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are", cluster.hosts,
                    cluster.hosts == 1 ? "" : "s", cluster.per_host, cluster.per_host == 1 ? "" : "s",
                    fmt::join(added, ","));
  }
  if (device.reserve >= device.memory)
    throw UserError("--device: reserve {} is not less than memory {}; expected less", device.reserve, device.memory);
}

std::vector<std::pair<std::string, double>> plan_numbers(const PlanDevice& device) {
  std::vector<std::pair<std::string, double>> numbers;
  for (const Key& key : keys()) numbers.emplace_back(key.name, device.*key.number);
  return numbers;
}

std::string with_prefix(double value, const char* unit) {
  static constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  for (; value >= 999.5 && prefix + 1 < std::size(prefixes); ++prefix) value /= 1000;
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}{}", value, decimals, *unit ? " " : "", prefixes[prefix], unit);
}

}  // namespace furlong
