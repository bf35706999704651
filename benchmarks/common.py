"""Shared by the runners: processes that answer requests in alternation, the machine, and result files. worker.h
describes the protocol."""

import atexit
import contextlib
import datetime
import functools
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def serve(answer):
    """Answers requests from standard input until it ends."""
    for line in sys.stdin:
        request = dict(word.split("=", 1) for word in line.split())
        try:
            result = answer(request)
        except Exception as error:  # told to the runner, which goes on without this candidate
            result = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        print(json.dumps(result), flush=True)


def add_peer_arguments(parser, name):
    """Options of the runners that time Furlong next to PyTorch. `name`: of the result file by default."""
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="run PyTorch in eager mode only")
    parser.add_argument(
        "--seconds", type=float, default=350, help="time limit; optional parts that do not fit are left out"
    )
    parser.add_argument("--python", default=sys.executable, help="Python interpreter with torch")
    parser.add_argument("--build", default="build/release", help="build folder of Furlong")
    parser.add_argument("--program", type=pathlib.Path, help="path of Furlong's program, instead of the one in --build")
    parser.add_argument("--name", default=name, help="name of the result file")


class Failed(RuntimeError):
    pass


class Worker:
    """A process that answers requests. Its standard error goes to a file, shown when it dies."""

    def __init__(self, command, environment):
        self.name = pathlib.Path(command[-1]).name
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def ask(self, **request):
        try:
            self.process.stdin.write(" ".join(f"{key}={value}" for key, value in request.items()) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.errors.seek(0)
            raise Failed(
                f"{self.name} ended with status {self.process.wait()}: {self.errors.read().decode()[-500:].strip()}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{self.name}: {answer['error']}")
        return answer

    def close(self):
        with contextlib.suppress(BrokenPipeError):  # it died, and what it was not told is lost
            self.process.stdin.close()
        self.process.wait()
        self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def allocator_library(name):
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"):
        for path in sorted(pathlib.Path(folder).glob(f"lib{name}.so*")):
            return str(path)
    return None


MKL_AS_ON_INTEL = "MKL as on Intel"  # in the names of settings that PyTorch does not come with


@functools.cache
def mkl_as_on_intel():
    """mkl_as_on_intel.c, compiled; None without a compiler, or where the processor is Intel's anyway."""
    if "Intel" in cpu_model():
        return None
    library = pathlib.Path(tempfile.mkdtemp(prefix="furlong_benchmarks_")) / "mkl_as_on_intel.so"
    atexit.register(shutil.rmtree, library.parent, ignore_errors=True)
    compiled = subprocess.run(["cc", "-shared", "-fPIC", "-o", library, ROOT / "benchmarks" / "mkl_as_on_intel.c"])
    return str(library) if compiled.returncode == 0 else None


def peer_environments(threads):
    """Settings that can make PyTorch on a CPU faster, each tried: memory that is kept instead of given back, huge
    pages, allocators, and MKL's fast code on processors that it does not know. The first is the likeliest to be
    best."""
    base = {
        key: value
        for key, value in os.environ.items()
        if key not in ("OPENBLAS_CORETYPE", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    base["OMP_NUM_THREADS"] = str(threads)
    kept = {
        **base,
        "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "MALLOC_TOP_PAD_": str(64 << 20),
    }
    huge = {**kept, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
    stock = {"memory kept, huge pages": huge, "memory kept": kept, "default": base}
    for name in ("jemalloc", "tcmalloc_minimal", "tcmalloc"):
        if allocator_library(name):
            stock[name] = {**base, "LD_PRELOAD": allocator_library(name)}
    shim = mkl_as_on_intel()
    tuned = {}
    if shim:
        for name in [name for name in stock if name != "default"]:
            preloaded = " ".join(filter(None, (shim, stock[name].get("LD_PRELOAD"))))
            tuned[f"{name}, {MKL_AS_ON_INTEL}"] = {**stock[name], "LD_PRELOAD": preloaded}
    return {**tuned, **stock}


def our_environment(threads):
    # The furlong program sets the same for itself (docs/internals/architecture.md).
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "3000")}


def our_program(name, build):
    program = ROOT / build / "bin" / name
    subprocess.run(["cmake", "--build", ROOT / build, "--target", name], check=True, stdout=subprocess.DEVNULL)
    return program


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def cpu_numbers():
    """Family, model and stepping, which tell processors apart whose names are equal."""
    names, found = {"family": "cpu family", "model": "model", "stepping": "stepping"}, {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    return ", ".join(f"{name} {found[key]}" for name, key in names.items() if key in found)


def processor(threads):
    """What a peer's best settings depend on. Virtual machines name different processors alike ("AMD EPYC"), and hide
    instructions of equal ones."""
    flags = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {
        "cpu": cpu_model(),
        "cpu_numbers": cpu_numbers(),
        "instructions": [name for name in known if flags and name in flags[1].split()],
        "threads": threads,
    }


def commit():
    """This commit; -dirty if files other than results have changed."""
    git = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return git("rev-parse", "HEAD") + ("-dirty" if changes else "")


@functools.cache
def peer_versions(python):
    """Those of the interpreter that runs the peer."""
    code = """if True:
        import json, platform, torch
        print(json.dumps({
            "torch": torch.__version__,
            "mkldnn": torch.backends.mkldnn.is_available(),
            "python": platform.python_version(),
            "blas": torch.__config__.show().split("BLAS_INFO=")[-1].split(",")[0]}))"""
    return json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)


def provenance(threads, python):
    """Call it before anything else, so that the load is that of others."""
    load = os.getloadavg()
    run = lambda *command: subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    memory = {
        line.split(":")[0]: line.split(":")[1].strip()
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines()
    }
    huge_pages = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": {
            **processor(threads),
            "cores": os.cpu_count(),
            "memory": memory["MemTotal"],
            "kernel": platform.release(),
            "huge_pages": huge_pages.read_text().strip() if huge_pages.exists() else "none",
        },
        "load_before": load,
        "versions": {**peer_versions(python), "compiler": run("c++", "--version").splitlines()[0]},
    }


def summary(samples):
    return {"median": statistics.median(samples), "least": min(samples), "most": max(samples), "samples": samples}


def compare(peer_seconds, our_seconds):
    """Ratio of medians, and the median and range of the ratios of neighboring turns, which a slow drift of the machine
    leaves alone."""
    turns = [peer / ours for peer, ours in zip(peer_seconds, our_seconds)]
    return {
        "peer_seconds": summary(peer_seconds),
        "our_seconds": summary(our_seconds),
        "ratio": statistics.median(peer_seconds) / statistics.median(our_seconds),
        "ratio_of_turns": {"median": statistics.median(turns), "least": min(turns), "most": max(turns)},
    }


def write_result(name, result):
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}_{datetime.date.today().isoformat()}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path.relative_to(ROOT)}")


class Budget:
    """Seconds that are left: what is optional is left out when they run short, and the result says so."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.skipped = []

    def left(self):
        return self.end - time.monotonic()

    def allows(self, seconds, what):
        if self.left() >= seconds:
            return True
        self.skipped.append(what)
        print(f"left out for lack of time: {what}", flush=True)
        return False
