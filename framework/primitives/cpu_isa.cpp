#include "framework/primitives/cpu_isa.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cstdlib>
#include <dnnl.hpp>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/machine.h"

namespace furlong::ops {
namespace {

struct InstructionSet {
  const char* name;
  std::vector<const char*> features;  // names as in /proc/cpuinfo
  dnnl::cpu_isa onednn;
  std::int64_t highway;  // Highway target; lower bits are better
};

/// From the lowest to the highest; each includes those before it.
const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets{
      {"sse4", {}, dnnl::cpu_isa::sse41, HWY_SSE4},
      {"avx2", {"avx2", "fma"}, dnnl::cpu_isa::avx2, HWY_AVX2},
      {"avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, dnnl::cpu_isa::avx512_core, HWY_AVX3},
      {"avx512_bf16", {"avx512_bf16"}, dnnl::cpu_isa::avx512_core_bf16, HWY_AVX3},
      {"amx", {"amx_tile", "amx_bf16"}, dnnl::cpu_isa::avx512_core_amx, HWY_AVX3}};
  return sets;
}

/// Returns the instruction sets that this CPU supports.
std::vector<InstructionSet> available() {
  std::vector<InstructionSet> found;
#if HWY_ARCH_X86
  const CpuInformation cpu = read_machine().cpu;
  for (const InstructionSet& set : instruction_sets()) {
    if (!std::all_of(set.features.begin(), set.features.end(), [&](const char* name) { return cpu.has(name); })) break;
    found.push_back(set);
  }
#endif
  return found;
}

std::string names_of(const std::vector<InstructionSet>& sets) {
  std::string text;
  for (const InstructionSet& set : sets) text += (text.empty() ? "" : ", ") + std::string(set.name);
  return text;
}

bool is_intel() {
#if HWY_ARCH_X86
  __builtin_cpu_init();
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

const char* wanted() {
  const char* name = std::getenv("FURLONG_CPU_ISA");
  return name && *name ? name : nullptr;
}

}  // namespace

void limit_cpu_isa() {
  if (!wanted()) return;
  const auto find = [name = std::string(wanted())](const std::vector<InstructionSet>& sets) {
    return std::find_if(sets.begin(), sets.end(), [&](const InstructionSet& set) { return set.name == name; });
  };
  if (find(instruction_sets()) == instruction_sets().end())
    throw UserError("FURLONG_CPU_ISA is '{}'; expected one of {}", wanted(), names_of(instruction_sets()));
  const std::vector<InstructionSet> sets = available();
  const auto set = find(sets);
  if (set == sets.end())
    throw UserError("FURLONG_CPU_ISA is {}, which this CPU does not support; it supports {}", wanted(),
                    sets.empty() ? "no instruction set that can be limited" : names_of(sets));
  hwy::DisableTargets(set->highway - 1);
  if (dnnl::set_max_cpu_isa(set->onednn) != dnnl::status::success)
    throw MachineError("oneDNN rejected FURLONG_CPU_ISA={}: it was built without this limit, or has already been used",
                       wanted());
}

std::string cpu_isa() {
  if (wanted()) return wanted();
  const std::vector<InstructionSet> sets = available();
  if (sets.empty()) return "";
  const std::string best = sets.back().name;
  return best == "avx512_bf16" && is_intel() ? "avx512" : best;
}

bool multiplies_bfloat16() {
  static const std::string name = cpu_isa();
  return name == "avx512_bf16" || name == "amx";
}

const simd::BFloat16Products* bfloat16_products() {
  static const std::string name = cpu_isa();
  if (name == "amx") return simd::amx_bfloat16_products();
  return name == "avx512_bf16" ? simd::avx512_bfloat16_products() : nullptr;
}

}  // namespace furlong::ops
