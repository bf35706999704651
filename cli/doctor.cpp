#include "framework/simd/targets.h"  // before Highway's headers

#include <H5public.h>
#include <dnnl.h>
#include <hdf5.h>
#include <hwy/highway.h>
#include <lzma.h>
#include <spdlog/version.h>
#include <xxhash.h>
#include <yaml-cpp/yaml.h>
#include <zlib.h>

#include <CLI/Version.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/json_output.h"
#include "framework/core/clock.h"
#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/lower_case.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/version.h"
#include "framework/cuda/engine/report.h"
#include "framework/primitives/cpu_isa.h"

#ifndef FURLONG_YAML_CPP_VERSION
#define FURLONG_YAML_CPP_VERSION "unknown"  // yaml-cpp's headers lack it; the build defines it
#endif

namespace furlong::command_line {
namespace {

using Json = nlohmann::ordered_json;

struct Feature {
  const char* name;     ///< as in /proc/cpuinfo
  const char* meaning;  ///< how Furlong uses it
};

constexpr Feature features_of_interest[] = {
    {"avx2", "256-bit vectors"},    {"fma", "fused multiply-add"},
    {"avx512f", "512-bit vectors"}, {"avx512_bf16", "bfloat16 matrix products"},
    {"amx_tile", "matrix tiles"},   {"amx_bf16", "bfloat16 products of matrix tiles"},
};

/// One line of the library table. `problem` is empty if the test of the library passed.
struct Library {
  std::string name, version, use, problem;
};

struct Advice {
  std::string what, remedy;
};

struct Examination {
  Machine machine;
  std::vector<Library> libraries;
  std::vector<Advice> advice;
  std::string vector_target;
  std::optional<double> gflops;  ///< measured with a float32 matrix product; empty when oneDNN failed
  std::optional<uint64_t> free_disk_bytes;
  std::optional<CudaReport> cuda;  ///< empty if the program was built without CUDA
};

/// Multiplies matrices of small integers, whose product is exact in float32 in any order of summation. Returns GFLOP/s.
/// Throws MachineError if oneDNN fails or if the product is wrong.
double try_matrix_product() {
  constexpr int n = 512;
  std::vector<float> a(n * n), b(n * n), c(n * n);
  for (int i = 0; i < n * n; ++i) {
    a[i] = static_cast<float>((i * 7 + i / n) % 9 - 4);
    b[i] = static_cast<float>((i * 5 + i / n) % 7 - 3);
  }
  double best_seconds = HUGE_VAL;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto begin = Clock::now();
    const dnnl_status_t status = dnnl_sgemm('N', 'N', n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n);
    if (status != dnnl_success)
      throw MachineError("a float32 matrix product failed with status {}", static_cast<int>(status));
    best_seconds = std::min(best_seconds, seconds_since(begin));
  }
  for (int i = 0; i < n; i += 37) {
    for (int j = 0; j < n; j += 41) {
      float expected = 0;
      for (int k = 0; k < n; ++k) expected += a[i * n + k] * b[k * n + j];
      if (c[i * n + j] != expected)
        throw MachineError("a float32 matrix product returned {} instead of {}", c[i * n + j], expected);
    }
  }
  return 2.0 * n * n * n / best_seconds * 1e-9;
}

/// Writes a checksummed dataset to a file in memory and reads it back. Throws MachineError if that fails.
void try_hdf5() {
  constexpr hsize_t count = 1000;
  std::vector<int> written(count), read(count, -1);
  for (hsize_t i = 0; i < count; ++i) written[i] = static_cast<int>(i * i);
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_fapl_core(access, 1 << 16, 0);
  const hid_t file = H5Fcreate("doctor.h5", H5F_ACC_TRUNC, H5P_DEFAULT, access);
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t chunk = 256;
  H5Pset_chunk(creation, 1, &chunk);
  H5Pset_fletcher32(creation);
  const hid_t dataset = H5Dcreate2(file, "numbers", H5T_NATIVE_INT, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  const bool done = H5Dwrite(dataset, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, written.data()) >= 0 &&
                    H5Dread(dataset, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, read.data()) >= 0;
  H5Dclose(dataset);
  H5Pclose(creation);
  H5Sclose(space);
  H5Fclose(file);
  H5Pclose(access);
  if (!done || written != read) throw MachineError("a dataset written to memory could not be read back");
}

std::string numbers(const std::vector<unsigned>& parts) { return fmt::format("{}", fmt::join(parts, ".")); }

template <class Try>
std::string problem_of(const Try& attempt) {
  try {
    attempt();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::vector<Library> try_libraries(std::optional<double>& gflops) {
  std::vector<Library> libraries;
  const dnnl_version_t* onednn = dnnl_version();
  const char* runtime = onednn->cpu_runtime == DNNL_RUNTIME_OMP   ? ", OpenMP"
                        : onednn->cpu_runtime == DNNL_RUNTIME_SEQ ? ", one thread"
                                                                  : "";
  libraries.push_back({"oneDNN",
                       numbers({unsigned(onednn->major), unsigned(onednn->minor), unsigned(onednn->patch)}) + runtime,
                       "matrix products", problem_of([&] { gflops = try_matrix_product(); })});
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  std::string hdf5_problem = problem_of(try_hdf5);
  if (major != H5_VERS_MAJOR || minor != H5_VERS_MINOR)  // HDF5's own check would abort the program
    hdf5_problem =
        fmt::format("built against {}.{}, but another version is installed; build again", H5_VERS_MAJOR, H5_VERS_MINOR);
  libraries.push_back({"HDF5", numbers({major, minor, release}), "datasets, checkpoints", hdf5_problem});
  libraries.push_back({"Highway", numbers({HWY_MAJOR, HWY_MINOR, HWY_PATCH}), "vector code", ""});
  libraries.push_back({"yaml-cpp", FURLONG_YAML_CPP_VERSION, "configs", problem_of([] {
                         if (YAML::Load("a: [1, 2]")["a"][1].as<int>() != 2)
                           throw MachineError("a small document was parsed incorrectly");
                       })});
  libraries.push_back({"zlib", zlibVersion(), "gz input", ""});
  libraries.push_back({"liblzma", lzma_version_string(), "xz input", ""});
  const unsigned xxhash = XXH_versionNumber();
  libraries.push_back({"xxHash", numbers({xxhash / 10000, xxhash / 100 % 100, xxhash % 100}), "checksums", ""});
  libraries.push_back({"fmt", numbers({FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100}), "text", ""});
  libraries.push_back({"spdlog", numbers({SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH}), "logging", ""});
  libraries.push_back({"nlohmann-json",
                       numbers({NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH}),
                       "JSON", ""});
  libraries.push_back({"CLI11", CLI11_VERSION, "command line", ""});
  return libraries;
}

/// Returns the best target that this CPU supports and for which SIMD files are compiled (framework/simd/targets.h).
std::string best_vector_target() {
  const uint64_t targets = static_cast<uint64_t>(hwy::SupportedTargets() & HWY_TARGETS);
  return hwy::TargetName(static_cast<int64_t>(targets & (~targets + 1)));  // the lowest bit is the best target
}

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

void advise_on_environment(std::vector<Advice>& advice) {
  // OpenMP ignores the case of values.
  if (const auto policy = environment("OMP_WAIT_POLICY"); policy && lower_case(*policy) == "passive")
    advice.push_back({"OMP_WAIT_POLICY=" + *policy + " makes threads sleep between loops, which slows training down",
                      "unset OMP_WAIT_POLICY, unless several programs share the cores"});
  for (const char* name : {"OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "OMP_PLACES"}) {
    const auto value = environment(name);
    if (value && lower_case(*value) != "false")
      advice.push_back(
          {fmt::format("{}={} pins threads; two such programs use the same cores while other cores are idle", name,
                       *value),
           fmt::format("unset {} when more than one program runs here", name)});
  }
  if (const auto isa = environment("FURLONG_CPU_ISA"))
    advice.push_back({"FURLONG_CPU_ISA=" + *isa + " limits the CPU's instruction sets", "unset FURLONG_CPU_ISA"});
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    if (const auto isa = environment(name); isa && *isa != "ALL" && *isa != "DEFAULT")
      advice.push_back({fmt::format("{}={} keeps oneDNN from using all instruction sets of the CPU", name, *isa),
                        fmt::format("unset {}", name)});
  }
  for (const char* name : {"ONEDNN_VERBOSE", "DNNL_VERBOSE"}) {
    if (const auto verbose = environment(name); verbose && *verbose != "0")
      advice.push_back({fmt::format("{}={} makes oneDNN print a line for every product", name, *verbose),
                        fmt::format("unset {}", name)});
  }
}

void advise_on_machine(const Examination& found, std::vector<Advice>& advice) {
  const CpuInformation& cpu = found.machine.cpu;
  if (cpu.quota_cores && cpu.usable_cores() < cpu.allowed_cores)
    advice.push_back(
        {fmt::format("the container has CPU time of {:.3g} cores, but {} cores are visible", *cpu.quota_cores,
                     cpu.allowed_cores),
         fmt::format("set `threads: {}` in the config, or raise the container's CPU limit", cpu.usable_cores())});
  if (const auto requested = requested_threads(); requested && requested->count != cpu.usable_cores())
    advice.push_back({fmt::format("{}={} sets the number of threads; {} cores are available", requested->variable,
                                  requested->count, cpu.usable_cores()),
                      fmt::format("unset {}, or set `threads:` in the config", requested->variable)});
  if (found.machine.huge_pages.enabled == "never")
    advice.push_back({"transparent huge pages are off: large tensors take much longer to touch for the first time",
                      "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"});
  if (!cpu.has("avx2") && !cpu.has("asimd"))
    advice.push_back({"this CPU has no 256-bit vectors (AVX2): training is many times slower than with them",
                      "use another machine"});
  if (!ops::multiplies_bfloat16())
    advice.push_back({cpu.has("avx512_bf16")
                          ? "this CPU's bfloat16 products (avx512_bf16) are no faster than float32's "
                            "and are not used: `dtype: bfloat16` saves memory"
                          : "this CPU has no bfloat16 products: `dtype: bfloat16` saves memory but "
                            "computes in float32",
                      "use `dtype: float32` for speed"});
  if (found.machine.memory.available < (uint64_t{1} << 30))
    advice.push_back(
        {"less than 1 GiB of memory is free", "stop other programs, or raise the container's memory limit"});
  if (found.free_disk_bytes && *found.free_disk_bytes < 2000000000)
    advice.push_back({"less than 2 GB are free on the disk of this directory",
                      "write runs to another disk with --run-dir, or keep fewer checkpoints (checkpoint.keep_last)"});
  for (const GpuInformation& gpu : found.machine.gpus) {
    if (!gpu.driver)
      advice.push_back({"an NVIDIA GPU (" + gpu.name + ") has no driver loaded",
                        "as root: apt-get install nvidia-driver (Debian's non-free section)"});
  }
}

void advise_on_cuda(const Examination& found, std::vector<Advice>& advice) {
  if (!found.cuda) {
    if (!found.machine.gpus.empty())
      advice.push_back({"this machine has an NVIDIA GPU, but this program was built without CUDA",
                        "install the CUDA toolkit, 12.4 or later, and build again (scripts/build.sh reports whether it "
                        "finds the toolkit)"});
    return;
  }
  for (const CudaDeviceReport& device : found.cuda->devices) {
    if (device.description.free_bytes * 2 < device.description.memory_bytes)
      advice.push_back({"other programs use more than half of the memory of " + device.description.name,
                        "stop them (nvidia-smi lists them), or choose another device (device: cuda:N)"});
  }
  const bool usable = found.cuda->unavailable.empty();
  for (const CudaLibraryReport& library : found.cuda->libraries) {
    if (usable && !library.problem.empty())
      advice.push_back(
          {library.problem, fmt::format("needed for {}: install it with the CUDA toolkit or with pip", library.use)});
  }
}

Examination examine() {
  Examination found;
  found.machine = read_machine();
  // Starts the threads, which oneDNN also uses.
  if (const std::string problem = problem_of([] { set_thread_count(0); }); !problem.empty()) {
    found.advice.push_back({problem, "set OMP_NUM_THREADS to fewer threads, or raise the limits"});
    set_thread_count(1);
  }
  found.libraries = try_libraries(found.gflops);
  found.vector_target = best_vector_target();
  std::error_code failed;
  const auto space = std::filesystem::space(".", failed);
  if (!failed) found.free_disk_bytes = space.available;
  found.cuda = cuda_report();
  advise_on_machine(found, found.advice);
  advise_on_cuda(found, found.advice);
  advise_on_environment(found.advice);
  return found;
}

std::string gibibytes(uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1024.0 * 1024 * 1024));
}

/// Returns "ok" if `device: auto` would use a GPU, or the reason why not.
std::string cuda_state(const Examination& found) {
  if (!found.cuda) return "this program was built without the CUDA toolkit";
  return found.cuda->unavailable.empty() ? "ok" : found.cuda->unavailable;
}

std::string simulator_state() { return gpu_engine(DeviceType::simulated) ? "ok (for tests)" : ""; }

/// Returns the libraries that failed their tests, with the reason.
std::vector<std::string> problems_of(const Examination& found) {
  std::vector<std::string> problems;
  for (const Library& library : found.libraries) {
    if (!library.problem.empty())
      problems.push_back(fmt::format("{} {}: {}", library.name, library.version, library.problem));
  }
  return problems;
}

const char* thread_engine() {
#ifdef FURLONG_THREAD_POOL
  return "pool";
#else
  return "openmp";
#endif
}

bool sanitized() {
#ifdef FURLONG_SANITIZED
  return true;
#else
  return false;
#endif
}

Json cuda_json(const std::optional<CudaReport>& cuda) {
  if (!cuda) return Json();
  Json json = {{"toolkit", cuda->toolkit},
               {"architectures", cuda->architectures},
               {"driver", cuda->driver.empty() ? Json() : Json(cuda->driver)}};
  json["devices"] = Json::array();
  for (const CudaDeviceReport& device : cuda->devices) {
    const GpuDescription& gpu = device.description;
    json["devices"].push_back({{"name", gpu.name},
                               {"capability", gpu.capability},
                               {"multiprocessors", gpu.multiprocessors},
                               {"memory_bytes", gpu.memory_bytes},
                               {"free_bytes", gpu.free_bytes},
                               {"unavailable", device.unavailable}});
  }
  json["libraries"] = Json::object();
  for (const CudaLibraryReport& library : cuda->libraries)
    json["libraries"][library.name] = {
        {"version", library.version}, {"path", library.path}, {"use", library.use}, {"problem", library.problem}};
  return json;
}

Json as_json(const Examination& found) {
  const Machine& machine = found.machine;
  Json json;
  json["furlong"] = {{"version", version()}, {"commit", commit()}, {"sanitized", sanitized()}};
  Json features = Json::object();
  for (const Feature& feature : features_of_interest) features[feature.name] = machine.cpu.has(feature.name);
  json["cpu"] = {{"model", machine.cpu.model},
                 {"features", features},
                 {"instruction_set", ops::cpu_isa()},
                 {"vector_target", found.vector_target},
                 {"online_cores", machine.cpu.online_cores},
                 {"allowed_cores", machine.cpu.allowed_cores},
                 {"quota_cores", machine.cpu.quota_cores ? Json(*machine.cpu.quota_cores) : Json()},
                 {"usable_cores", machine.cpu.usable_cores()},
                 {"threads", thread_count()},
                 {"thread_engine", thread_engine()},
                 {"matmul_gflops", found.gflops ? Json(*found.gflops) : Json()}};
  const MemoryInformation& memory = machine.memory;
  json["memory"] = {{"total_bytes", memory.total},
                    {"usable_bytes", memory.usable()},
                    {"available_bytes", memory.available},
                    {"cgroup_limit_bytes", memory.cgroup_limit ? Json(*memory.cgroup_limit) : Json()}};
  const HugePageInformation& pages = machine.huge_pages;
  json["huge_pages"] = {{"enabled", pages.enabled}, {"defrag", pages.defrag}, {"bytes", pages.bytes}};
  json["disk"] = {{"free_bytes", found.free_disk_bytes ? Json(*found.free_disk_bytes) : Json()}};
  json["engines"] = {{"cpu", problems_of(found).empty() ? "ok" : "broken"}, {"cuda", cuda_state(found)}};
  if (!simulator_state().empty()) json["engines"]["simulated"] = simulator_state();
  json["gpus"] = Json::array();
  for (const GpuInformation& gpu : machine.gpus) json["gpus"].push_back({{"name", gpu.name}, {"driver", gpu.driver}});
  json["cuda"] = cuda_json(found.cuda);
  json["libraries"] = Json::object();
  for (const Library& library : found.libraries)
    json["libraries"][library.name] = {
        {"version", library.version}, {"use", library.use}, {"problem", library.problem}};
  json["system"] = {{"kernel", machine.kernel}, {"container", machine.container}};
  json["advice"] = Json::array();
  for (const Advice& advice : found.advice)
    json["advice"].push_back({{"what", advice.what}, {"remedy", advice.remedy}});
  json["problems"] = problems_of(found);
  return json;
}

std::string cpu_text(const Examination& found) {
  const CpuInformation& cpu = found.machine.cpu;
  std::string text = fmt::format("cpu         {}\n", cpu.model.empty() ? "unknown model" : cpu.model);
  std::vector<std::string> present, absent;
  for (const Feature& feature : features_of_interest)
    (cpu.has(feature.name) ? present : absent).push_back(feature.name);
  text += fmt::format("  features  {}; vector code uses {}{}\n",
                      present.empty() ? "none of the vector extensions" : fmt::format("{}", fmt::join(present, " ")),
                      found.vector_target,
                      environment("FURLONG_CPU_ISA") ? ", limited by FURLONG_CPU_ISA=" + ops::cpu_isa() : "");
  for (const Feature& feature : features_of_interest) {
    if (!cpu.has(feature.name)) text += fmt::format("  missing   {} ({})\n", feature.name, feature.meaning);
  }
  text +=
      fmt::format("  cores     {} online, {} allowed by the affinity mask, {}; Furlong uses {} thread{} ({})\n",
                  cpu.online_cores, cpu.allowed_cores,
                  cpu.quota_cores ? fmt::format("{:.3g} allowed by the cgroup", *cpu.quota_cores) : "no cgroup quota",
                  thread_count(), thread_count() == 1 ? "" : "s", thread_engine());
  if (found.gflops)
    text += fmt::format("  speed     {:.0f} GFLOP/s in a float32 matrix product (512 x 512)\n", *found.gflops);
  return text;
}

std::string gpu_text(const Examination& found) {
  std::vector<std::string> names;
  for (const GpuInformation& gpu : found.machine.gpus) names.push_back(gpu.name + (gpu.driver ? "" : " (no driver)"));
  std::string text = fmt::format("gpus        {}\n",
                                 names.empty() ? "no NVIDIA GPU found" : fmt::format("{}", fmt::join(names, ", ")));
  if (!found.cuda) return text;
  text +=
      fmt::format("  built     with CUDA {} for architectures {}\n", found.cuda->toolkit, found.cuda->architectures);
  text += fmt::format("  driver    {}\n", found.cuda->driver.empty() ? "none" : "supports CUDA " + found.cuda->driver);
  int index = 0;
  for (const CudaDeviceReport& device : found.cuda->devices) {
    const GpuDescription& gpu = device.description;
    text += fmt::format("  cuda:{}    {}, compute capability {}.{}, {} multiprocessors, {} free of {}{}\n", index++,
                        gpu.name, gpu.capability / 10, gpu.capability % 10, gpu.multiprocessors,
                        gibibytes(static_cast<uint64_t>(gpu.free_bytes)),
                        gibibytes(static_cast<uint64_t>(gpu.memory_bytes)),
                        device.unavailable.empty() ? "" : "; not usable: " + device.unavailable);
  }
  for (const CudaLibraryReport& library : found.cuda->libraries)
    text += fmt::format(
        "  {:<10}{} ({})\n", library.name,
        library.problem.empty() ? fmt::format("{}, {}", library.version, library.path) : library.problem, library.use);
  return text;
}

std::string as_text(const Examination& found) {
  const Machine& machine = found.machine;
  std::string text =
      fmt::format("furlong     {} ({}){}\n", version(), commit(), sanitized() ? ", built with sanitizers" : "");
  text += cpu_text(found);
  text += fmt::format(
      "memory      {} total, {} available, {}\n", gibibytes(machine.memory.total), gibibytes(machine.memory.available),
      machine.memory.cgroup_limit ? "cgroup limit " + gibibytes(*machine.memory.cgroup_limit) : "no cgroup limit");
  const HugePageInformation& pages = machine.huge_pages;
  text += pages.enabled.empty() ? "huge pages  not supported by this kernel\n"
                                : fmt::format("huge pages  {} (defrag: {}), {} KiB each\n", pages.enabled, pages.defrag,
                                              pages.bytes / 1024);
  if (found.free_disk_bytes)
    text += fmt::format("disk        {} free in this directory\n", gibibytes(*found.free_disk_bytes));
  text += fmt::format("system      Linux {}{}\n", machine.kernel, machine.container ? ", in a container" : "");
  text += fmt::format("engines     cpu: {}\n            cuda: {}\n", problems_of(found).empty() ? "ok" : "broken",
                      cuda_state(found));
  if (!simulator_state().empty()) text += fmt::format("            simulated: {}\n", simulator_state());
  text += gpu_text(found);
  text += "libraries\n";
  for (const Library& library : found.libraries)
    text += fmt::format("  {:<14}{:<15} {:<26}{}\n", library.name, library.version, library.use,
                        library.problem.empty() ? "ok" : "BROKEN: " + library.problem);
  text += found.advice.empty() ? "advice      none\n" : "advice\n";
  for (const Advice& advice : found.advice) text += fmt::format("  - {}\n    remedy: {}\n", advice.what, advice.remedy);
  return text;
}

}  // namespace

void add_doctor(Command program, int& status) {
  const Command doctor =
      program.add_subcommand("doctor", "Check CPU, memory, GPUs and libraries of this machine, and suggest fixes");
  const auto json = std::make_shared<bool>(false);
  add_json(doctor, *json);
  doctor.footer(
      "oneDNN, HDF5 and yaml-cpp are tested, other libraries only listed. Exit status: 0 if everything required works, "
      "1 if something is broken. Advice on speed does not change the status.");
  doctor.examples({"furlong doctor", "furlong doctor --json"});
  doctor.action([json, &status] {
    const Examination found = examine();
    if (*json) {
      print_json(as_json(found));
    } else {
      fmt::print("{}", as_text(found));
    }
    const std::vector<std::string> problems = problems_of(found);
    if (problems.empty()) return;
    status = 1;
    fmt::print(stderr, "error: {}; reinstall the packages with scripts/setup.sh and build again\n",
               fmt::join(problems, "; "));
  });
}

}  // namespace furlong::command_line
