#!/usr/bin/env bash
# Builds Furlong with its tests and runs them.
#   scripts/test.sh [--full] [--filter REGEX]
#   --full          adds the same tests under AddressSanitizer with UndefinedBehaviorSanitizer, under ThreadSanitizer
#                   with four threads, the kill table (tests/kills.sh) and the fault table of several processes
#                   (tests/faults.py)
#   --filter REGEX  only tests whose name matches (ctest -R); without the two tables
# Skipped tests are counted and named.
# Exit status: 0 everything passed, 1 something failed, 2 a mistake in the arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

full=false
filter=()
while (( $# )); do
  case "$1" in
    --full) full=true ;;
    --filter) [[ -n ${2:-} ]] || { echo "test: --filter needs a regular expression" >&2; exit 2; }; filter=(-R "$2"); shift ;;
    -h|--help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "test: unknown argument $1; there are --full, --filter REGEX and --help" >&2; exit 2 ;;
  esac
  shift
done

failed=()
timings=()
rm -f build/{release,asan,tsan}/tests.log
# phase NAME COMMAND...: runs it, notes how long it took and whether it failed, and goes on.
phase() {
  local name=$1 begin=$SECONDS status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  timings+=("$(printf '%5d s  %s%s' $(( SECONDS - begin )) "$name" "$( (( status == 0 )) || echo '  FAILED')")")
  (( status == 0 )) || failed+=("$name")
  return "$status"
}

# run_tests PRESET [WRAPPER...]: all tests of build/PRESET, as many programs at once as there are cores.
run_tests() {
  local preset=$1 log=build/$1/tests.log status=0 skipped
  shift
  "$@" ctest --test-dir "build/$preset" --parallel "$(nproc)" --output-on-failure --no-tests=error "${filter[@]}" >"$log" 2>&1 || status=$?
  if (( status )); then
    grep -vE '^ *[0-9]+/[0-9]+ Test +#.*Passed|^ *Start +[0-9]+:' "$log" || true
  fi
  skipped=$(grep -E '^\s*[0-9]+ - .* \((Skipped|Disabled|Not Run)\)$' "$log" || true)
  if [[ -n $skipped ]]; then
    echo "$(wc -l <<<"$skipped") skipped:"
    echo "$skipped"
  else
    echo "0 skipped"
  fi
  grep -E 'tests passed' "$log" || echo "no summary from ctest; its output: $log"
  return "$status"
}

# Several test programs share the cores, so that a thread waiting for its team must sleep and not spin.
export OMP_WAIT_POLICY=passive

phase "packages" scripts/setup.sh test || exit $?
if phase "build" scripts/build.sh test; then
  phase "tests" run_tests release || true
fi

sanitizers() {
  # Four threads even where there are fewer cores, and none inside oneDNN, whose threads the sanitizers do not see.
  local environment=(env FURLONG_POOL_THREADS=4 OMP_NUM_THREADS=1 UBSAN_OPTIONS=print_stacktrace=1
    "TSAN_OPTIONS=suppressions=$PWD/scripts/tsan.supp halt_on_error=1 second_deadlock_stack=1")
  if phase "build with AddressSanitizer and UndefinedBehaviorSanitizer" scripts/build.sh asan; then
    phase "tests under AddressSanitizer and UndefinedBehaviorSanitizer" run_tests asan "${environment[@]}" || true
  fi
  # ThreadSanitizer's shadow memory collides with the widest address randomisation of recent kernels.
  if setarch --addr-no-randomize true 2>/dev/null; then environment+=(setarch --addr-no-randomize); fi
  if phase "build with ThreadSanitizer" scripts/build.sh tsan; then
    phase "tests under ThreadSanitizer" run_tests tsan "${environment[@]}" || true
  fi
}

kill_table() {
  if [[ ! -x tests/kills.sh ]]; then
    echo "tests/kills.sh is not there"
    return 1
  fi
  tests/kills.sh build/release/bin/furlong
}

fault_table() {
  python3 -B tests/faults.py build/release/bin/furlong --markdown build/release/faults.md --json build/release/faults.json
}

if $full; then
  sanitizers
  if (( ${#filter[@]} == 0 )); then
    phase "kill table" kill_table || true
    phase "fault table" fault_table || true
  fi
fi

printf '\n== time\n'
printf '%s\n' "${timings[@]}"
summary=$(grep -hE 'tests passed' build/release/tests.log 2>/dev/null || true)
if (( ${#failed[@]} )); then
  printf '\nFAILED: %s\n' "$(printf '%s; ' "${failed[@]}" | sed 's/; $//')"
fi
printf '\n%s\n' "${summary:-no test ran}"
(( ${#failed[@]} == 0 ))
