#!/usr/bin/env bash
# Builds Furlong with its tests and runs them with this CPU's best instruction set, and the CPU engine's tests with AVX2
# too.
#   scripts/test.sh [--full] [--parts LIST] [--filter PATTERNS] [--isa LIST]
#   --full             all parts of the list below, which take hours
#   --parts LIST       only these parts of --full, separated by commas:
#       tests          the tests, and those of the CPU engine with every instruction set of this CPU
#       simulator      the tests of CUDA kernels on the host, with threads in random order and an A100's rounding
#       asan           all tests under AddressSanitizer with UndefinedBehaviorSanitizer
#       tsan           all tests under ThreadSanitizer, with four threads
#       kills          the kill table with 200 kills (tests/kills.sh)
#       faults         the fault table of several ranks (tests/faults.py)
#       writes         the table of failed writes (tests/write_faults.py)
#       cost           the predicted cost of CUDA kernels, if nvdisasm exists (scripts/sass_cost.py)
#       tutorials      the tutorials as printed, with their downloads (tests/docs/run_tutorials.py --full)
#       exports        exported models in transformers (tests/parity/transformers_export.py) with each Python of
#                      FURLONG_TRANSFORMERS_PYTHON, or python3
#       fuzz           5 minutes of each fuzz target, if clang exists (tests/fuzz/run.sh each 300)
#   --filter PATTERNS  runs only tests with these names, with this CPU's best instruction set: GoogleTest patterns
#                      separated by colons, excluded ones after a minus ('Tape.*:*bfloat16*-*/simulated*'). They also
#                      select ctest's own tests (Launchers.*). Of the parts of --full only tests, asan and tsan run
#   --isa LIST         runs all tests with each of these instruction sets instead: sse4, avx2, avx512, avx512_bf16, amx,
#                      separated by commas. Reports those that this CPU lacks (FURLONG_CPU_ISA,
#                      docs/internals/numerics.md)
# Ends with `N passed, N failed, N skipped`, which counts a test once for each run of it, and lists failed and skipped
# tests. A part that this machine cannot run counts as skipped; if none can run, that is a failure.
# Exit status: 0 all passed, 1 a failure, 2 invalid arguments.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."

