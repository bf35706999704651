#!/usr/bin/env python3
"""Tests scripts/limits.sh, the reasons that scripts report before they stop, what they do without a compiler cache or
with programs that do not start, and the choice of PyTorch's settings in benchmarks/run_training_step.py."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import run_training_step


def run(script, *arguments, **variables):
    return subprocess.run(
        [ROOT / "scripts" / script, *arguments], env={**os.environ, **variables}, capture_output=True, text=True
    )


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name, body):
        self.file(name, f"#!/bin/sh\n{body}\n").chmod(0o755)


class Limits(InFolder):
    def limits(self, cgroup, **files):
        self.file("proc/self/cgroup", cgroup)
        self.file("proc/meminfo", "MemTotal:       67108864 kB\n")
        self.program("nproc", 'test -z "$OMP_NUM_THREADS$OMP_THREAD_LIMIT" && echo 64 || echo 1')
        variables = {
            "FURLONG_LIMITS_ROOT": str(self.folder),
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "OMP_THREAD_LIMIT": "1",
        }
        results = [run("limits.sh", what, **variables) for what in ("cores", "memory_mib")]
        self.assertEqual([result.stderr for result in results], ["", ""])
        return tuple(int(result.stdout) for result in results)

    def test_without_limits(self):
        self.assertEqual(self.limits("0::/user.slice/a.scope\n"), (64, 65536))

    def test_version_2_in_a_container(self):
        self.file("sys/fs/cgroup/cpu.max", "350000 100000\n")
        self.file("sys/fs/cgroup/memory.max", f"{6 << 30}\n")
        self.assertEqual(self.limits("0::/\n"), (4, 6144))
        self.assertEqual(self.limits("0::/docker/unseen\n"), (4, 6144))

    def test_version_2_limits_of_parents_count(self):
        self.file("sys/fs/cgroup/job/cpu.max", "800000 100000\n")
        self.file("sys/fs/cgroup/job/memory.max", f"{16 << 30}\n")
        self.file("sys/fs/cgroup/job/step/cpu.max", "max 100000\n")
        self.file("sys/fs/cgroup/job/step/memory.max", "max\n")
        self.assertEqual(self.limits("0::/job/step\n"), (8, 16384))

    def test_version_1(self):
        self.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
        self.file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
        self.file("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n")
        self.file("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
        self.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        self.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{2 << 30}\n")
        cgroup = "5:cpu,cpuacct:/job\n3:memory:/job\n1:name=systemd:/job\n0::/\n"
        self.assertEqual(self.limits(cgroup), (2, 2048))


class Reasons(InFolder):
    def test_other_systems_are_rejected(self):
        self.program("uname", 'test "$1" = -s && echo Darwin || echo arm64')
        for script, *arguments in (("setup.sh",), ("build.sh", "release")):
            result = run(script, *arguments, PATH=f"{self.folder}:{os.environ['PATH']}")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("Furlong needs Linux on x86-64; this is Darwin on arm64", result.stderr)

    def test_prepare_data_names_the_missing_program(self):
        result = run("prepare_data.sh", "kjv", FURLONG=str(self.folder / "none"), PATH="/usr/bin:/bin")
        self.assertEqual(result.returncode, 1)
        self.assertIn("in PATH; build it", result.stderr)


class BrokenMachines(InFolder):
    def test_compilers_run_without_ccache_if_its_folder_cannot_be_made(self):
        asked = 'echo "$HOME/cache"'
        self.program("ccache", f'test "$1" = --get-config && {asked} || echo "disabled: $CCACHE_DISABLE, $@"')
        environment = {key: value for key, value in os.environ.items() if key != "CCACHE_DISABLE"}
        for home, disabled in ((self.folder, ""), (self.file("home", ""), "1")):
            command = ["sh", ROOT / "cmake/compile.sh", self.folder / "ccache", "c++", "-c", "a.cpp"]
            done = subprocess.run(command, env={**environment, "HOME": str(home)}, capture_output=True, text=True)
            self.assertEqual(done.stdout, f"disabled: {disabled}, c++ -c a.cpp\n")

    def test_programs_that_do_not_list_their_tests_are_failures(self):
        self.program("broken", "echo no library >&2; exit 127")
        self.program("whole", "printf 'Tape.\\n  Adds\\n'")
        script = f"""
            source {ROOT}/scripts/gpu_check_tests.sh
            bin={self.folder} logs={self.folder} current=part
            touch $logs/part.tests.ended_badly
            for program in broken whole broken; do names_of $program '*'; done
            cat $logs/part.tests.ended_badly"""
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        self.assertEqual(done.stdout, "Tape.Adds\nbroken: cannot list its tests (status 127): no library\n")


class SettingsOfPyTorch(InFolder):
    PROCESSOR = {
        "cpu": "AMD EPYC",
        "cpu_numbers": "family 25, model 17, stepping 1",
        "instructions": ["avx2", "avx512f"],
        "threads": 2,
    }

    def result(self, name, date, chunk, environment="default", torch="2.15", dtype="float32", **machine):
        best = {"form": "loop", "chunk": chunk, "environment": environment, "compile": 0}
        found = {
            "date": date,
            "machine": {**self.PROCESSOR, **machine},
            "shape": {"dtype": dtype},
            "versions": {"torch": torch},
            "peer_sweep": {"best": best},
        }
        self.file(f"attention_{name}.json", json.dumps(found))

    def chunk(self, dtype):
        found = run_training_step.settings_of_sweep({"default": {}}, self.PROCESSOR, "2.15", dtype, self.folder)
        return found and found["chunk"]

    def test_are_those_of_this_processor_and_dtype(self):
        self.result("z", "2026-11-21T00:00:00+00:00", 1)
        self.result("a", "2026-11-23T00:00:00+00:00", 2, dtype="float32")
        self.result("b", "2026-11-28T00:00:00+00:00", 3, cpu_numbers="family 26, model 2, stepping 1")
        self.result("c", "2026-11-28T00:00:00+00:00", 4, environment="not installed here")
        self.assertEqual(self.chunk("float32"), 2)
        self.assertIsNone(self.chunk("bfloat16"))
        self.result("d", "2026-11-22T00:00:00+00:00", 5, dtype="bfloat16")
        self.assertEqual((self.chunk("float32"), self.chunk("bfloat16")), (2, 5))

    def test_results_of_other_conditions_do_not_fit(self):
        for other in (
            {"cpu_numbers": None},
            {"instructions": ["avx2", "avx512f", "amx_bf16"]},
            {"threads": 4},
            {"torch": "2.14"},
        ):
            self.result("a", "2026-11-23T00:00:00+00:00", 1, **other)
            self.assertIsNone(self.chunk("float32"), other)


if __name__ == "__main__":
    unittest.main()
