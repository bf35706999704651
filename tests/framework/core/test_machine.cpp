#include "framework/core/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/temporary_folder.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kib = 1024, gib = kib * kib * kib;

/// A folder that imitates the root of another machine.
class MachineTest : public testing::WithTemporaryFolder {
 protected:
  void SetUp() override {
    write("proc/cpuinfo",
          "processor\t: 0\nmodel name\t: Test CPU 9000\nflags\t\t: fpu avx2 avx512f\n\n"
          "processor\t: 1\nmodel name\t: Test CPU 9000\nflags\t\t: fpu avx2 avx512f\n");
    write("sys/devices/system/cpu/online", "0-5,8,10-11\n");
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:          100000 kB\nMemAvailable:    8388608 kB\n");
    write("proc/self/cgroup", "0::/\n");
    write("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
};

TEST_F(MachineTest, ReadsProcessorAndMemoryWithoutLimits) {
  const Machine machine = read_machine(folder_);
  EXPECT_EQ(machine.cpu.model, "Test CPU 9000");
  EXPECT_TRUE(machine.cpu.has("avx512f"));
  EXPECT_FALSE(machine.cpu.has("avx512"));
  EXPECT_EQ(machine.cpu.online_cores, 9);
  EXPECT_EQ(machine.cpu.usable_cores(), 9);
  EXPECT_FALSE(machine.cpu.quota_cores);
  EXPECT_EQ(machine.memory.total, 16 * gib);
  EXPECT_EQ(machine.memory.available, 8 * gib);
  EXPECT_EQ(machine.memory.usable(), 16 * gib);
  EXPECT_EQ(machine.kernel, "6.1.0-18-amd64");
  EXPECT_FALSE(machine.container);
  EXPECT_TRUE(machine.gpus.empty());
  EXPECT_EQ(machine.huge_pages.enabled, "");
}

TEST_F(MachineTest, CountsCoresFromCpuinfoIfTheKernelListsNone) {
  fs::remove(folder_ / "sys/devices/system/cpu/online");
  EXPECT_EQ(read_machine(folder_).cpu.online_cores, 2);
}

TEST_F(MachineTest, UsesTheTightestLimitOfNestedCgroupsV2) {
  write("proc/self/cgroup", "0::/job.slice/step\n");
  write("sys/fs/cgroup/job.slice/step/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/job.slice/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/job.slice/step/memory.max", "6442450944\n");
  write("sys/fs/cgroup/job.slice/step/memory.current", "3221225472\n");
  write("sys/fs/cgroup/job.slice/step/memory.stat", "anon 5\ninactive_file 1073741824\n");
  write("sys/fs/cgroup/job.slice/memory.max", "max\n");
  const Machine machine = read_machine(folder_);
  ASSERT_TRUE(machine.cpu.quota_cores);
  EXPECT_DOUBLE_EQ(*machine.cpu.quota_cores, 1.5);
  EXPECT_EQ(machine.cpu.usable_cores(), 2);
  EXPECT_EQ(machine.memory.cgroup_limit, 6 * gib);
  EXPECT_EQ(machine.memory.usable(), 6 * gib);
  EXPECT_EQ(machine.memory.available, 4 * gib);  // 6 GiB allowed, 3 GiB in use, of which 1 GiB can be dropped
}

TEST_F(MachineTest, FallsBackToTheCgroupMountForForeignContainerPaths) {
  write("proc/self/cgroup", "0::/docker/0123456789abcdef\n");
  write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/memory.max", "2147483648\n");
  const Machine machine = read_machine(folder_);
  EXPECT_EQ(machine.cpu.usable_cores(), 4);
  EXPECT_EQ(machine.memory.cgroup_limit, 2 * gib);
  EXPECT_EQ(machine.memory.available, 2 * gib);
}

TEST_F(MachineTest, ReadsCgroupsV1) {
  write("proc/self/cgroup", "4:memory:/box\n2:cpuacct,cpu:/box\n0::/\n");
  write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n");
  write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "268435456\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const Machine machine = read_machine(folder_);
  ASSERT_TRUE(machine.cpu.quota_cores);
  EXPECT_DOUBLE_EQ(*machine.cpu.quota_cores, 0.5);
  EXPECT_EQ(machine.cpu.usable_cores(), 1);
  EXPECT_EQ(machine.memory.cgroup_limit, gib);
  EXPECT_EQ(machine.memory.available, gib - gib / 4);
}

TEST_F(MachineTest, ReportsNoLimitForUnlimitedCgroupsV1) {
  write("proc/self/cgroup", "4:memory:/\n1:cpu:/\n0::/\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const Machine machine = read_machine(folder_);
  EXPECT_FALSE(machine.cpu.quota_cores);
  EXPECT_FALSE(machine.memory.cgroup_limit);
}

TEST_F(MachineTest, ReadsHugePagesAndDetectsContainers) {
  write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write("sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise madvise [never]\n");
  write("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n");
  write(".dockerenv", "");
  const Machine machine = read_machine(folder_);
  EXPECT_EQ(machine.huge_pages.enabled, "madvise");
  EXPECT_EQ(machine.huge_pages.defrag, "never");
  EXPECT_EQ(machine.huge_pages.bytes, 2 * kib * kib);
  EXPECT_TRUE(machine.container);
}

TEST_F(MachineTest, FindsGpusByDriverByDeviceFileAndOnPci) {
  write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  write("sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");  // the card's audio function is not a GPU
  write("sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");
  Machine machine = read_machine(folder_);
  ASSERT_EQ(machine.gpus.size(), 1u);
  EXPECT_FALSE(machine.gpus[0].driver);
  EXPECT_EQ(machine.gpus[0].name, "PCI 0000:01:00.0");

  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"}) write(std::string("dev/") + name, "");
  machine = read_machine(folder_);
  ASSERT_EQ(machine.gpus.size(), 2u);
  EXPECT_TRUE(machine.gpus[0].driver);
  EXPECT_EQ(machine.gpus[1].name, "/dev/nvidia1");

  write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H100\nIRQ:   \t\t 99\n");
  machine = read_machine(folder_);
  ASSERT_EQ(machine.gpus.size(), 1u);
  EXPECT_EQ(machine.gpus[0].name, "NVIDIA H100");
}

TEST_F(MachineTest, UsesDefaultsForAnEmptyRoot) {
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  const Machine machine = read_machine(folder_);
  EXPECT_EQ(machine.cpu.usable_cores(), 1);
  EXPECT_EQ(machine.memory.total, 0u);
  EXPECT_FALSE(machine.memory.cgroup_limit);
}

TEST(Machine, AgreesWithSystemCallsOnThisMachine) {
  const Machine machine = read_machine();
  EXPECT_EQ(machine.cpu.online_cores, sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_EQ(machine.cpu.allowed_cores, static_cast<int>(std::thread::hardware_concurrency()));
  const uint64_t total = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_EQ(machine.memory.total, total);
  EXPECT_GT(machine.memory.available, 0u);
  EXPECT_LE(machine.memory.available, machine.memory.total);
  EXPECT_FALSE(machine.kernel.empty());
}

}  // namespace
}  // namespace furlong