every_isa=(sse4 avx2 avx512 avx512_bf16 amx)
every_part=(tests simulator asan tsan kills faults writes cost tutorials exports fuzz)
full=false filter='' isa=() parts=()
stop() { echo "test: $1" >&2; exit 2; }
while (( $# )); do
  case "$1" in
    --full) full=true parts=("${every_part[@]}") ;;
    --parts)
      IFS=, read -r -a parts <<<"${2:-}"
      (( ${#parts[@]} )) || stop "--parts needs parts; expected some of ${every_part[*]}"
      for name in "${parts[@]}"; do
        [[ $name != *' '* && " ${every_part[*]} " == *" $name "* ]] ||
          stop "--parts: '$name' is unknown; expected ${every_part[*]}, separated by commas"
      done
      full=true
      shift ;;
    --filter) [[ -n ${2:-} ]] || stop "--filter needs patterns"; filter=$2; shift ;;
    --isa)
      IFS=, read -r -a isa <<<"${2:-}"
      (( ${#isa[@]} )) || stop "--isa needs instruction sets; expected some of ${every_isa[*]}"
      for name in "${isa[@]}"; do
        [[ " ${every_isa[*]} " == *" $name "* ]] || stop "--isa: '$name' is unknown; expected ${every_isa[*]}"
      done
      shift ;;
    -h|--help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) stop "unknown argument $1; expected --full, --parts LIST, --filter PATTERNS, --isa LIST or --help" ;;
  esac
  shift
done

if [[ -n $filter ]] && (( ${#parts[@]} )) && [[ ! " ${parts[*]} " =~ \ (tests|asan|tsan)\  ]]; then
  stop "--filter selects tests, and ${parts[*]} has none; expected tests, asan or tsan among --parts"
fi
for python in ${FURLONG_TRANSFORMERS_PYTHON:-}; do
  type -P "$python" >/dev/null || stop "FURLONG_TRANSFORMERS_PYTHON: there is no program '$python'"
done

failed=()
timings=()
ran=false
outcomes=$(mktemp)
reporter=
trap 'rm -f "$outcomes"; [[ -z $reporter ]] || kill "$reporter" 2>/dev/null || true' EXIT
# phase NAME COMMAND...: runs the command, records its time and failure, and continues.
phase() {
  local name=$1 begin=$SECONDS status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  timings+=("$(printf '%5d s  %s%s' $(( SECONDS - begin )) "$name" "$( (( status == 0 )) || echo '  FAILED')")")
  (( status == 0 )) || failed+=("$name")
  [[ $name == packages || $name == build* ]] || ran=true
  return "$status"
}
# not_run NAME REASON: a part that this machine cannot run counts as a skipped test.
not_run() {
  printf '\n== %s\nnot run: %s\n' "$1" "$2"
  echo "skipped $1 ($2)" >>"$outcomes"
}

# Converts GoogleTest patterns to a regular expression for ctest's names.
regex_of() { sed -e 's/[].[^$+(){}|\\]/\\&/g' -e 's/\*/.*/g' -e 's/?/./g' -e 's/:/|/g' -e 's/.*/^(&)$/' <<<"$1"; }
# As above, plus all test programs, which filter their own tests.
programs_of() {
  local wanted=${1%%-*}
  [[ -n $1 ]] && echo "$(regex_of "${wanted:-*}")|^test_[a-z]+\\.[0-9]+\$" || echo .
}

# Prints one line for each test of a run: passed, failed or skipped, and its name. Test programs write theirs to
# results/. If a program dies, the test that it had started counts as failed. A program that fails without a failed test
# counts as a failed test itself.
outcomes_of() {
  local log=$1 results=$2
  awk '
    FNR == 1 && FILENAME != log_file { shard = FILENAME; sub(".*/", "test_", shard) }
    FILENAME != log_file {
      if ($1 == "note") next
      state[shard, $2] = $1
      if ($1 == "failed") blamed[shard] = 1
      next
    }
    match($0, /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /) {
      rest = substr($0, RLENGTH + 1); split(rest, words, " "); name = words[1]
      outcome = "failed"
      if (rest ~ / Passed +[0-9.]+ sec/) outcome = "passed"
      else if (rest ~ /\*\*\*(Skipped|Not Run \(Disabled\))/) outcome = "skipped"
      if (name !~ /^test_[a-z]+\.[0-9]+$/) print outcome, name
      else if (outcome != "passed") ended_badly[name] = 1
    }
    END {
      for (key in state) {
        split(key, part, SUBSEP)
        if (state[key] == "begun") { print "failed", part[2], "(the program ended)"; blamed[part[1]] = 1 }
        else print state[key], part[2]
      }
      for (name in ended_badly) if (!(name in blamed)) print "failed", name, "(outside its tests)"
    }' log_file="$log" "$results"/* "$log" | sort
}

# Prints the output of failed tests from ctest's output of failed programs.
show_failures() {
  awk '
    function end_block() {
      if (block != "") print block
      else if (other != "" && !shown) print other
      block = other = ""
      shown = 0
    }
    /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
      end_block()
      program = / test_[a-z]+\.[0-9]+ /
      output = !/ Passed |\*\*\*Skipped /
      if (output && !program) print
      next
    }
    /^ *Start +[0-9]+: / || !output { next }
    /^[0-9]+% tests passed/ { end_block(); output = 0; next }
    !program { print; next }
    /^\[ RUN      \]/ { block = $0; next }
    /^\[       OK \]|^\[  SKIPPED \]/ { block = ""; next }
    /^\[  FAILED  \]/ { if (block != "") { print block; print; shown = 1 } block = ""; next }
    block != "" { block = block "\n" $0; next }
    !/^\[|^Note: |^no tests on CUDA|^$/ { other = other "\n" $0 }' "$1" | cut -c -2000
}

# Prints how many of ctest's tests have ended, twice a minute, until it is killed.
report_progress() {
  while sleep 30 >/dev/null 2>&1; do
    sed -n 's/^ *\([0-9]*\)\/\([0-9]*\) Test .*/\1 of \2/p' "$1" 2>/dev/null | tail -n 1 |
      sed 's/$/ test programs have ended/'
  done
}

# run_tests FOLDER FILTER PROGRAMS [WRAPPER...]: runs the tests of build/FOLDER selected by GoogleTest's FILTER, in the
# ctest tests that match the regular expression PROGRAMS. One more program runs at once than there are cores, because
# many wait.
run_tests() {
  local build=build/$1 patterns=$2 programs=$3 log=build/$1/tests.log status=0 found cores
  cores=$(scripts/limits.sh cores)
  shift 3
  local selection=(-R "$programs")
  [[ $patterns != *-* ]] || selection+=(-E "$(regex_of "${patterns#*-}")")
  mkdir -p "$build/tests/results"
  rm -f "$build"/tests/results/*
  report_progress "$log" &
  reporter=$!
  "$@" env ${patterns:+"GTEST_FILTER=$patterns"} ctest --test-dir "$build" --parallel $(( cores + 1 )) \
    --output-on-failure --no-tests=error "${selection[@]}" >"$log" 2>&1 || status=$?
  kill "$reporter" 2>/dev/null || true  # it may have ended
  wait "$reporter" 2>/dev/null || true
  reporter=
  show_failures "$log"
  cat "$build"/tests/results/* </dev/null 2>/dev/null | sed -n 's/^note //p' | sort -u
  found=$(outcomes_of "$log" "$build/tests/results")
  [[ -n $found ]] || { echo "no test ran; output of ctest: $log"; return 1; }
  echo "$found" >>"$outcomes"
  grep -E '^(failed|skipped) ' <<<"$found" || true
  count_outcomes <<<"$found"
  return "$status"
}
count_outcomes() {
  awk '{ ++n[$1] } END { printf "%d passed, %d failed, %d skipped\n", n["passed"], n["failed"], n["skipped"] }'
}

# Several test programs share the cores, so a thread that waits for its team must sleep instead of spin.
export OMP_WAIT_POLICY=passive

# tests_with ISA FILTER PROGRAMS: run_tests with that instruction set if this CPU has it.
tests_with() {
  local status=0 message
  message=$(FURLONG_CPU_ISA=$1 build/release/bin/furlong --version 2>&1) || status=$?
  if (( status == 2 )); then
    not_run "tests with $1" "this CPU lacks it"
    return
  elif (( status )); then
    printf '\n== tests with %s\n%s\n' "$1" "$message"
    failed+=("tests with $1: furlong --version ends with status $status")
    return
  fi
  phase "tests with $1" run_tests release "$2" "$3" env "FURLONG_CPU_ISA=$1" || true
}

# sanitized PRESET NAME: all tests in the build PRESET.
sanitized() {
  # Four threads even with fewer cores, and one inside oneDNN, whose threads the sanitizers do not track. Tests that
  # fork may run after tests that left waiting threads, and a rank that fails ends without joining its own.
  local environment=(env FURLONG_POOL_THREADS=4 OMP_NUM_THREADS=1 UBSAN_OPTIONS=print_stacktrace=1
    "TSAN_OPTIONS=suppressions='$PWD/scripts/tsan.supp' halt_on_error=1 second_deadlock_stack=1 die_after_fork=0 \
report_thread_leaks=0")
  # ThreadSanitizer's shadow memory conflicts with the wide address randomization of recent kernels.
  if [[ $1 == tsan ]] && setarch --addr-no-randomize true 2>/dev/null; then
    environment+=(setarch --addr-no-randomize)
  fi
  if phase "build with $2" scripts/build.sh "$1"; then
    phase "tests under $2" run_tests "$1" "$filter" "$(programs_of "$filter")" "${environment[@]}" || true
  fi
}

exports_in_transformers() {
  local python
  for python in ${FURLONG_TRANSFORMERS_PYTHON:-python3}; do
    if "$python" -c 'import accelerate, h5py, safetensors, tokenizers, torch, transformers' 2>/dev/null; then
      phase "exported models in transformers, $python" \
        "$python" -B tests/parity/transformers_export.py --furlong build/release/bin/furlong || true
    else
      not_run "exported models in transformers, $python" "it lacks packages of tests/parity/requirements.txt"
    fi
  done
}

# With the first Python of FURLONG_TRANSFORMERS_PYTHON.
tutorials() {
  local python=${FURLONG_TRANSFORMERS_PYTHON:-python3}
  python=$(type -P "${python%% *}")
  PATH=${python%/*}:$PATH python3 -B tests/docs/run_tutorials.py build/release/bin/furlong --full
}

fault_table() {
  python3 -B tests/faults.py build/release/bin/furlong --markdown build/release/faults.md \
    --json build/release/faults.json
}

kernel_cost() {
  if cmake --build build/release --target help | grep '\bsass_cost\b' >/dev/null; then
    phase "kernel cost" cmake --build build/release --target sass_cost || true
  else
    not_run "kernel cost" "the build has no CUDA engine, or nvdisasm is missing"
  fi
}

fuzzing() {
  if type -P clang++ >/dev/null; then
    phase "fuzzing" tests/fuzz/run.sh each 300 || true
  else
    not_run "fuzzing" "clang++ is missing"
  fi
}

run_all_tests() {
  if (( ${#isa[@]} )); then
    for name in "${isa[@]}"; do tests_with "$name" "$filter" "$(programs_of "$filter")"; done
    return
  fi
  phase "tests" run_tests release "$filter" "$(programs_of "$filter")" || true
  [[ -z $filter ]] || return 0
  isa=(avx2)
  if $full; then isa=("${every_isa[@]}"); fi
  # Tests that depend on the instruction set: ops, layers, and training with one and several ranks.
  for name in "${isa[@]}"; do
    tests_with "$name" '*-*simulated*:*Simulat*:*Cuda*' '^test_(framework|layers)\.'
    tests_with "$name" 'TrainerTest*:ShardedOptimizer*:*/Reshards*' '^test_trainers\.'
  done
  # Intel's CPUs without AMX have these kernels too, and do not use them by default.
  $full || tests_with avx512_bf16 'BFloat16Products*:*EveryFeatureMap*:Engines/LinearAttention*-*/simulated*' \
    '^test_framework\.'
}

simulator_tests() {
  local programs='^test_(framework|layers|trainers|evaluation)\.'
  if ! build/release/bin/test_framework --gtest_list_tests '--gtest_filter=*/simulated*' 2>/dev/null |
    grep . >/dev/null; then
    not_run "simulator" "the build has no kernels, because there is no CUDA toolkit"
    return
  fi
  phase "simulator" run_tests release '*/simulated*' "$programs" \
    env FURLONG_SIMULATOR_ORDER=random FURLONG_SIMULATOR_TENSOR_CORES=sm_80 || true
}

run_part() {
  # Programs that these parts start see no GPU, as in tests/CMakeLists.txt.
  case $1 in kills|faults|writes|tutorials|exports) local -x CUDA_VISIBLE_DEVICES='' ;; esac
  case $1 in
    tests) run_all_tests ;;
    simulator) simulator_tests ;;
    asan) sanitized asan "AddressSanitizer and UndefinedBehaviorSanitizer" ;;
    tsan) sanitized tsan "ThreadSanitizer" ;;
    kills) phase "kill table" tests/kills.sh build/release/bin/furlong 200 || true ;;
    faults) phase "fault table" fault_table || true ;;
    writes)
      phase "failed writes" python3 -B tests/write_faults.py build/release/bin/furlong \
        --json build/release/write_faults.json || true ;;
    cost) kernel_cost ;;
    tutorials) phase "tutorials" tutorials || true ;;
    exports) exports_in_transformers ;;
    fuzz) fuzzing ;;
    *) echo "test: no part $1" >&2; exit 1 ;;
  esac
}

phase "packages" scripts/setup.sh test || exit $?
(( ${#parts[@]} )) || parts=(tests)
built=
for part in "${parts[@]}"; do
  [[ -z $filter || $part =~ ^(tests|asan|tsan)$ ]] || continue
  if [[ ! $part =~ ^(asan|tsan|fuzz)$ && -z $built ]]; then  # these have builds of their own
    built=no
    if phase "build" scripts/build.sh test; then built=yes; fi
  fi
  if [[ $part =~ ^(asan|tsan|fuzz)$ || $built == yes ]]; then run_part "$part"; fi
done

$ran || failed+=("no test ran")
printf '\n== time\n'
printf '%s\n' "${timings[@]}"
grep '^failed ' "$outcomes" || true
if (( ${#failed[@]} )); then
  printf '\nFAILED: %s\n' "$(printf '%s; ' "${failed[@]}" | sed 's/; $//')"
fi
printf '\n'
count_outcomes <"$outcomes"
(( ${#failed[@]} == 0 ))
